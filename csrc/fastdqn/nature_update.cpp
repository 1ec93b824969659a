#include "fastdqn/nature_update.hpp"

#include <array>
#include <stdexcept>

namespace fastdqn {

NatureUpdate::NatureUpdate(ThreadPool& pool, NatureNetwork& online, NatureNetwork& target,
                           const Transitions& batch, const UpdateRule& rule)
    : pool_(pool), online_(online), target_(target), batch_(batch), rule_(rule) {}

NatureUpdate::~NatureUpdate() { wait(); }

void NatureUpdate::begin() {
  if (asked_ || finished_) throw std::logic_error("the update has been begun before");
  asked_ = true;
  passes_before_ = online_.passes();
  begun_ = pool_.start([](void* update) { static_cast<NatureUpdate*>(update)->compute(); }, this);
}

void NatureUpdate::wait() {
  if (begun_) pool_.join();
  begun_ = false;
}

void NatureUpdate::compute() noexcept {
  try {
    const std::size_t rows = batch_.states.rows;
    const std::size_t actions = online_.shape().num_actions;
    std::vector<float> target_values(rows * actions), values(2 * rows * actions);
    grad_.resize(rows * actions);
    target_.values_into(pool_, std::array{batch_.next_states}, target_values.data());
    // With double learning the online network sees both, side by side.
    const std::array stacks{batch_.states, batch_.next_states};
    pass_ = online_.forward_into(pool_, std::span(stacks).first(rule_.double_learning ? 2 : 1), rows,
                                 values.data());
    result_ = q_learning_into(
        {
            .rows = rows,
            .num_actions = actions,
            .q_tm1 = values.data(),
            .a_tm1 = batch_.actions,
            .r_t = batch_.rewards,
            .discount_t = batch_.discounts,
            .q_t_value = target_values.data(),
            .q_t_selector =
                rule_.double_learning ? values.data() + rows * actions : target_values.data(),
        },
        rule_.loss, grad_.data());
    computed_ = true;
  } catch (...) {
    failure_ = std::current_exception();
  }
}

QLearningResult NatureUpdate::finish(const NatureWeights<float>& gradients,
                                     std::span<const AdamArrays> adam,
                                     const AdamFactors& factors) {
  if (finished_) throw std::logic_error("the update has been finished before");
  finished_ = true;
  if (begun_) {
    wait();
  } else {
    compute();
  }
  if (failure_) std::rethrow_exception(failure_);
  if (!computed_) throw std::logic_error("the update was begun before this process was forked");
  // Whether the other came before or after its own is a matter of time, and must decide nothing.
  if (asked_ && pass_ != passes_before_ + 1) {
    throw std::logic_error("another forward pass has been made since the update was begun");
  }
  online_.step(pool_, pass_, grad_.data(), gradients, adam, factors);
  return result_;
}

}  // namespace fastdqn
