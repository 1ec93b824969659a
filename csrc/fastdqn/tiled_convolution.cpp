#include "fastdqn/tiled_convolution.hpp"

#include <algorithm>

namespace fastdqn {

namespace {

/// Floats of a matrix a point; other numbers take no more.
std::size_t floats(const Tiling& tiling, std::size_t rows, std::size_t columns) noexcept {
  return tiling.points() * Tiling::apart(rows * columns);
}

void reserve_floats(AlignedBuffer& buffer, std::size_t count) {
  buffer.reserve(count * sizeof(float));
}

}  // namespace

bool TiledConvolution::covers(const Convolution& shape, const TileKernels& kernels) noexcept {
  const Tiling tiling(shape, kernels.outputs);
  return shape.kernel % shape.stride == 0 && tiling.taps == kernels.taps &&
         tiling.run() % 16 == 0 && tiling.depth() % 64 == 0;
}

TiledConvolution::TiledConvolution(const Convolution& shape, const TileKernels& kernels,
                                   float scale)
    : tiling_(shape, kernels.outputs), kernels_(kernels), scale_(scale) {
  reserve_floats(weights_, floats(tiling_, tiling_.depth(), shape.out_channels));
  reserve_floats(weights_across_, floats(tiling_, tiling_.depth(), shape.out_channels));
}

void TiledConvolution::reserve(Scratch& scratch) const {
  const Convolution& shape = tiling_.shape;
  const std::size_t rows = kMaxSamples * tiling_.tiles();
  reserve_floats(scratch.inputs, floats(tiling_, rows, tiling_.depth()));
  reserve_floats(scratch.products, floats(tiling_, rows, shape.out_channels));
  reserve_floats(scratch.sums,
                 std::max(shape.inputs(), floats(tiling_, shape.out_channels, kPartDepth)));
}

void TiledConvolution::pack(const float* weights, std::size_t part, std::size_t parts) {
  const std::size_t count = tiling_.depth() / 2;
  kernels_.pack_into(tiling_, weights, scale_, 2 * (part * count / parts),
                     2 * ((part + 1) * count / parts), weights_.at(0));
}

void TiledConvolution::pack_across(const float* weights, std::size_t part, std::size_t parts) {
  const std::size_t count = tiling_.shape.out_channels / 2;
  kernels_.pack_across_into(tiling_, weights, 2 * (part * count / parts),
                            2 * ((part + 1) * count / parts), weights_across_.at(0));
}

void TiledConvolution::forward_bytes(std::span<const std::uint8_t* const> x, const float* bias,
                                     std::span<std::byte* const> y, Scratch& scratch) const {
  const std::size_t tiles = tiling_.tiles();
  for (std::size_t i = 0; i < x.size(); ++i) {
    kernels_.bytes_into(tiling_, x[i], {i * tiles, x.size() * tiles}, scratch.inputs.at(0));
  }
  forward_tiles(x.size(), bias, y, scratch);
}

void TiledConvolution::forward(std::span<const std::byte* const> x, const float* bias,
                               std::span<std::byte* const> y, Scratch& scratch) const {
  const std::size_t tiles = tiling_.tiles();
  for (std::size_t i = 0; i < x.size(); ++i) {
    kernels_.inputs_into(tiling_, x[i], {i * tiles, x.size() * tiles}, scratch.inputs.at(0));
  }
  forward_tiles(x.size(), bias, y, scratch);
}

void TiledConvolution::forward_tiles(std::size_t samples, const float* bias,
                                     std::span<std::byte* const> y, Scratch& scratch) const {
  const std::size_t tiles = tiling_.tiles();
  kernels_.products_into(tiling_.points(), samples * tiles, tiling_.depth(),
                         tiling_.shape.out_channels, scratch.inputs.at(0), weights_.at(0),
                         scratch.products.at<float>(0));
  for (std::size_t i = 0; i < samples; ++i) {
    kernels_.outputs_into(tiling_, scratch.products.at<float>(0), {i * tiles, samples * tiles},
                          bias, y[i]);
  }
}

void TiledConvolution::input_gradient(std::span<const std::byte* const> grad,
                                      std::span<const std::byte* const> x,
                                      std::span<std::byte* const> grad_x,
                                      const NatureKernels& kernels, Scratch& scratch) const {
  const std::size_t tiles = tiling_.tiles();
  const std::size_t all = grad.size() * tiles;
  for (std::size_t i = 0; i < grad.size(); ++i) {
    kernels_.output_gradient_into(tiling_, grad[i], {i * tiles, all}, scratch.products.at(0));
  }
  kernels_.products_into(tiling_.points(), all, tiling_.shape.out_channels, tiling_.depth(),
                         scratch.products.at(0), weights_across_.at(0),
                         scratch.inputs.at<float>(0));
  for (std::size_t i = 0; i < grad.size(); ++i) {
    kernels_.input_gradient_into(tiling_, scratch.inputs.at<float>(0), {i * tiles, all},
                                 scratch.sums.at<float>(0));
    kernels.relu_gradient_into(scratch.sums.at<float>(0), x[i], tiling_.shape.inputs(), grad_x[i]);
  }
}

}  // namespace fastdqn
