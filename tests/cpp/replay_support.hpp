#pragma once
// What the tests of the replay memory share. A frame is one number: how many frames the memory was
// given before it, plus one, so that a stack reads as a list and zeros are padding.

#include <cstdint>
#include <vector>

#include "check.hpp"
#include "fastdqn/replay_memory.hpp"

namespace fastdqn {

/// The tests run once with each.
inline Storage storage_under_test = Storage::kRaw;

inline ReplayConfig small_config() {
  return {.capacity = 20,
          .frame = {{}, DType::kUint32},
          .num_envs = 1,
          .stack = 3,
          .n_step = 1,
          .discount = 0.5,
          .padding = Padding::kZero,
          .reward_clip = RewardClip::kNone,
          .storage = storage_under_test,
          .directory = {},
          .eviction = Eviction::kFifo,
          .seed = 1};
}

/// One row of append.
struct Step {
  std::int64_t env = 0;
  std::int64_t action = 0;
  float reward = 0.0F;
  bool terminated = false;
  bool truncated = false;
  bool life_lost = false;
};

/// A transition as it is read back.
struct Row {
  std::vector<std::uint32_t> state;
  std::vector<std::uint32_t> next_state;
  std::int64_t action;
  float reward;
  float discount;
  bool operator==(const Row&) const = default;
};

/// Gives a memory numbered frames and checks it after every change.
class Player {
 public:
  explicit Player(ReplayConfig config) : memory(std::move(config)) {}

  void begin(std::vector<std::int64_t> envs = {0}) {
    memory.begin(envs, next_frames(envs.size()));
    given_ += static_cast<std::uint32_t>(envs.size());
    memory.check_invariants();
  }

  void append(const std::vector<Step>& steps) {
    std::vector<std::int64_t> envs;
    std::vector<std::int64_t> actions;
    std::vector<float> rewards;
    std::vector<std::uint8_t> terminated;
    std::vector<std::uint8_t> truncated;
    std::vector<std::uint8_t> life_lost;
    for (const Step& step : steps) {
      envs.push_back(step.env);
      actions.push_back(step.action);
      rewards.push_back(step.reward);
      terminated.push_back(step.terminated);
      truncated.push_back(step.truncated);
      life_lost.push_back(step.life_lost);
    }
    memory.append({envs, actions, rewards, next_frames(steps.size()), terminated, truncated,
                   life_lost});
    given_ += static_cast<std::uint32_t>(steps.size());
    memory.check_invariants();
  }

  std::vector<std::uint32_t> stack_of(std::int64_t env) const {
    std::vector<std::uint32_t> out(static_cast<std::size_t>(memory.config().stack));
    const std::vector<std::int64_t> envs{env};
    memory.stacks_into(envs, contiguous_target(reinterpret_cast<std::byte*>(out.data()),
                                               memory.config().frame, out.size(),
                                               StackLayout::kPlanar));
    return out;
  }

  Row row(std::int64_t index, StackLayout layout = StackLayout::kPlanar) const {
    const std::vector<std::int64_t> indices{index};
    return first_row(memory.gather(indices, layout));
  }

  /// With one row and frames of one number, both layouts are the same list.
  static Row first_row(const Batch& batch) {
    const BatchTarget& target = batch.target();
    const auto list = [&](const StackTarget& stacks) {
      const auto* numbers = reinterpret_cast<const std::uint32_t*>(stacks.data);
      return std::vector<std::uint32_t>(numbers, numbers + batch.stack());
    };
    return {list(target.states), list(target.next_states), target.actions[0], target.rewards[0],
            target.discounts[0]};
  }

  ReplayMemory memory;

 private:
  FrameRows next_frames(std::size_t count) {
    frames_.clear();
    for (std::uint32_t row = 1; row <= count; ++row) frames_.push_back(given_ + row);
    return {reinterpret_cast<const std::byte*>(frames_.data()), sizeof(std::uint32_t)};
  }

  std::vector<std::uint32_t> frames_;
  std::uint32_t given_ = 0;
};

}  // namespace fastdqn
