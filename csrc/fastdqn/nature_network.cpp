#include "fastdqn/nature_network.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "fastdqn/q_learning.hpp"

namespace fastdqn {

namespace {

/// Bytes are inputs up to 255, and the weights are those of inputs up to 1.
constexpr float kInputScale = 1.0F / 255;
constexpr float input_scale(std::size_t layer) noexcept { return layer == 0 ? kInputScale : 1.0F; }

constexpr std::size_t kHidden = NatureNetwork::kHiddenUnits;
constexpr std::size_t kDenseOutputs = 16;  // of a call of dense_into
constexpr std::size_t kDenseInputs = 64;   // of a call of dense_input_gradient_into
constexpr std::size_t kValuesInputs = 16;  // of a call of values_gradient_into
constexpr std::size_t kRefreshParts = 8;   // that each array of weights is cut into
constexpr std::size_t kFilterParts = 4;    // that a convolution's gradient is cut into
constexpr std::size_t kStepParts = 43;     // that the hidden layer's step is cut into
constexpr std::size_t kStepInputs = 448;   // of a block of it, a multiple of kDenseInputs
constexpr std::size_t kTiledRows = TiledConvolution::kMaxSamples;
constexpr std::size_t kHiddenArray = 6;    // of all arrays of weights

const NatureKernels* kernels_for(NatureNumbers numbers) noexcept {
  if (numbers == NatureNumbers::kFloat32) return float32_kernels();
  return amx_kernels() != nullptr ? amx_kernels() : bfloat16_kernels();
}

/// Null where there are none, or others compute faster without them.
const LayerTileKernels* tile_kernels_for(const NatureKernels* kernels) noexcept {
  if (kernels == float32_kernels()) return float32_tile_kernels();
  return kernels == bfloat16_kernels() ? bfloat16_tile_kernels() : nullptr;
}

const NatureShape& checked(const NatureShape& shape) {
  if (shape.stack == 0 || shape.stack % 2 != 0) {
    throw std::invalid_argument("stack is " + std::to_string(shape.stack) +
                                "; expected an even number");
  }
  const std::size_t least = 36;
  if (shape.height + 2 * shape.first_padding < least ||
      shape.width + 2 * shape.first_padding < least) {
    throw std::invalid_argument("frames of " + std::to_string(shape.height) + " by " +
                                std::to_string(shape.width) +
                                " pixels are too small: expected 36 by 36 or more");
  }
  if (shape.num_actions == 0) throw std::invalid_argument("num_actions is 0; expected 1 or more");
  return shape;
}

std::size_t ceil_divide(std::size_t a, std::size_t b) noexcept { return (a + b - 1) / b; }

/// Into how many groups of at most kTiledRows to cut rows, so that all threads have as many to do.
std::size_t tiled_groups(std::size_t rows, std::size_t threads) noexcept {
  const std::size_t rounds = ceil_divide(rows, threads * kTiledRows);
  return std::min(rows, rounds * threads);
}

}  // namespace

Convolution::Convolution(std::size_t in_height_, std::size_t in_width_, std::size_t in_channels_,
                         std::size_t out_channels_, std::size_t kernel_, std::size_t stride_)
    : in_height(in_height_),
      in_width(in_width_),
      in_channels(in_channels_),
      out_height((in_height_ - kernel_) / stride_ + 1),
      out_width((in_width_ - kernel_) / stride_ + 1),
      out_channels(out_channels_),
      kernel(kernel_),
      stride(stride_) {
  for (std::size_t y = 0; y < out_height; ++y) {
    for (std::size_t x = 0; x < out_width; ++x) {
      offsets.push_back((y * in_width + x) * stride * in_channels);
    }
  }
}

bool NatureNetwork::is_available(NatureNumbers numbers) noexcept {
  return kernels_for(numbers) != nullptr;
}

NatureNetwork::NatureNetwork(const NatureShape& shape, NatureNumbers numbers,
                             const NatureWeights<const float>& weights)
    : shape_(checked(shape)),
      kernels_(kernels_for(numbers)),
      weights_(weights),
      convolutions_([&] {
        const Convolution first(shape.height + 2 * shape.first_padding,
                                shape.width + 2 * shape.first_padding, shape.stack, 32, 8, 4);
        const Convolution second(first.out_height, first.out_width, 32, 64, 4, 2);
        return std::array{first, second,
                          Convolution(second.out_height, second.out_width, 64, 64, 3, 1)};
      }()),
      features_(convolutions_[2].outputs()) {
  if (kernels_ == nullptr) throw std::logic_error("this processor has no instructions for them");
  const LayerTileKernels* tile_kernels = tile_kernels_for(kernels_);
  if (tile_kernels != nullptr) {
    bool covered = true;
    for (std::size_t layer = 0; layer < 3; ++layer) {
      covered &= TiledConvolution::covers(convolutions_[layer], *(*tile_kernels)[layer]);
    }
    for (std::size_t layer = 0; covered && layer < 3; ++layer) {
      tiled_.emplace_back(convolutions_[layer], *(*tile_kernels)[layer], input_scale(layer));
    }
  }
  for (std::size_t layer = 0; layer < 3; ++layer) {
    by_depth_[layer].reserve(numbers_nbytes(convolutions_[layer].weights()));
    if (layer != 0 && tiled_.empty()) {
      by_place_[layer].reserve(numbers_nbytes(convolutions_[layer].weights()));
    }
  }
  if (kernels_->numbers == 2) hidden_.reserve(numbers_nbytes(kHidden * features_));
}

NatureSizes NatureNetwork::sizes() const noexcept {
  NatureSizes sizes{};
  for (std::size_t layer = 0; layer < 3; ++layer) {
    sizes.filters[layer] = convolutions_[layer].weights();
    sizes.biases[layer] = convolutions_[layer].out_channels;
  }
  sizes.hidden = kHidden * features_;
  sizes.hidden_bias = kHidden;
  sizes.values = shape_.num_actions * kHidden;
  sizes.values_bias = shape_.shared_last_bias ? 1 : shape_.num_actions;
  return sizes;
}

const void* NatureNetwork::hidden_weights() const noexcept {
  if (kernels_->numbers == 1) return weights_.hidden;
  return hidden_.at(0);
}

void NatureNetwork::refresh(ThreadPool& pool) {
  const std::unique_lock exclusive(weights_mutex_);
  take_over(pool, true);
}

void NatureNetwork::take_over(ThreadPool& pool, bool hidden_too) {
  const std::size_t layers = convolutions_.size();
  // Every layer by depth; for gradients of inputs, all but the first; and the hidden layer, which has
  // by far the most.
  const std::size_t tiles = layers;
  const std::size_t across = tiles + (tiled_.empty() ? 0 : layers);
  const std::size_t hidden = across + layers - 1;
  const std::size_t arrays = hidden + (hidden_too && kernels_->numbers == 2 ? 2 : 0);
  pool.run(arrays * kRefreshParts, [&](std::size_t item, std::size_t) {
    const std::size_t array = item / kRefreshParts;
    const std::size_t part = item % kRefreshParts;
    const auto range = [&](std::size_t count, auto&& body) {
      body(part_begin(part, kRefreshParts, count), part_begin(part + 1, kRefreshParts, count));
    };
    if (array < tiles) {
      const Convolution& shape = convolutions_[array];
      range(shape.depth() / kernels_->numbers, [&](std::size_t begin, std::size_t end) {
        kernels_->pack_by_depth_into(weights_.filters[array], shape.out_channels, shape.depth(),
                                     input_scale(array), kernels_->packed_columns(shape), begin,
                                     end, by_depth_[array].at(0));
      });
    } else if (array < across) {
      const std::size_t layer = array - tiles;
      tiled_[layer].pack(weights_.filters[layer], part, kRefreshParts);
    } else if (array < hidden) {
      const std::size_t layer = array - across + 1;
      const Convolution& shape = convolutions_[layer];
      if (!tiled_.empty()) {
        tiled_[layer].pack_across(weights_.filters[layer], part, kRefreshParts);
        return;
      }
      range(shape.kernel * shape.kernel, [&](std::size_t begin, std::size_t end) {
        kernels_->pack_by_place_into(weights_.filters[layer], shape.out_channels,
                                     shape.kernel * shape.kernel, shape.in_channels, begin, end,
                                     by_place_[layer].at(0));
      });
    } else {
      const std::size_t half = array - hidden;
      range(kHidden / 2, [&](std::size_t begin, std::size_t end) {
        const std::size_t first = (half * kHidden / 2 + begin) * features_;
        kernels_->round_into(weights_.hidden + first, (end - begin) * features_,
                             hidden_.at(numbers_nbytes(first)));
      });
    }
  });
}

void NatureNetwork::values_into(ThreadPool& pool, std::span<const Stacks> stacks, float* values) {
  const std::lock_guard lock(values_mutex_);
  const std::shared_lock shared(weights_mutex_);
  compute(pool, stacks, 0, valued_, values);
}

void NatureNetwork::actions_into(ThreadPool& pool, std::span<const Stacks> stacks,
                                 std::int64_t* actions) {
  const std::lock_guard lock(values_mutex_);
  std::size_t rows = 0;
  for (const Stacks& part : stacks) rows += part.rows;
  values_.resize(rows * shape_.num_actions);
  {
    const std::shared_lock shared(weights_mutex_);
    compute(pool, stacks, 0, valued_, values_.data());
  }
  const float* row = values_.data();
  for (std::size_t i = 0; i < rows; ++i, row += shape_.num_actions) {
    actions[i] = static_cast<std::int64_t>(index_of_largest(row, shape_.num_actions));
  }
}

std::size_t NatureNetwork::learned() {
  const std::lock_guard lock(learning_mutex_);
  return learned_;
}

std::uint64_t NatureNetwork::passes() {
  const std::lock_guard lock(learning_mutex_);
  return passes_;
}

std::uint64_t NatureNetwork::forward_into(ThreadPool& pool, std::span<const Stacks> stacks,
                                          std::size_t learned, float* values) {
  const std::lock_guard lock(learning_mutex_);
  const std::shared_lock shared(weights_mutex_);
  learned_ = 0;
  ++passes_;
  for (std::size_t layer = 0; layer < 2; ++layer) {
    kept_[layer].reserve(numbers_nbytes(learned * convolutions_[layer].outputs()));
  }
  compute(pool, stacks, learned, rows_, values);
  learned_ = learned;
  return passes_;
}

void NatureNetwork::compute(ThreadPool& pool, std::span<const Stacks> stacks, std::size_t learned,
                            Rows& rows, float* values) {
  rows.stacks.clear();
  for (const Stacks& part : stacks) {
    for (std::size_t row = 0; row < part.rows; ++row) {
      rows.stacks.push_back(part.data + row * shape_.height * shape_.width * shape_.stack);
    }
  }
  const std::size_t count = rows.stacks.size();
  if (count == 0 && learned == 0) return;
  if (learned > count) {
    throw std::invalid_argument("learned is " + std::to_string(learned) + " of " +
                                std::to_string(count) + " rows");
  }
  rows.third.reserve(numbers_nbytes(count * features_));
  rows.units.reserve(count * kHidden * sizeof(float));
  if (!tiled_.empty() && (learned != 0 || count >= few_rows())) {
    convolve_in_tiles(pool, learned, rows);
  } else if (learned == 0 && count < pool.threads()) {
    convolve_few(pool, rows);
  } else {
    convolve_many(pool, learned, rows);
  }
  pool.run(kHidden / kDenseOutputs, [&](std::size_t block, std::size_t) {
    kernels_->dense_into(rows.third.at(0), hidden_weights(), weights_.hidden_bias, count, features_,
                         kHidden, block * kDenseOutputs, (block + 1) * kDenseOutputs,
                         rows.units.at<float>(0));
  });
  for (std::size_t i = 0; i < count * shape_.num_actions; ++i) {
    values[i] = weights_.values_bias[shape_.shared_last_bias ? 0 : i % shape_.num_actions];
  }
  kernels_->values_into(rows.units.at<float>(0), weights_.values, count, kHidden,
                        shape_.num_actions, values);
}

void NatureNetwork::convolve_many(ThreadPool& pool, std::size_t learned, Rows& rows) {
  rows.scratch.resize(std::max(rows.scratch.size(), pool.threads()));
  for (Scratch& scratch : rows.scratch) reserve_for_rows(scratch, 1);
  pool.run(rows.stacks.size(), [&](std::size_t row, std::size_t thread) {
    Scratch& scratch = rows.scratch[thread];
    const bool keep = row < learned;
    const auto place = [&](std::size_t layer, Buffer& buffer) {
      const std::size_t nbytes = numbers_nbytes(row * convolutions_[layer].outputs());
      return keep ? kept_[layer].at(nbytes) : buffer.at(0);
    };
    std::byte* first = place(0, scratch.first);
    std::byte* second = place(1, scratch.second);
    image_into(rows.stacks[row], scratch.image.at(0));
    layer_into(0, scratch.image.at(0), 0, 1, first);
    layer_into(1, first, 0, 1, second);
    layer_into(2, second, 0, 1, rows.third.at(numbers_nbytes(row * features_)));
  });
}

void NatureNetwork::convolve_in_tiles(ThreadPool& pool, std::size_t learned, Rows& rows) {
  rows.scratch.resize(std::max(rows.scratch.size(), pool.threads()));
  for (Scratch& scratch : rows.scratch) {
    reserve_for_rows(scratch, kTiledRows);
    for (const TiledConvolution& layer : tiled_) layer.reserve(scratch.tiles);
  }
  const std::size_t count = rows.stacks.size();
  const std::size_t groups = tiled_groups(count, pool.threads());
  pool.run(groups, [&](std::size_t item, std::size_t thread) {
    // The rows that are learned from come first. They are spread over all shares of the job, as
    // backwards, where a thread then finds what it has kept in its own cache.
    const std::size_t group = item / 2 + (item % 2 == 0 ? 0 : ceil_divide(groups, 2));
    Scratch& scratch = rows.scratch[thread];
    const std::size_t begin = part_begin(group, groups, count);
    const std::size_t size = part_begin(group + 1, groups, count) - begin;
    std::array<std::array<std::byte*, kTiledRows>, 3> y;
    for (std::size_t i = 0; i < size; ++i) {
      const std::size_t row = begin + i;
      const auto place = [&](std::size_t layer, Buffer& buffer) {
        const std::size_t numbers = convolutions_[layer].outputs();
        return row < learned ? kept_[layer].at(numbers_nbytes(row * numbers))
                             : buffer.at(numbers_nbytes(i * numbers));
      };
      y[0][i] = place(0, scratch.first);
      y[1][i] = place(1, scratch.second);
      y[2][i] = rows.third.at(numbers_nbytes(row * features_));
      const std::uint8_t* image = padded(rows.stacks[row], scratch.image, 0);
      tiled_[0].forward_bytes(std::span(&image, 1), weights_.biases[0], std::span(&y[0][i], 1),
                              scratch.tiles);
    }
    for (std::size_t layer = 1; layer < 3; ++layer) {
      const std::span<const std::byte* const> x(y[layer - 1].data(), size);
      tiled_[layer].forward(x, weights_.biases[layer], std::span(y[layer].data(), size),
                            scratch.tiles);
    }
  });
}

void NatureNetwork::convolve_few(ThreadPool& pool, Rows& rows) {
  const std::size_t count = rows.stacks.size();
  const std::size_t parts = ceil_divide(pool.threads(), count);
  reserve_for_rows(rows.few, count);
  pool.alert();
  pool.run(count, [&](std::size_t row, std::size_t) {
    image_into(rows.stacks[row],
               rows.few.image.at(row * numbers_nbytes(convolutions_[0].inputs())));
  });
  const std::array<const Buffer*, 4> places{&rows.few.image, &rows.few.first, &rows.few.second,
                                            &rows.third};
  for (std::size_t layer = 0; layer < 3; ++layer) {
    const Convolution& shape = convolutions_[layer];
    pool.run(count * parts, [&](std::size_t item, std::size_t) {
      const std::size_t row = item / parts;
      layer_into(layer, places[layer]->at(row * numbers_nbytes(shape.inputs())), item % parts,
                 parts, places[layer + 1]->at(row * numbers_nbytes(shape.outputs())));
    });
  }
}

void NatureNetwork::reserve_for_rows(Scratch& scratch, std::size_t rows) const {
  scratch.image.reserve(rows * numbers_nbytes(convolutions_[0].inputs()));
  scratch.first.reserve(rows * numbers_nbytes(convolutions_[0].outputs()));
  scratch.second.reserve(rows * numbers_nbytes(convolutions_[1].outputs()));
}

void NatureNetwork::image_into(const std::uint8_t* stack, std::byte* image) const {
  kernels_->image_into(stack, shape_.height, shape_.width * shape_.stack, shape_.first_padding,
                       shape_.stack, image);
}

const std::uint8_t* NatureNetwork::padded(const std::uint8_t* stack, Buffer& image,
                                          std::size_t slot) const {
  if (shape_.first_padding == 0) return stack;
  const std::size_t row = shape_.width * shape_.stack;
  const std::size_t side = shape_.first_padding * shape_.stack;
  const std::size_t width = row + 2 * side;
  auto* const bytes = image.at<std::uint8_t>(slot * convolutions_[0].inputs());
  std::memset(bytes, 0, (shape_.height + 2 * shape_.first_padding) * width);
  for (std::size_t y = 0; y < shape_.height; ++y) {
    std::memcpy(bytes + (y + shape_.first_padding) * width + side, stack + y * row, row);
  }
  return bytes;
}

void NatureNetwork::layer_into(std::size_t layer, const std::byte* x, std::size_t part,
                               std::size_t parts, std::byte* y) const {
  const Convolution& shape = convolutions_[layer];
  kernels_->convolve_into(shape, x, by_depth_[layer].at(0), weights_.biases[layer],
                          part_begin(part, parts, shape.positions()),
                          part_begin(part + 1, parts, shape.positions()), y);
}

void NatureNetwork::backward_into(ThreadPool& pool, const float* grad,
                                  const NatureWeights<float>& gradients) {
  const std::lock_guard lock(learning_mutex_);
  const std::shared_lock shared(weights_mutex_);
  backward(pool, grad, gradients, nullptr);
}

void NatureNetwork::step(ThreadPool& pool, std::uint64_t pass, const float* grad,
                         const NatureWeights<float>& gradients, std::span<const AdamArrays> adam,
                         const AdamFactors& factors) {
  const std::lock_guard lock(learning_mutex_);
  const std::unique_lock exclusive(weights_mutex_);
  if (pass != passes_) {
    throw std::logic_error("another forward pass has been made since this gradient's");
  }
  const NatureSizes size = sizes();
  const auto check = [&](std::size_t k, const float* weights, const float* own_gradients,
                         std::size_t count) {
    if (k >= adam.size() || adam[k].weights != weights || adam[k].gradients != own_gradients ||
        adam[k].size != count) {
      throw std::invalid_argument("the step is not one of the network's weights and gradients");
    }
  };
  for (std::size_t layer = 0; layer < 3; ++layer) {
    check(2 * layer, weights_.filters[layer], gradients.filters[layer], size.filters[layer]);
    check(2 * layer + 1, weights_.biases[layer], gradients.biases[layer], size.biases[layer]);
  }
  check(kHiddenArray, weights_.hidden, gradients.hidden, size.hidden);
  check(7, weights_.hidden_bias, gradients.hidden_bias, size.hidden_bias);
  check(8, weights_.values, gradients.values, size.values);
  check(9, weights_.values_bias, gradients.values_bias, size.values_bias);

  const HiddenStep hidden{adam[kHiddenArray], factors};
  backward(pool, grad, gradients, &hidden);
  adam_step(pool, adam.first(kHiddenArray), factors);
  adam_step(pool, adam.subspan(kHiddenArray + 1), factors);
  take_over(pool, false);
}

void NatureNetwork::backward(ThreadPool& pool, const float* grad,
                             const NatureWeights<float>& gradients, const HiddenStep* step) {
  if (learned_ == 0) throw std::logic_error("no rows are kept for a backward pass");
  const std::size_t numbers = kernels_->numbers;
  const std::size_t groups = ceil_divide(learned_, numbers);
  grad_hidden_.reserve(numbers_nbytes(learned_ * kHidden));
  grad_hidden_across_.reserve(groups * kHidden * sizeof(float));
  grad_third_.reserve(numbers_nbytes(learned_ * features_));
  // Tiles make units of their own: of them, only the hidden layer's inputs are needed.
  const bool direct = tiled_.empty();
  for (std::size_t layer = 0; layer < 3; ++layer) {
    const std::size_t nbytes = groups * convolutions_[layer].outputs() * sizeof(float);
    if (layer < 2 || (numbers == 2 && direct)) grad_units_[layer].reserve(nbytes);
    if (numbers == 2 && (layer == 2 || direct)) in_units_[layer].reserve(nbytes);
  }
  std::size_t channels = 0;
  for (const Convolution& shape : convolutions_) channels += shape.out_channels;
  const std::size_t bias_sums = direct ? groups : learned_;
  grad_biases_.reserve(bias_sums * channels * sizeof(float));
  rows_.scratch.resize(std::max(rows_.scratch.size(), pool.threads()));
  for (Scratch& scratch : rows_.scratch) {
    scratch.image.reserve(convolutions_[0].inputs() * sizeof(float));
    for (const TiledConvolution& layer : tiled_) layer.reserve(scratch.tiles);
    if (step != nullptr) {
      scratch.hidden.reserve(ceil_divide(kHidden, kStepParts) * kStepInputs * sizeof(float));
    }
    if (!direct) continue;
    scratch.sums.reserve(std::max(kernels_->input_gradient_floats(convolutions_[1]),
                                  kernels_->input_gradient_floats(convolutions_[2])) *
                         sizeof(float));
    scratch.grad.reserve(numbers_nbytes(numbers * (convolutions_[0].outputs() +
                                                   convolutions_[1].outputs())));
  }

  // The values' layer; and of the hidden layer's inputs two samples each side by side.
  const std::size_t columns = kHidden / kValuesInputs;
  const ValuesGradient to{gradients.values, grad_hidden_.at(0), grad_hidden_across_.at(0),
                          gradients.hidden_bias};
  pool.run(columns + (numbers == 2 ? groups : 0), [&](std::size_t item, std::size_t) {
    if (item < columns) {
      kernels_->values_gradient_into(grad, rows_.units.at<float>(0), weights_.values, learned_, kHidden,
                                     shape_.num_actions, item * kValuesInputs, to);
      return;
    }
    const std::size_t group = item - columns;
    const bool whole = 2 * group + 1 < learned_;
    kernels_->pair_into(rows_.third.at(numbers_nbytes(2 * group * features_)),
                        whole ? rows_.third.at(numbers_nbytes((2 * group + 1) * features_)) : nullptr,
                        features_, in_units_[2].at(group * features_ * sizeof(float)));
  });
  std::fill_n(gradients.values_bias, sizes().values_bias, 0.0F);
  for (std::size_t i = 0; i < learned_ * shape_.num_actions; ++i) {
    gradients.values_bias[shape_.shared_last_bias ? 0 : i % shape_.num_actions] += grad[i];
  }

  // The hidden layer.
  const void* inputs = numbers == 2 ? in_units_[2].at(0) : rows_.third.at(0);
  pool.run(features_ / kDenseInputs, [&](std::size_t block, std::size_t) {
    const std::size_t input = block * kDenseInputs;
    kernels_->dense_input_gradient_into(grad_hidden_.at(0), hidden_weights(), rows_.third.at(0),
                                        learned_, features_, kHidden, input, grad_third_.at(0));
    if (step != nullptr) return;
    kernels_->dense_weight_gradient_into(grad_hidden_across_.at(0), inputs, groups, features_,
                                         kHidden, input, input + kDenseInputs, features_,
                                         gradients.hidden + input);
  });

  // The convolutions: the gradients of their outputs, and then those of their weights. The hidden
  // layer's step waits for memory where these compute, so they take turns.
  const std::size_t pieces = direct ? groups : tiled_groups(learned_, pool.threads());
  const std::size_t items = pieces + (step == nullptr ? 0 : kStepParts);
  pool.run(items, [&](std::size_t item, std::size_t thread) {
    const std::size_t piece = part_begin(item, items, pieces);
    if (part_begin(item + 1, items, pieces) != piece) {
      if (direct) {
        gradients_of_group(piece, rows_.scratch[thread]);
      } else {
        gradients_of_rows(part_begin(piece, pieces, learned_),
                          part_begin(piece + 1, pieces, learned_), rows_.scratch[thread]);
      }
      return;
    }
    // So few at a time that their gradients stay in the first cache, from which one pass over
    // neighbours takes them: many places of main memory at a time are fetched at half the speed.
    const std::size_t part = item - piece;
    const std::size_t begin = part_begin(part, kStepParts, kHidden);
    const std::size_t outputs = part_begin(part + 1, kStepParts, kHidden) - begin;
    float* const block = rows_.scratch[thread].hidden.at<float>(0);
    for (std::size_t input = 0; input < features_; input += kStepInputs) {
      const std::size_t count = std::min(kStepInputs, features_ - input);
      kernels_->dense_weight_gradient_into(grad_hidden_across_.at(begin * groups * sizeof(float)),
                                           inputs, groups, features_, outputs, input,
                                           input + count, count, block);
      for (std::size_t output = 0; output < outputs; ++output) {
        kernels_->adam_step_into(block + output * count, count, step->arrays,
                                 (begin + output) * features_ + input, step->factors,
                                 hidden_.at(0));
      }
    }
  });
  if (direct) {
    gradients_of_filters(pool, gradients);
  } else {
    gradients_of_filters_in_tiles(pool, gradients);
  }

  const float* sums = grad_biases_.at<float>(0);
  for (std::size_t layer = 0; layer < 3; ++layer) {
    std::fill_n(gradients.biases[layer], convolutions_[layer].out_channels, 0.0F);
  }
  for (std::size_t k = 0; k < bias_sums; ++k) {
    for (std::size_t layer = 0; layer < 3; ++layer) {
      for (std::size_t i = 0; i < convolutions_[layer].out_channels; ++i) {
        gradients.biases[layer][i] += *sums++;
      }
    }
  }
  for (std::size_t i = 0; i < convolutions_[0].weights(); ++i) {
    gradients.filters[0][i] *= kInputScale;
  }
}

void NatureNetwork::gradients_of_group(std::size_t group, Scratch& scratch) {
  const std::size_t numbers = kernels_->numbers;
  const std::size_t first = group * numbers;
  const std::size_t samples = std::min(numbers, learned_ - first);
  const auto kept = [&](std::size_t layer, std::size_t sample) {
    return kept_[layer].at(numbers_nbytes((first + sample) * convolutions_[layer].outputs()));
  };
  // The gradients of the outputs of each layer and sample: in place where a unit is one number.
  const auto grad = [&](std::size_t layer, std::size_t sample) {
    if (layer == 2) return grad_third_.at(numbers_nbytes((first + sample) * features_));
    if (numbers == 1) {
      return grad_units_[layer].at(group * convolutions_[layer].outputs() * sizeof(float));
    }
    const std::size_t before = layer == 1 ? 0 : numbers * convolutions_[1].outputs();
    return scratch.grad.at(
        numbers_nbytes(before + sample * convolutions_[layer].outputs()));
  };
  for (std::size_t sample = 0; sample < samples; ++sample) {
    for (std::size_t layer = 2; layer > 0; --layer) {
      const Convolution& shape = convolutions_[layer];
      kernels_->input_gradient_into(shape, grad(layer, sample), by_place_[layer].at(0),
                                    scratch.sums.at<float>(0));
      kernels_->relu_gradient_into(scratch.sums.at<float>(0), kept(layer - 1, sample),
                                   shape.inputs(), grad(layer - 1, sample));
    }
  }
  std::size_t channels = 0;
  for (const Convolution& shape : convolutions_) channels += shape.out_channels;
  float* biases = grad_biases_.at<float>(group * channels * sizeof(float));
  for (std::size_t layer = 0; layer < 3; ++layer) {
    const Convolution& shape = convolutions_[layer];
    // Samples of a group lie one behind the other.
    kernels_->sum_rows_into(grad(layer, 0), samples * shape.positions(), shape.out_channels,
                            biases);
    biases += shape.out_channels;
    if (numbers == 1) continue;
    const bool whole = samples == 2;
    const std::size_t place = group * shape.outputs() * sizeof(float);
    kernels_->pair_gradient_into(shape, grad(layer, 0), whole ? grad(layer, 1) : nullptr,
                                 grad_units_[layer].at(place));
    if (layer < 2) {
      kernels_->pair_into(kept(layer, 0), whole ? kept(layer, 1) : nullptr, shape.outputs(),
                          in_units_[layer].at(place));
    }
  }
}

void NatureNetwork::gradients_of_rows(std::size_t begin, std::size_t end, Scratch& scratch) {
  const std::size_t size = end - begin;
  // Of the outputs of each layer.
  std::array<std::array<std::byte*, kTiledRows>, 3> grad;
  std::array<std::array<const std::byte*, kTiledRows>, 2> kept;
  for (std::size_t i = 0; i < size; ++i) {
    const auto place = [&](std::size_t layer, const Buffer& buffer) {
      return buffer.at(numbers_nbytes((begin + i) * convolutions_[layer].outputs()));
    };
    for (std::size_t layer = 0; layer < 2; ++layer) {
      grad[layer][i] = place(layer, grad_units_[layer]);
      kept[layer][i] = place(layer, kept_[layer]);
    }
    grad[2][i] = place(2, grad_third_);
  }
  for (std::size_t layer = 2; layer > 0; --layer) {
    tiled_[layer].input_gradient(std::span<const std::byte* const>(grad[layer].data(), size),
                                 std::span(kept[layer - 1].data(), size),
                                 std::span(grad[layer - 1].data(), size), *kernels_, scratch.tiles);
  }
  std::size_t channels = 0;
  for (const Convolution& shape : convolutions_) channels += shape.out_channels;
  float* biases = grad_biases_.at<float>(begin * channels * sizeof(float));
  for (std::size_t i = 0; i < size; ++i) {
    for (std::size_t layer = 0; layer < 3; ++layer) {
      const Convolution& shape = convolutions_[layer];
      kernels_->sum_rows_into(grad[layer][i], shape.positions(), shape.out_channels, biases);
      biases += shape.out_channels;
    }
  }
}

void NatureNetwork::gradients_of_filters_in_tiles(ThreadPool& pool,
                                                  const NatureWeights<float>& gradients) {
  std::array<std::size_t, 3> parts;
  std::size_t all_parts = 0, weights = 0;
  for (std::size_t layer = 0; layer < 3; ++layer) {
    all_parts += parts[layer] = tiled_[layer].gradient_parts();
    weights += convolutions_[layer].weights();
  }
  // In halves of the rows, whose activations are mostly in the cache of one thread; of the second
  // the sums lie apart, and are added in the end.
  const std::size_t halves = learned_ < 2 * kTiledRows ? 1 : 2;
  if (halves == 2) second_half_.reserve(weights * sizeof(float));
  pool.run(halves * all_parts, [&](std::size_t item, std::size_t thread) {
    const std::size_t half = item / all_parts;
    const std::size_t begin = part_begin(half, halves, learned_);
    const std::size_t end = part_begin(half + 1, halves, learned_);
    std::size_t layer = 0, part = item % all_parts, before = 0;
    while (part >= parts[layer]) {
      before += convolutions_[layer].weights();
      part -= parts[layer++];
    }
    float* const weights_gradient =
        half == 0 ? gradients.filters[layer] : second_half_.at<float>(before * sizeof(float));
    Scratch& scratch = rows_.scratch[thread];
    const auto place = [&](const Buffer& buffer, std::size_t of_layer, std::size_t row) {
      return buffer.at(numbers_nbytes((begin + row) * convolutions_[of_layer].outputs()));
    };
    const auto inputs = [&](std::size_t row, std::size_t slot) -> const void* {
      if (layer == 0) return padded(rows_.stacks[begin + row], scratch.image, slot);
      return place(kept_[layer - 1], layer - 1, row);
    };
    const auto grad = [&](std::size_t row) -> const void* {
      return place(layer == 2 ? grad_third_ : grad_units_[layer], layer, row);
    };
    tiled_[layer].weight_gradient(end - begin, layer == 0, inputs, grad, part,
                                  weights_gradient, scratch.tiles);
  });
  if (halves == 1) return;
  pool.run(3 * kFilterParts, [&](std::size_t item, std::size_t) {
    const float* from = second_half_.at<float>(0);
    for (std::size_t layer = 0; layer < item / kFilterParts; ++layer) {
      from += convolutions_[layer].weights();
    }
    const std::size_t layer = item / kFilterParts, part = item % kFilterParts;
    const std::size_t count = convolutions_[layer].weights();
    const std::size_t end = part_begin(part + 1, kFilterParts, count);
    for (std::size_t i = part_begin(part, kFilterParts, count); i < end; ++i) {
      gradients.filters[layer][i] += from[i];
    }
  });
}

void NatureNetwork::gradients_of_filters(ThreadPool& pool, const NatureWeights<float>& gradients) {
  const std::size_t numbers = kernels_->numbers;
  const std::size_t groups = ceil_divide(learned_, numbers);
  // The first layer's images are converted anew by each part: no more parts than threads.
  const std::array<std::size_t, 3> parts{pool.threads(), kFilterParts, kFilterParts};
  pool.run(parts[0] + parts[1] + parts[2], [&](std::size_t item, std::size_t thread) {
    std::size_t layer = 0;
    while (item >= parts[layer]) item -= parts[layer++];
    const Convolution& shape = convolutions_[layer];
    const std::size_t blocks = kernels_->count_blocks(shape);
    const std::size_t begin = part_begin(item, parts[layer], blocks);
    const std::size_t end = part_begin(item + 1, parts[layer], blocks);
    for (std::size_t group = 0; group < groups; ++group) {
      const void* x;
      if (layer == 0) {
        const std::size_t row = group * numbers;
        kernels_->image_units_into(
            rows_.stacks[row], numbers == 2 && row + 1 < learned_ ? rows_.stacks[row + 1] : nullptr,
            shape_.height, shape_.width * shape_.stack, shape_.first_padding, shape_.stack,
            rows_.scratch[thread].image.at(0));
        x = rows_.scratch[thread].image.at(0);
      } else {
        const Buffer& from = numbers == 2 ? in_units_[layer - 1] : kept_[layer - 1];
        x = from.at(group * shape.inputs() * sizeof(float));
      }
      const Buffer& from = numbers == 1 && layer == 2 ? grad_third_ : grad_units_[layer];
      kernels_->weight_gradient_into(shape, x,
                                     from.at(group * shape.outputs() * sizeof(float)), begin,
                                     end, group == 0, gradients.filters[layer]);
    }
  });
}

}  // namespace fastdqn
