#pragma once

namespace fastdqn {

/// How a raw reward becomes the reward that is learned from.
enum class RewardClip {
  kNone,  ///< unchanged
  kSign,  ///< -1, 0 or 1
  kClip,  ///< limited to [-1, 1]
};

/// The learning reward of one raw reward: the only place in the project that clips. A NaN stays
/// a NaN, so that a broken reward is seen and not learned from as a zero.
inline float clip_reward(RewardClip rule, double reward) noexcept {
  switch (rule) {
    case RewardClip::kSign:
      if (reward > 0.0) return 1.0F;
      if (reward < 0.0) return -1.0F;
      break;
    case RewardClip::kClip:
      if (reward > 1.0) return 1.0F;
      if (reward < -1.0) return -1.0F;
      break;
    case RewardClip::kNone:
      break;
  }
  return static_cast<float>(reward);
}

}  // namespace fastdqn
