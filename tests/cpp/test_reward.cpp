#include <cmath>
#include <limits>

#include "check.hpp"
#include "fastdqn/reward.hpp"

using fastdqn::clip_reward;
using fastdqn::RewardClip;

int main() {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();

  CHECK(clip_reward(RewardClip::kNone, 7.0) == 7.0F);
  CHECK(clip_reward(RewardClip::kNone, -0.25) == -0.25F);

  CHECK(clip_reward(RewardClip::kSign, 7.0) == 1.0F);
  CHECK(clip_reward(RewardClip::kSign, 0.25) == 1.0F);
  CHECK(clip_reward(RewardClip::kSign, 0.0) == 0.0F);
  CHECK(clip_reward(RewardClip::kSign, -0.0) == 0.0F);
  CHECK(clip_reward(RewardClip::kSign, -0.25) == -1.0F);
  CHECK(clip_reward(RewardClip::kSign, -kInfinity) == -1.0F);

  CHECK(clip_reward(RewardClip::kClip, 7.0) == 1.0F);
  CHECK(clip_reward(RewardClip::kClip, 1.0) == 1.0F);
  CHECK(clip_reward(RewardClip::kClip, 0.25) == 0.25F);
  CHECK(clip_reward(RewardClip::kClip, -0.25) == -0.25F);
  CHECK(clip_reward(RewardClip::kClip, -7.0) == -1.0F);
  CHECK(clip_reward(RewardClip::kClip, kInfinity) == 1.0F);

  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(std::isnan(clip_reward(RewardClip::kNone, nan)));
  CHECK(std::isnan(clip_reward(RewardClip::kSign, nan)));
  CHECK(std::isnan(clip_reward(RewardClip::kClip, nan)));
}
