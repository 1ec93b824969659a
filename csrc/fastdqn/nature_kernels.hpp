#pragma once
// The arithmetic of the Nature network's layers for one processor: what is worth writing by hand.
//
// Images are channels-last. A *number* is a float, or a bfloat16 in 16 bits. A *unit* is what the
// inner loops multiply at once, 32 bits: a float, or two bfloat16 whose products are added: two that
// lie side by side, or the same number of two samples. Sums are floats throughout.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "fastdqn/optimizer_steps.hpp"

namespace fastdqn {

/// The shape of one convolution without padding.
struct Convolution {
  std::size_t in_height, in_width, in_channels;
  std::size_t out_height, out_width, out_channels;
  std::size_t kernel, stride;
  std::vector<std::size_t> offsets;  // of the first input number that each output position reads

  Convolution(std::size_t in_height_, std::size_t in_width_, std::size_t in_channels_,
              std::size_t out_channels_, std::size_t kernel_, std::size_t stride_);

  std::size_t positions() const noexcept { return out_height * out_width; }
  std::size_t inputs() const noexcept { return in_height * in_width * in_channels; }
  std::size_t outputs() const noexcept { return positions() * out_channels; }
  std::size_t run() const noexcept { return kernel * in_channels; }  // that lie side by side
  std::size_t depth() const noexcept { return kernel * run(); }
  std::size_t weights() const noexcept { return depth() * out_channels; }
};

/// What the last layer's gradient is written to.
struct ValuesGradient {
  float* weights;  // [actions, inputs]
  void* x;         // numbers [rows, inputs]: that of its input, where the ReLU's output is positive
  void* x_across;  // the same as units [inputs, rows], zeros beyond the rows
  float* bias;     // [inputs]: the sums over the rows
};

/// One set of kernels. Memory is the caller's; no two of a call's arrays overlap, but for those
/// that are read only. Channels going out of a convolution are 32 or 64, runs 16 units or a multiple.
struct NatureKernels {
  std::size_t number_nbytes;
  std::size_t numbers;  // in a unit

  /// An image [height, width * channels] of bytes as numbers, with `padding` zeros around: rows
  /// above and below, and padding * channels numbers on each side.
  void (*image_into)(const std::uint8_t* image, std::size_t height, std::size_t row,
                     std::size_t padding, std::size_t channels, void* numbers) noexcept;
  /// The same of two samples (of one, where units hold one; zeros for a null pointer) as units.
  void (*image_units_into)(const std::uint8_t* first, const std::uint8_t* second,
                           std::size_t height, std::size_t row, std::size_t padding,
                           std::size_t channels, void* units) noexcept;
  /// Numbers of two samples as units; zeros for a null pointer. A multiple of 16. Two-number units
  /// alone.
  void (*pair_into)(const void* first, const void* second, std::size_t count, void* units) noexcept;

  /// Floats, a multiple of 16, as numbers.
  void (*round_into)(const float* floats, std::size_t count, void* numbers) noexcept;
  /// How many outputs' weights of a convolution lie side by side when packed by depth.
  std::size_t (*packed_columns)(const Convolution& shape) noexcept;
  /// Weights [outputs, depth] times `scale` as units [outputs / columns, depth / numbers, columns],
  /// rows of units from `begin` to `end`.
  void (*pack_by_depth_into)(const float* weights, std::size_t outputs, std::size_t depth,
                             float scale, std::size_t columns, std::size_t begin, std::size_t end,
                             void* units) noexcept;
  /// Weights [outputs, places, channels] as units [places, outputs / numbers, channels], places
  /// from `begin` to `end`.
  void (*pack_by_place_into)(const float* weights, std::size_t outputs, std::size_t places,
                             std::size_t channels, std::size_t begin, std::size_t end,
                             void* units) noexcept;

