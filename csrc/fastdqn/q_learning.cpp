#include "fastdqn/q_learning.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace fastdqn {

std::size_t index_of_largest(const float* values, std::size_t count) noexcept {
  std::size_t best = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (std::isnan(values[i])) return i;
    if (values[i] > values[best]) best = i;
  }
  return best;
}

QLearningResult q_learning_into(const QLearningBatch& batch, LossRule rule, float* grad) {
  const std::size_t actions = batch.num_actions;
  std::fill_n(grad, batch.rows * actions, 0.0F);
  const float scale = rule.mean ? 1.0F / static_cast<float>(batch.rows) : 1.0F;
  double loss = 0, sum = 0;
  for (std::size_t row = 0; row < batch.rows; ++row) {
    const std::int64_t action = batch.a_tm1[row];
    if (action < 0 || static_cast<std::size_t>(action) >= actions) {
      throw std::out_of_range("action " + std::to_string(action) + " of row " +
                              std::to_string(row) + "; expected 0 to " +
                              std::to_string(actions - 1));
    }
    const std::size_t taken = row * actions + static_cast<std::size_t>(action);
    const std::size_t next =
        row * actions + index_of_largest(batch.q_t_selector + row * actions, actions);
    const float target = batch.r_t[row] + batch.discount_t[row] * batch.q_t_value[next];
    const float error = target - batch.q_tm1[taken];
    const float size = std::fabs(error);
    // Huber's gradient is the error inside +-1 and its sign outside: the error is never clipped
    // before it is squared, which would stop learning where it is most wrong.
    if (rule.huber) {
      loss += size < 1 ? 0.5 * error * error : size - 0.5;
      grad[taken] = -scale * (std::isnan(error) ? error : std::clamp(error, -1.0F, 1.0F));
    } else {
      loss += static_cast<double>(error) * error;
      grad[taken] = -scale * 2 * error;
    }
    sum += batch.q_tm1[taken];
  }
  const auto rows = static_cast<double>(batch.rows);
  return {static_cast<float>(rule.mean ? loss / rows : loss), static_cast<float>(sum / rows)};
}

}  // namespace fastdqn
