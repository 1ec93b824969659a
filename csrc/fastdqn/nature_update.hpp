#pragma once
// A whole update of a Nature network by double Q-learning and Adam, from one batch of transitions.

#include <cstdint>
#include <exception>
#include <span>
#include <vector>

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

/// Moves the online network's weights, in two parts: what only reads them, up to the loss and its
/// gradient, may be computed beside the caller. In as few calls as that, so that nothing waits between
/// its parts; the numbers are those of the parts one after the other.
///
/// The batch, the networks and the pool have to stay until `finish`, or until this is gone.
class NatureUpdate {
 public:
  NatureUpdate(ThreadPool& pool, NatureNetwork& online, NatureNetwork& target,
               const Transitions& batch, const UpdateRule& rule);
  ~NatureUpdate();
  NatureUpdate(const NatureUpdate&) = delete;
  NatureUpdate& operator=(const NatureUpdate&) = delete;

  /// Has the pool's own threads begin, while the caller does something else. They do one update at a
  /// time: others begin when they are finished. std::logic_error for a second call, or after `finish`.
  void begin();

  /// Moves the weights. Exceptions as those of the parts; std::logic_error for a second call, and
  /// where the online network has made another forward pass since `begin`.
  QLearningResult finish(const NatureWeights<float>& gradients, std::span<const AdamArrays> adam,
                         const AdamFactors& factors);

 private:
  void compute() noexcept;
  void wait();

  ThreadPool& pool_;
  NatureNetwork& online_;
  NatureNetwork& target_;
  const Transitions batch_;
  const UpdateRule rule_;
  bool asked_ = false;  // to begin
  bool begun_ = false;
  bool computed_ = false;
  bool finished_ = false;

  std::vector<float> grad_;  // [rows, num_actions], the loss's by the values of the states
  std::uint64_t pass_ = 0;   // of the online network, that it belongs to
  std::uint64_t passes_before_ = 0;  // when it was begun
  QLearningResult result_{};
  std::exception_ptr failure_;
};

}  // namespace fastdqn