  /// ReLU of the convolution of numbers x with weights packed by depth, at the positions from
  /// `begin` to `end`.
  void (*convolve_into)(const Convolution& shape, const void* x, const void* weights,
                        const float* bias, std::size_t begin, std::size_t end, void* y) noexcept;
  /// From the gradient of the outputs that of the inputs, by weights packed by place.
  void (*input_gradient_into)(const Convolution& shape, const void* grad, const void* weights,
                              float* sums) noexcept;
  /// How many floats `sums` has to have room for, the inputs first; what is behind them is scratch.
  std::size_t (*input_gradient_floats)(const Convolution& shape) noexcept;
  /// The gradients of two samples' outputs, null for none, as the units that the next one reads.
  /// Two-number units alone.
  void (*pair_gradient_into)(const Convolution& shape, const void* first, const void* second,
                             void* units) noexcept;
  /// Blocks of a weight's gradient [out_channels, depth], which `count_blocks` counts: the sums of
  /// products of units x [inputs] and grad [outputs], added to what is there, or for `first` not.
  void (*weight_gradient_into)(const Convolution& shape, const void* x, const void* grad,
                               std::size_t begin, std::size_t end, bool first,
                               float* weights) noexcept;
  std::size_t (*count_blocks)(const Convolution& shape) noexcept;
  /// sums where the ReLU's output y is positive, 0 elsewhere, as numbers; a multiple of 16.
  void (*relu_gradient_into)(const float* sums, const void* y, std::size_t count,
                             void* grad) noexcept;
  /// Adds up the rows of numbers [rows, columns], for 16 columns or a multiple up to 64.
  void (*sum_rows_into)(const void* numbers, std::size_t rows, std::size_t columns,
                        float* sums) noexcept;

  /// The outputs from `begin` to `end`, a multiple of sixteen, of a dense layer with its ReLU: numbers
  /// x [rows, inputs], weights [outputs, inputs] -> y [rows, outputs].
  void (*dense_into)(const void* x, const void* weights, const float* bias, std::size_t rows,
                     std::size_t inputs, std::size_t outputs, std::size_t begin, std::size_t end,
                     float* y) noexcept;
  /// The gradient of 64 inputs from `input` on, numbers [rows, inputs], where x, the ReLU's output
  /// that is the input, is positive. grad [rows, outputs] are numbers, and so are the weights; there
  /// are at most 512 outputs.
  void (*dense_input_gradient_into)(const void* grad, const void* weights, const void* x,
                                    std::size_t rows, std::size_t inputs, std::size_t outputs,
                                    std::size_t input, void* grad_x) noexcept;
  /// The gradient of the columns from `begin` to `end`, a multiple of 64, of weights [outputs,
  /// inputs]: products of units grad [outputs, rows] and x [rows, inputs]. Written to `weights`, whose
  /// rows are `row` floats apart.
  void (*dense_weight_gradient_into)(const void* grad, const void* x, std::size_t rows,
                                     std::size_t inputs, std::size_t outputs, std::size_t begin,
                                     std::size_t end, std::size_t row, float* weights) noexcept;
  /// Adam's step by `count` gradients, a multiple of 16, on as many of its numbers from `place` on.
  /// Where numbers are not floats, the weights as numbers too.
  void (*adam_step_into)(const float* gradients, std::size_t count, const AdamArrays& adam,
                         std::size_t place, const AdamFactors& factors, void* numbers) noexcept;

  /// Adds the products of x [rows, inputs] and weights [actions, inputs] to values [rows, actions].
  void (*values_into)(const float* x, const float* weights, std::size_t rows, std::size_t inputs,
                      std::size_t actions, float* values) noexcept;
  /// From the gradient [rows, actions] of the values that of the 16 columns from `input` on of the
  /// weights, and of x, which is a ReLU's output, and the sums over the rows of the latter.
  void (*values_gradient_into)(const float* grad, const float* x, const float* weights,
                               std::size_t rows, std::size_t inputs, std::size_t actions,
                               std::size_t input, const ValuesGradient& out) noexcept;
};

/// Null where the processor cannot run them.
const NatureKernels* float32_kernels() noexcept;
const NatureKernels* bfloat16_kernels() noexcept;
/// In bfloat16 too, by tiles of products.
const NatureKernels* amx_kernels() noexcept;

}  // namespace fastdqn
