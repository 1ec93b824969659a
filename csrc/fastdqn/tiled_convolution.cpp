#include "fastdqn/tiled_convolution.hpp"

#include <algorithm>

namespace fastdqn {

namespace {

/// Floats of a matrix a point.
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
  const std::size_t count = tiling_.depth();
  kernels_.pack_into(tiling_, weights, scale_, part * count / parts, (part + 1) * count / parts,
                     weights_.at<float>(0));
}

void TiledConvolution::pack_across(const float* weights, std::size_t part, std::size_t parts) {
  const std::size_t count = tiling_.shape.out_channels;
  kernels_.pack_across_into(tiling_, weights, part * count / parts, (part + 1) * count / parts,
                            weights_across_.at<float>(0));
}

template <class Number>
void TiledConvolution::forward_from(std::span<const Number* const> x, const float* bias,
                                    std::span<float* const> y, Scratch& scratch) const {
  const std::size_t all = x.size() * tiling_.tiles();
  const std::size_t columns = tiling_.shape.out_channels;
  for (std::size_t i = 0; i < x.size(); ++i) {
    tiles_of(x[i], {i * tiling_.tiles(), all}, whole(), scratch);
  }
  kernels_.products_into(tiling_.points(), all, tiling_.depth(), columns,
                         scratch.inputs.at<float>(0), weights_.at<float>(0),
                         scratch.products.at<float>(0));
  for (std::size_t i = 0; i < x.size(); ++i) {
    kernels_.outputs_into(tiling_, scratch.products.at<float>(0), {i * tiling_.tiles(), all}, bias,
                          y[i]);
  }
}

void TiledConvolution::forward(std::span<const std::uint8_t* const> x, const float* bias,
                               std::span<float* const> y, Scratch& scratch) const {
  forward_from(x, bias, y, scratch);
}

void TiledConvolution::forward(std::span<const float* const> x, const float* bias,
                               std::span<float* const> y, Scratch& scratch) const {
  forward_from(x, bias, y, scratch);
}

void TiledConvolution::input_gradient(std::span<const float* const> grad,
                                      std::span<const float* const> x,
                                      std::span<float* const> grad_x, const NatureKernels& kernels,
                                      Scratch& scratch) const {
  const std::size_t all = grad.size() * tiling_.tiles();
  const std::size_t columns = tiling_.shape.out_channels;
  for (std::size_t i = 0; i < grad.size(); ++i) {
    kernels_.output_gradient_into(tiling_, grad[i], {i * tiling_.tiles(), all},
                                  scratch.products.at<float>(0));
  }
  kernels_.products_into(tiling_.points(), all, columns, tiling_.depth(),
                         scratch.products.at<float>(0), weights_across_.at<float>(0),
                         scratch.inputs.at<float>(0));
  for (std::size_t i = 0; i < grad.size(); ++i) {
    kernels_.input_gradient_into(tiling_, scratch.inputs.at<float>(0), {i * tiling_.tiles(), all},
                                 scratch.sums.at<float>(0));
    kernels.relu_gradient_into(scratch.sums.at<float>(0), x[i], tiling_.shape.inputs(), grad_x[i]);
  }
}

void TiledConvolution::add_products(std::size_t samples, bool first, Scratch& scratch) const {
  kernels_.products_across_into(tiling_.points(), samples * tiling_.tiles(),
                                tiling_.shape.out_channels, scratch.products.at<float>(0),
                                scratch.inputs.at<float>(0), first, scratch.sums.at<float>(0));
}

}  // namespace fastdqn
