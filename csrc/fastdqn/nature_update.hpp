#pragma once
// A whole update of a Nature network by double Q-learning and Adam, from one batch of transitions.

#include <cstdint>
#include <span>

#include "fastdqn/nature_network.hpp"
#include "fastdqn/optimizer_steps.hpp"
#include "fastdqn/q_learning.hpp"
#include "fastdqn/thread_pool.hpp"

namespace fastdqn {

/// A batch [rows]: the caller's memory.
struct Transitions {
  Stacks states, next_states;
  const std::int64_t* actions;
  const float* rewards;
  const float* discounts;  // of the next states' values
};

/// What an update does beside the networks' passes.
struct UpdateRule {
  bool double_learning;  // the online network chooses the next states' actions
  LossRule loss;
};

/// Moves the online network's weights. In one call, so that nothing waits between its parts; the
/// numbers are those of the parts one after the other. Exceptions as those of the parts.
QLearningResult nature_update(ThreadPool& pool, NatureNetwork& online, NatureNetwork& target,
                              const Transitions& batch, const UpdateRule& rule,
                              const NatureWeights<float>& gradients,
                              std::span<const AdamArrays> adam, const AdamFactors& factors);

}  // namespace fastdqn
