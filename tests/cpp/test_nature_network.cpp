// Values and gradients of the Nature network against slow, obvious loops in double.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <new>
#include <vector>

#include "check.hpp"
#include "convolution_support.hpp"
#include "fastdqn/nature_network.hpp"
#include "fastdqn/optimizer_steps.hpp"
#include "fastdqn/rng.hpp"

using namespace fastdqn;

namespace {

constexpr std::size_t kHidden = NatureNetwork::kHiddenUnits;

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return state_ >> 33;
  }
  float symmetric(float bound) {
    return bound * (static_cast<float>(next()) / static_cast<float>(std::uint64_t{1} << 30) - 1);
  }

 private:
  std::uint64_t state_;
};

/// What the processor rounds to, ties to even.
float to_bfloat16(float number) {
  const auto bits = std::bit_cast<std::uint32_t>(number);
  return std::bit_cast<float>((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000U);
}

struct Aligned {
  explicit Aligned(std::size_t size)
      : data(static_cast<float*>(::operator new[](size * sizeof(float), std::align_val_t{64}))),
        size_(size) {
    std::fill_n(data, size, 0.0F);
  }
  ~Aligned() { ::operator delete[](data, std::align_val_t{64}); }
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
  float* const data;
  const std::size_t size_;
};

/// Weights or gradients, in one piece each.
struct Arrays {
  explicit Arrays(const NatureSizes& sizes) {
    for (std::size_t layer = 0; layer < 3; ++layer) add(sizes.filters[layer]);
    for (std::size_t layer = 0; layer < 3; ++layer) add(sizes.biases[layer]);
    add(sizes.hidden);
    add(sizes.hidden_bias);
    add(sizes.values);
    add(sizes.values_bias);
  }
  void add(std::size_t size) { all.push_back(std::make_unique<Aligned>(size)); }
  template <class Float>
  NatureWeights<Float> view() const {
    return {{all[0]->data, all[1]->data, all[2]->data},
            {all[3]->data, all[4]->data, all[5]->data},
            all[6]->data,
            all[7]->data,
            all[8]->data,
            all[9]->data};
  }
  std::vector<std::unique_ptr<Aligned>> all;
};

using Doubles = std::vector<double>;

/// The network as it is defined, for one stack; `round` is what numbers are rounded to.
struct Reference {
  const NatureShape& shape;
  const Arrays& weights;
  bool narrow;

  double round(double number) const {
    return narrow ? static_cast<double>(to_bfloat16(static_cast<float>(number))) : number;
  }

  std::vector<Convolution> layers() const {
    const std::size_t pad = 2 * shape.first_padding;
    const Convolution first(shape.height + pad, shape.width + pad, shape.stack, 32, 8, 4);
    const Convolution second(first.out_height, first.out_width, 32, 64, 4, 2);
    return {first, second, Convolution(second.out_height, second.out_width, 64, 64, 3, 1)};
  }

  double filter(std::size_t layer, std::size_t index) const {
    const double weight = static_cast<double>(weights.all[layer]->data[index]);
    return round(layer == 0 ? static_cast<double>(static_cast<float>(weight) * (1.0F / 255))
                            : weight);
  }

  /// Values; where there is a gradient by them, adds those by the weights to `gradients`.
  Doubles run(const std::uint8_t* stack, const float* grad, std::vector<Doubles>* gradients) const {
    const auto convs = layers();
    std::vector<Doubles> x(4);
    x[0].assign(convs[0].inputs(), 0.0);
    for (std::size_t y = 0; y < shape.height; ++y) {
      for (std::size_t i = 0; i < shape.width * shape.stack; ++i) {
        x[0][(y + shape.first_padding) * convs[0].in_width * shape.stack +
             shape.first_padding * shape.stack + i] = stack[y * shape.width * shape.stack + i];
      }
    }
    for (std::size_t layer = 0; layer < 3; ++layer) {
      const Convolution& conv = convs[layer];
      Doubles sums(conv.outputs());
      each_product(conv, [&](std::size_t to, std::size_t from, std::size_t weight) {
        sums[to] += x[layer][from] * filter(layer, weight);
      });
      for (std::size_t i = 0; i < sums.size(); ++i) {
        const double bias =
            static_cast<double>(weights.all[3 + layer]->data[i % conv.out_channels]);
        sums[i] = round(std::max(sums[i] + bias, 0.0));
      }
      x[layer + 1] = sums;
    }
    const std::size_t features = x[3].size();
    Doubles units(kHidden);
    for (std::size_t o = 0; o < kHidden; ++o) {
      double sum = static_cast<double>(weights.all[7]->data[o]);
      for (std::size_t i = 0; i < features; ++i) {
        sum += x[3][i] * round(static_cast<double>(weights.all[6]->data[o * features + i]));
      }
      units[o] = std::max(sum, 0.0);
    }
    Doubles values(shape.num_actions);
    for (std::size_t a = 0; a < shape.num_actions; ++a) {
      values[a] = static_cast<double>(weights.all[9]->data[shape.shared_last_bias ? 0 : a]);
      for (std::size_t i = 0; i < kHidden; ++i) {
        values[a] += units[i] * static_cast<double>(weights.all[8]->data[a * kHidden + i]);
      }
    }
    if (gradients == nullptr) return values;

    auto& g = *gradients;
    Doubles grad_units(kHidden);
    for (std::size_t a = 0; a < shape.num_actions; ++a) {
      const auto d = static_cast<double>(grad[a]);
      g[9][shape.shared_last_bias ? 0 : a] += d;
      for (std::size_t i = 0; i < kHidden; ++i) {
        g[8][a * kHidden + i] += d * units[i];
        grad_units[i] += d * static_cast<double>(weights.all[8]->data[a * kHidden + i]);
      }
    }
    Doubles grad_x(features);
    for (std::size_t o = 0; o < kHidden; ++o) {
      const double d = units[o] > 0 ? grad_units[o] : 0.0;
      g[7][o] += d;
      for (std::size_t i = 0; i < features; ++i) {
        g[6][o * features + i] += round(d) * x[3][i];
        grad_x[i] +=
            round(d) * round(static_cast<double>(weights.all[6]->data[o * features + i]));
      }
    }
    for (std::size_t layer = 3; layer-- > 0;) {
      const Convolution& conv = convs[layer];
      for (std::size_t i = 0; i < grad_x.size(); ++i) {
        grad_x[i] = x[layer + 1][i] > 0 ? round(grad_x[i]) : 0.0;
        g[3 + layer][i % conv.out_channels] += grad_x[i];
      }
      Doubles next(conv.inputs());
      each_product(conv, [&](std::size_t to, std::size_t from, std::size_t weight) {
        g[layer][weight] += grad_x[to] * x[layer][from] * (layer == 0 ? 1.0 / 255 : 1.0);
        next[from] += grad_x[to] * filter(layer, weight);
      });
      grad_x = next;
    }
    return values;
  }
};

template <class A, class B>
double difference(const A& actual, const B& expected, std::size_t size) {
  double squares = 0;
  double norm = 0;
  for (std::size_t i = 0; i < size; ++i) {
    squares += std::pow(static_cast<double>(actual[i]) - expected[i], 2);
    norm += std::pow(expected[i], 2);
  }
  return std::sqrt(squares / norm);
}

void check_network(const NatureShape& shape, NatureNumbers numbers, std::size_t rows,
                   std::size_t learned) {
  if (!NatureNetwork::is_available(numbers)) {
    std::puts("not on this processor");
    return;
  }
  const bool narrow = numbers == NatureNumbers::kBfloat16;
  // Sums in another order; and, where numbers keep 8 bits, what was rounded to one side here and to
  // the other there. By minimal filtering other numbers are rounded than in the reference, which turns
  // a few ReLUs over: how exact a layer is, test_tiled_convolution.cpp sees.
  const bool in_tiles = shape.stack % 4 == 0 && amx_kernels() == nullptr;
  const double tolerance = narrow ? (in_tiles ? 0.25 : 5e-3) : 2e-6;
  Random random(rows);
  // Sizes come before weights; nothing is read yet.
  const NatureSizes sizes =
      NatureNetwork(shape, numbers, NatureWeights<const float>{}).sizes();
  const Arrays weights(sizes);
  for (const auto& array : weights.all) {
    const float bound = array->size_ > 100'000 ? 0.03F : array->size_ > 5'000 ? 0.06F : 0.1F;
    for (std::size_t i = 0; i < array->size_; ++i) array->data[i] = random.symmetric(bound);
  }
  const std::size_t frame = shape.height * shape.width * shape.stack;
  std::vector<std::uint8_t> stacks(rows * frame);
  for (auto& byte : stacks) byte = static_cast<std::uint8_t>(random.next());
  std::vector<float> grad(learned * shape.num_actions);
  for (float& number : grad) number = random.symmetric(1.0F);

  const Reference reference{shape, weights, narrow};
  std::vector<Doubles> expected;
  for (const auto& array : weights.all) expected.emplace_back(array->size_);
  Doubles expected_values;
  for (std::size_t row = 0; row < rows; ++row) {
    const bool learns = row < learned;
    const Doubles values =
        reference.run(stacks.data() + row * frame,
                      learns ? grad.data() + row * shape.num_actions : nullptr,
                      learns ? &expected : nullptr);
    expected_values.insert(expected_values.end(), values.begin(), values.end());
  }

  std::vector<float> first_values;
  std::vector<std::vector<float>> first_gradients;
  for (const std::size_t threads : {1U, 2U, 3U}) {
    ThreadPool pool(threads);
    NatureNetwork network(shape, numbers, weights.view<const float>());
    network.refresh(pool);
    const Arrays gradients(sizes);
    for (const auto& array : gradients.all) std::fill_n(array->data, array->size_, NAN);
    std::vector<float> values(rows * shape.num_actions);
    std::vector<float> alone(shape.num_actions);
    const std::size_t cut = rows / 3;
    const std::array parts{Stacks{stacks.data(), cut},
                           Stacks{stacks.data() + cut * frame, rows - cut}};
    CHECK_THROWS(network.backward_into(pool, grad.data(), gradients.view<float>()),
                 std::logic_error, "kept");
    network.forward_into(pool, parts, learned, values.data());
    // Values in between change nothing.
    network.values_into(pool, std::array{Stacks{stacks.data() + (rows - 1) * frame, 1}},
                        alone.data());
    CHECK(difference(alone, std::vector<float>(values.end() - static_cast<long>(alone.size()),
                                               values.end()), alone.size()) < tolerance);
    network.backward_into(pool, grad.data(), gradients.view<float>());

    CHECK(difference(values, expected_values, values.size()) < tolerance);
    for (std::size_t k = 0; k < expected.size(); ++k) {
      const double apart = difference(gradients.all[k]->data, expected[k], expected[k].size());
      if (!(apart < tolerance)) std::fprintf(stderr, "gradient %zu: %g\n", k, apart);
      CHECK(apart < tolerance);
    }
    // Not one bit depends on the number of threads.
    std::vector<std::vector<float>> copies;
    for (const auto& array : gradients.all) {
      copies.emplace_back(array->data, array->data + array->size_);
    }
    if (threads == 1) {
      first_values = values;
      first_gradients = copies;
    }
    CHECK(values == first_values);
    CHECK(copies == first_gradients);
  }
}

/// A step in one against its parts one after the other: the same bits.
void check_step(const NatureShape& shape, NatureNumbers numbers, std::size_t rows) {
  if (!NatureNetwork::is_available(numbers) || !has_adam_step()) {
    std::puts("not on this processor");
    return;
  }
  const NatureSizes sizes =
      NatureNetwork(shape, numbers, NatureWeights<const float>{}).sizes();
  const AdamFactors factors{.mean_weight = 0.1F, .square_decay = 0.99F, .square_weight = 0.01F,
                            .square_root_divisor = 0.3F, .epsilon = 1e-6F, .step_size = 0.01F};
  std::vector<std::vector<float>> results;
  for (const bool at_once : {false, true}) {
    ThreadPool pool(2);
    Random random(rows);
    const Arrays weights(sizes), gradients(sizes), means(sizes), squares(sizes);
    for (const auto& array : weights.all) {
      for (std::size_t i = 0; i < array->size_; ++i) array->data[i] = random.symmetric(0.05F);
    }
    std::vector<std::uint8_t> stacks(rows * shape.height * shape.width * shape.stack);
    for (auto& byte : stacks) byte = static_cast<std::uint8_t>(random.next());
    std::vector<float> grad(rows * shape.num_actions);
    for (float& number : grad) number = random.symmetric(1.0F);
    std::vector<AdamArrays> adam;
    for (const std::size_t k : {0U, 3U, 1U, 4U, 2U, 5U, 6U, 7U, 8U, 9U}) {
      adam.push_back({weights.all[k]->data, gradients.all[k]->data, means.all[k]->data,
                      squares.all[k]->data, weights.all[k]->size_});
    }
    NatureNetwork network(shape, numbers, weights.view<const float>());
    network.refresh(pool);
    std::vector<float> values(rows * shape.num_actions);
    const std::array parts{Stacks{stacks.data(), rows}};
    for (int step = 0; step < 2; ++step) {
      const std::uint64_t pass = network.forward_into(pool, parts, rows, values.data());
      if (at_once) {
        network.step(pool, pass, grad.data(), gradients.view<float>(), adam, factors);
      } else {
        network.backward_into(pool, grad.data(), gradients.view<float>());
        adam_step(pool, adam, factors);
        network.refresh(pool);
      }
    }
    network.values_into(pool, parts, values.data());
    for (const Arrays* arrays : {&weights, &means, &squares}) {
      for (const auto& array : arrays->all) {
        values.insert(values.end(), array->data, array->data + array->size_);
      }
    }
    results.push_back(values);
    std::swap(adam[0], adam[2]);
    const std::uint64_t pass = network.forward_into(pool, parts, rows, values.data());
    CHECK_THROWS(network.step(pool, pass, grad.data(), gradients.view<float>(), adam, factors),
                 std::invalid_argument, "not one of the network's weights and gradients");
    CHECK_THROWS(network.step(pool, pass - 1, grad.data(), gradients.view<float>(), adam, factors),
                 std::logic_error, "another forward pass");
    network.values_into(pool, std::array<Stacks, 0>{}, values.data());  // of no rows, none
  }
  CHECK(results[0] == results[1]);
}

}  // namespace

