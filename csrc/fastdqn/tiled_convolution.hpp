#pragma once
// A convolution of several samples by minimal filtering: less than half of the multiplications.

#include <cstddef>
#include <cstdint>
#include <span>

#include "fastdqn/aligned_buffer.hpp"
#include "fastdqn/tile_kernels.hpp"

namespace fastdqn {

/// One layer in float32, with its weights made ready for it.
///
/// A sample's results do not depend on which samples are computed with it, in the same call or in
/// others at the same time, which need a scratch each.
class TiledConvolution {
 public:
  static constexpr std::size_t kMaxSamples = 4;  // of a call of forward or input_gradient

  /// What a call computes in. To be reserved for all layers that use it.
  struct Scratch {
    AlignedBuffer inputs, products, sums;
  };
  void reserve(Scratch& scratch) const;

  /// Whether there are kernels for such a convolution.
  static bool covers(const Convolution& shape, const TileKernels& kernels) noexcept;

  /// Weights are multiplied by `scale` before anything else; their gradient is not.
  TiledConvolution(const Convolution& shape, const TileKernels& kernels, float scale);

  /// One of `parts` of making weights [out_channels, depth] ready: for outputs, or for the inputs'
  /// gradients.
  void pack(const float* weights, std::size_t part, std::size_t parts);
  void pack_across(const float* weights, std::size_t part, std::size_t parts);

  /// The ReLU of the outputs of up to kMaxSamples, whose inputs are bytes or floats.
  void forward(std::span<const std::uint8_t* const> x, const float* bias, std::span<float* const> y,
               Scratch& scratch) const;
  void forward(std::span<const float* const> x, const float* bias, std::span<float* const> y,
               Scratch& scratch) const;

  /// The gradient of the inputs x from that of the outputs, where x is positive.
  void input_gradient(std::span<const float* const> grad, std::span<const float* const> x,
                      std::span<float* const> grad_x, const NatureKernels& kernels,
                      Scratch& scratch) const;

  /// The parts that a weight's gradient is cut into; one part of its sum over all samples, of which
  /// x(sample) and grad(sample) are the inputs and the gradient of the outputs.
  std::size_t gradient_parts() const noexcept { return tiling_.depth() / kPartDepth; }
  template <class Inputs, class Gradients>
  void weight_gradient(std::size_t samples, const Inputs& x, const Gradients& grad,
                       std::size_t part, float* weights, Scratch& scratch) const {
    for (std::size_t first = 0; first < samples; first += kMaxSamples) {
      const std::size_t count = samples - first < kMaxSamples ? samples - first : kMaxSamples;
      for (std::size_t i = 0; i < count; ++i) {
        const TileRows rows{i * tiling_.tiles(), count * tiling_.tiles()};
        tiles_of(x(first + i), rows, part_of(part), scratch);
        kernels_.output_gradient_into(tiling_, grad(first + i), rows, scratch.products.at<float>(0));
      }
      add_products(count, first == 0, scratch);
    }
    kernels_.weight_gradient_into(tiling_, scratch.sums.at<float>(0), part_of(part), weights);
  }

 private:
  BlockPart whole() const noexcept { return {0, tiling_.depth() / 16}; }
  static BlockPart part_of(std::size_t part) noexcept {
    return {part * kPartDepth / 16, (part + 1) * kPartDepth / 16};
  }
  void tiles_of(const std::uint8_t* x, const TileRows& rows, const BlockPart& part,
                Scratch& scratch) const {
    kernels_.bytes_into(tiling_, x, rows, part, scratch.inputs.at<float>(0));
  }
  void tiles_of(const float* x, const TileRows& rows, const BlockPart& part,
                Scratch& scratch) const {
    kernels_.inputs_into(tiling_, x, rows, part, scratch.inputs.at<float>(0));
  }
  template <class Number>
  void forward_from(std::span<const Number* const> x, const float* bias, std::span<float* const> y,
                    Scratch& scratch) const;
  void add_products(std::size_t samples, bool first, Scratch& scratch) const;

  Tiling tiling_;
  const TileKernels& kernels_;
  float scale_;
  AlignedBuffer weights_, weights_across_;
};

}  // namespace fastdqn
