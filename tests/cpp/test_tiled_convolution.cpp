// A layer by minimal filtering against the loops that define a convolution, in double.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "check.hpp"
#include "convolution_support.hpp"
#include "fastdqn/nature_kernels.hpp"
#include "fastdqn/rng.hpp"
#include "fastdqn/tiled_convolution.hpp"
#include "fastdqn/winograd.hpp"

using namespace fastdqn;

namespace {

/// What filtering promises, for every input and every tap alone.
template <class Filter>
void check_filter() {
  for (std::size_t place = 0; place < Filter::kPoints; ++place) {
    for (std::size_t tap = 0; tap < Filter::kTaps; ++tap) {
      for (std::size_t output = 0; output < Filter::kOutputs; ++output) {
        double sum = 0;
        for (std::size_t point = 0; point < Filter::kPoints; ++point) {
          sum += static_cast<double>(Filter::kOutput[output][point]) *
                 static_cast<double>(Filter::kWeight[point][tap]) *
                 static_cast<double>(Filter::kInput[point][place]);
        }
        CHECK(std::abs(sum - (place == output + tap)) < 1e-6);
      }
    }
  }
}

struct Random {
  std::uint64_t state = 1;
  double next() {  // from 0 to 1
    state = state * 6364136223846793005U + 1442695040888963407U;
    return static_cast<double>(state >> 40) / static_cast<double>(1 << 24);
  }
};

/// Samples as numbers of either kind, and what these are.
struct Samples {
  std::vector<std::vector<std::byte>> memory;
  std::vector<std::vector<double>> values;

  Samples(std::size_t count, std::size_t size, bool narrow, double low, double high, Random& random)
      : memory(count), values(count) {
    for (std::size_t i = 0; i < count; ++i) {
      memory[i].resize(size * (narrow ? 2 : 4));
      for (std::size_t k = 0; k < size; ++k) {
        auto bits = std::bit_cast<std::uint32_t>(
            static_cast<float>(low + (high - low) * random.next()));
        if (narrow) bits &= 0xffff0000U;
        values[i].push_back(static_cast<double>(std::bit_cast<float>(bits)));
        const std::uint32_t stored = narrow ? bits >> 16 : bits;
        std::memcpy(memory[i].data() + k * (narrow ? 2 : 4), &stored, narrow ? 2 : 4);
      }
    }
  }
  std::vector<const std::byte*> read() const {
    std::vector<const std::byte*> pointers;
    for (const auto& sample : memory) pointers.push_back(sample.data());
    return pointers;
  }
  std::vector<std::byte*> write() {
    std::vector<std::byte*> pointers;
    for (auto& sample : memory) pointers.push_back(sample.data());
    return pointers;
  }
  std::vector<double> stored(std::size_t i, bool narrow) const {
    std::vector<double> numbers(values[i].size());
    for (std::size_t k = 0; k < numbers.size(); ++k) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, memory[i].data() + k * (narrow ? 2 : 4), narrow ? 2 : 4);
      numbers[k] = static_cast<double>(std::bit_cast<float>(narrow ? bits << 16 : bits));
    }
    return numbers;
  }
};

template <class Numbers>
double difference(const Numbers& actual, const std::vector<double>& expected) {
  double squares = 0;
  double norm = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    squares += std::pow(static_cast<double>(actual[i]) - expected[i], 2);
    norm += std::pow(expected[i], 2);
  }
  return std::sqrt(squares / norm);
}

