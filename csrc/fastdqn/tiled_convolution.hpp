#pragma once
// A convolution of several samples by minimal filtering: less than half of the multiplications.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "fastdqn/aligned_buffer.hpp"
#include "fastdqn/tile_kernels.hpp"

namespace fastdqn {

/// One layer, with its weights made ready for it. Its numbers are those of the kernels.
///
/// A sample's results do not depend on which samples are computed with it, in the same call or in
/// others at the same time, which need a scratch each.
class TiledConvolution {
 public:
  static constexpr std::size_t kMaxSamples = 4;  // of a call of forward or input_gradient
  static constexpr std::size_t kMaxNumbers = 2;  // in a unit

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

  /// The ReLU of the outputs of up to kMaxSamples, whose inputs are bytes or numbers.
  void forward_bytes(std::span<const std::uint8_t* const> x, const float* bias,
                     std::span<std::byte* const> y, Scratch& scratch) const;
  void forward(std::span<const std::byte* const> x, const float* bias,
               std::span<std::byte* const> y, Scratch& scratch) const;

  /// The gradient of the inputs x from that of the outputs, where x is positive.
  void input_gradient(std::span<const std::byte* const> grad, std::span<const std::byte* const> x,
                      std::span<std::byte* const> grad_x, const NatureKernels& kernels,
                      Scratch& scratch) const;

  /// The parts that a weight's gradient is cut into; one part of its sum over all samples. Of them
  /// x(sample, slot) are the inputs, bytes or numbers, which may be written over when the same slot of
  /// kMaxNumbers is asked for again, and grad(sample) is the gradient of the outputs.
  std::size_t gradient_parts() const noexcept { return tiling_.depth() / kPartDepth; }
  template <class Inputs, class Gradients>
  void weight_gradient(std::size_t samples, bool bytes, const Inputs& x, const Gradients& grad,
                       std::size_t part, float* weights, Scratch& scratch) const {
    for (std::size_t first = 0; first < samples; first += kMaxSamples) {
      const std::size_t count = samples - first < kMaxSamples ? samples - first : kMaxSamples;
      const std::size_t groups = (count + kernels_.numbers - 1) / kernels_.numbers;
      for (std::size_t group = 0; group < groups; ++group) {
        std::array<const void*, kMaxNumbers> inputs{}, gradients{};
        for (std::size_t k = 0; k < kernels_.numbers; ++k) {
          const std::size_t sample = first + group * kernels_.numbers + k;
          if (sample >= samples) break;
          inputs[k] = x(sample, k);
          gradients[k] = grad(sample);
        }
        const TileRows rows{group * tiling_.tiles(), groups * tiling_.tiles()};
        (bytes ? kernels_.byte_units_into : kernels_.input_units_into)(
            tiling_, inputs.data(), rows, part_of(part), scratch.inputs.at(0));
        kernels_.output_gradient_units_into(tiling_, gradients.data(), rows,
                                            scratch.products.at(0));
      }
      kernels_.products_across_into(tiling_.points(), groups * tiling_.tiles(),
                                    tiling_.shape.out_channels, scratch.products.at(0),
                                    scratch.inputs.at(0), first == 0, scratch.sums.at<float>(0));
    }
    kernels_.weight_gradient_into(tiling_, scratch.sums.at<float>(0), part_of(part), weights);
  }

 private:
  static BlockPart part_of(std::size_t part) noexcept {
    return {part * kPartDepth / 16, (part + 1) * kPartDepth / 16};
  }
  void forward_tiles(std::size_t samples, const float* bias, std::span<std::byte* const> y,
                     Scratch& scratch) const;

  Tiling tiling_;
  const TileKernels& kernels_;
  float scale_;
  AlignedBuffer weights_, weights_across_;
};

}  // namespace fastdqn
