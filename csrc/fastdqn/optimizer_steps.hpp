#pragma once
// Steps of the optimizers, in one pass over all numbers.

#include <cstddef>
#include <span>

#include "fastdqn/thread_pool.hpp"

namespace fastdqn {

/// What Adam's step multiplies and divides by: of one step, the bias corrections taken in.
struct AdamFactors {
  float mean_weight;         // 1 - beta1
  float square_decay;        // beta2
  float square_weight;       // 1 - beta2
  float square_root_divisor; // sqrt(1 - beta2^step)
  float epsilon;
  float step_size;           // learning_rate / (1 - beta1^step)
};

/// A weight with its gradient and the running means of that and of its square: the caller's memory.
struct AdamArrays {
  float* weights;
  const float* gradients;
  float* means;
  float* squares;
  std::size_t size;
};

/// Whether the processor has the instructions.
bool has_adam_step() noexcept;

/// One step of Adam on all arrays, shared out among the pool's threads; the numbers are the same for
/// any number of them.
void adam_step(ThreadPool& pool, std::span<const AdamArrays> arrays, const AdamFactors& factors);

}  // namespace fastdqn
