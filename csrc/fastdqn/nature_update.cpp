#include "fastdqn/nature_update.hpp"

#include <array>
#include <vector>

namespace fastdqn {

QLearningResult nature_update(ThreadPool& pool, NatureNetwork& online, NatureNetwork& target,
                              const Transitions& batch, const UpdateRule& rule,
                              const NatureWeights<float>& gradients,
                              std::span<const AdamArrays> adam, const AdamFactors& factors) {
  const std::size_t rows = batch.states.rows;
  const std::size_t actions = online.shape().num_actions;
  std::vector<float> target_values(rows * actions), values(2 * rows * actions),
      grad(rows * actions);
  target.values_into(pool, std::array{batch.next_states}, target_values.data());
  // With double learning the online network sees both, side by side.
  const std::array stacks{batch.states, batch.next_states};
  online.forward_into(pool, std::span(stacks).first(rule.double_learning ? 2 : 1), rows,
                      values.data());
  const QLearningResult result = q_learning_into(
      {
          .rows = rows,
          .num_actions = actions,
          .q_tm1 = values.data(),
          .a_tm1 = batch.actions,
          .r_t = batch.rewards,
          .discount_t = batch.discounts,
          .q_t_value = target_values.data(),
          .q_t_selector =
              rule.double_learning ? values.data() + rows * actions : target_values.data(),
      },
      rule.loss, grad.data());
  online.step(pool, grad.data(), gradients, adam, factors);
  return result;
}

}  // namespace fastdqn