int main() {
  const NatureShape small{.stack = 4, .height = 36, .width = 44, .first_padding = 0,
                          .num_actions = 5, .shared_last_bias = false};
  const NatureShape padded{.stack = 2, .height = 39, .width = 37, .first_padding = 1,
                           .num_actions = 18, .shared_last_bias = true};
  const NatureShape deep{.stack = 10, .height = 36, .width = 36, .first_padding = 0,
                         .num_actions = 3, .shared_last_bias = false};
  const NatureShape wide{.stack = 4, .height = 75, .width = 83, .first_padding = 0,
                         .num_actions = 2, .shared_last_bias = false};
  const NatureShape whole{.stack = 4, .height = 84, .width = 84, .first_padding = 0,
                          .num_actions = 4, .shared_last_bias = false};
  for (const NatureNumbers numbers : {NatureNumbers::kFloat32, NatureNumbers::kBfloat16}) {
    check_network(small, numbers, 1, 1);
    check_network(small, numbers, 7, 5);
    check_network(padded, numbers, 4, 4);
    check_network(deep, numbers, 3, 2);
    check_network(whole, numbers, 3, 2);
    check_step(small, numbers, 1);
    check_step(padded, numbers, 5);
    check_step(whole, numbers, 4);
    // More rows than a tile has, no multiple of them; lines of 17 and 19 outputs; no number of pairs
    // that a tile is filled by.
    check_network(wide, numbers, 3, 3);
    check_network(small, numbers, 50, 37);
    check_network(padded, numbers, 20, 17);
    check_step(small, numbers, 33);
    check_step(wide, numbers, 3);
  }
  NatureShape wrong = small;
  wrong.stack = 3;
  const auto make = [](const NatureShape& shape) {
    NatureNetwork(shape, NatureNumbers::kFloat32, NatureWeights<const float>{});
  };
  CHECK_THROWS(make(wrong), std::invalid_argument, "stack is 3; expected an even number");
  wrong = small;
  wrong.height = 35;
  CHECK_THROWS(make(wrong), std::invalid_argument, "frames of 35 by 44 pixels");
  wrong = small;
  wrong.num_actions = 0;
  CHECK_THROWS(make(wrong), std::invalid_argument, "num_actions");
  return 0;
}
