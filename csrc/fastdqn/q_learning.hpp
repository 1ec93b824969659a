#pragma once
// The error of (double) Q-learning, its loss and the loss's gradient, on the host.

#include <cstddef>
#include <cstdint>

namespace fastdqn {

/// What the loss of the errors is.
struct LossRule {
  bool huber;  // with its bend at 1; squares otherwise
  bool mean;   // over the batch; the sum otherwise
};

/// A batch [rows] and the values [rows, actions] that belong to it: the caller's memory.
struct QLearningBatch {
  std::size_t rows, num_actions;
  const float* q_tm1;
  const std::int64_t* a_tm1;
  const float* r_t;
  const float* discount_t;
  const float* q_t_value;
  const float* q_t_selector;
};

/// The first of the largest of `count` values, one or more; a value that is no number counts as larger
/// than all others.
std::size_t index_of_largest(const float* values, std::size_t count) noexcept;

struct QLearningResult {
  float loss;
  float mean_q;  // of the taken actions' values
};

/// The loss and, written to `grad` [rows, actions], its gradient by q_tm1. std::out_of_range for an
/// action that there is not.
QLearningResult q_learning_into(const QLearningBatch& batch, LossRule rule, float* grad);

}  // namespace fastdqn