void check_layer(const Convolution& conv, const TileKernels& kernels, const NatureKernels& others,
                 std::size_t count, bool bytes) {
  CHECK(TiledConvolution::covers(conv, kernels));
  const bool narrow = kernels.numbers == 2;
  const double tolerance = narrow ? 1e-2 : 2e-6;
  Random random;
  const float scale = bytes ? 1.0F / 255 : 1.0F;
  std::vector<float> weights(conv.weights()), biases(conv.out_channels);
  for (float& weight : weights) weight = static_cast<float>(random.next() - 0.5);
  for (float& bias : biases) bias = static_cast<float>(random.next() - 0.5);
  Samples x(count, conv.inputs(), narrow, 0.01, 1, random);
  std::vector<std::vector<std::uint8_t>> images(count);
  if (bytes) {
    for (std::size_t i = 0; i < count; ++i) {
      for (double& value : x.values[i]) {
        images[i].push_back(static_cast<std::uint8_t>(256 * random.next()));
        value = images[i].back();
      }
    }
  }
  Samples y(count, conv.outputs(), narrow, 0, 0, random);
  Samples grad(count, conv.outputs(), narrow, -1, 1, random);
  Samples grad_x(count, conv.inputs(), narrow, 0, 0, random);

  TiledConvolution layer(conv, kernels, scale);
  for (const std::size_t part : {0U, 1U, 2U}) {
    layer.pack(weights.data(), part, 3);
    layer.pack_across(weights.data(), part, 3);
  }
  TiledConvolution::Scratch scratch;
  layer.reserve(scratch);
  std::vector<float> gradient(conv.weights(), NAN);
  const auto grads = grad.read();
  const auto inputs = x.read();
  for (std::size_t first = 0; first < count; first += TiledConvolution::kMaxSamples) {
    const std::size_t size = std::min(count - first, TiledConvolution::kMaxSamples);
    const auto some = [&](auto&& all) {
      const auto begin = all.begin() + static_cast<long>(first);
      return std::vector(begin, begin + static_cast<long>(size));
    };
    if (bytes) {
      std::vector<const std::uint8_t*> pointers;
      for (const auto& image : images) pointers.push_back(image.data());
      layer.forward_bytes(some(pointers), biases.data(), some(y.write()), scratch);
    } else {
      layer.forward(some(inputs), biases.data(), some(y.write()), scratch);
    }
    if (!bytes) layer.input_gradient(some(grads), some(inputs), some(grad_x.write()), others, scratch);
  }
  const auto input = [&](std::size_t sample, std::size_t) -> const void* {
    return bytes ? static_cast<const void*>(images[sample].data()) : inputs[sample];
  };
  for (std::size_t part = 0; part < layer.gradient_parts(); ++part) {
    layer.weight_gradient(count, bytes, input, [&](std::size_t sample) { return grads[sample]; },
                          part, gradient.data(), scratch);
  }

  std::vector<double> expected_gradient(conv.weights());
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<double> outputs(conv.outputs()), expected_grad_x(conv.inputs());
    each_product(conv, [&](std::size_t to, std::size_t from, std::size_t weight) {
      const auto factor = static_cast<double>(weights[weight]);
      outputs[to] += x.values[i][from] * factor * static_cast<double>(scale);
      expected_grad_x[from] += grad.values[i][to] * factor * static_cast<double>(scale);
      expected_gradient[weight] += grad.values[i][to] * x.values[i][from];
    });
    for (std::size_t k = 0; k < outputs.size(); ++k) {
      outputs[k] = std::max(outputs[k] + static_cast<double>(biases[k % conv.out_channels]), 0.0);
    }
    CHECK(difference(y.stored(i, narrow), outputs) < tolerance);
    if (!bytes) CHECK(difference(grad_x.stored(i, narrow), expected_grad_x) < tolerance);
  }
  CHECK(difference(gradient, expected_gradient) < tolerance);
}

void check_layers(const LayerTileKernels* kernels, const NatureKernels* others) {
  if (kernels == nullptr) {
    std::puts("not on this processor");
    return;
  }
  // The layers of whole frames, and edges where tiles are cut off by one, two and three outputs.
  for (const std::size_t size : {84U, 36U, 40U, 44U, 48U, 55U}) {
    const Convolution first(size, size + 8, 4, 32, 8, 4);
    check_layer(first, *(*kernels)[0], *others, size == 84 ? 2 : 3, true);
    const Convolution second(first.out_height, first.out_width, 32, 64, 4, 2);
    check_layer(second, *(*kernels)[1], *others, 5, false);
    const Convolution third(second.out_height, second.out_width, 64, 64, 3, 1);
    check_layer(third, *(*kernels)[2], *others, 6, false);
  }
  check_layer(Convolution(36, 36, 8, 32, 8, 4), *(*kernels)[0], *others, 1, true);
  CHECK(!TiledConvolution::covers(Convolution(36, 36, 2, 32, 8, 4), *(*kernels)[0]));
  CHECK(!TiledConvolution::covers(Convolution(36, 36, 4, 32, 8, 4), *(*kernels)[2]));
}

}  // namespace

int main() {
  check_filter<Winograd<2, 3>>();
  check_filter<Winograd<3, 2>>();
  check_filter<Winograd<4, 2>>();
  check_filter<Winograd<4, 3>>();
  check_layers(float32_tile_kernels(), float32_kernels());
  check_layers(bfloat16_tile_kernels(), bfloat16_kernels());
  return 0;
}
