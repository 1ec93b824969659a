#pragma once
// The arithmetic of convolutions that are computed tile by tile, by minimal filtering (winograd.hpp).
//
// A filter of `kernel` by `kernel` places that moves by `stride` is one of `taps` by `taps` places
// that moves by one, over *blocks* of stride by stride positions, whose channels are the block's
// numbers. A tile is a square of outputs; one that reaches beyond the last outputs is cut off there,
// and blocks beyond the last are zero.
//
// Products of matrices, one a point, have a row for each tile: inputs [points, rows, depth] by weights
// [points, depth, columns]. Tiles of several samples are rows one behind the other. What all points
// have is written point by point at once: were their matrices a power of two apart, they would be
// after the same few places of the cache, so they are a little more apart than they are large.
//
// Numbers and units are those of nature_kernels.hpp; products are floats.

#include <array>
#include <cstddef>
#include <cstdint>

#include "fastdqn/nature_kernels.hpp"

namespace fastdqn {

/// How a convolution is cut into tiles.
struct Tiling {
  Convolution shape;
  std::size_t taps;     // of the filter over blocks, along an axis
  std::size_t outputs;  // of a tile, along an axis
  std::size_t tiles_y, tiles_x;

  Tiling(const Convolution& shape_, std::size_t outputs_)
      : shape(shape_),
        taps(shape_.kernel / shape_.stride),
        outputs(outputs_),
        tiles_y((shape_.out_height + outputs - 1) / outputs),
        tiles_x((shape_.out_width + outputs - 1) / outputs) {}

  std::size_t points() const noexcept {
    return (outputs + taps - 1) * (outputs + taps - 1);
  }
  std::size_t tiles() const noexcept { return tiles_y * tiles_x; }
  /// Numbers of a block that lie side by side, and all of them.
  std::size_t run() const noexcept { return shape.stride * shape.in_channels; }
  std::size_t depth() const noexcept { return shape.stride * run(); }

  /// From a point's matrix of so many numbers, units or floats to the next.
  static constexpr std::size_t apart(std::size_t size) noexcept { return size + 32; }
};

/// Which row is a sample's first tile, of all.
struct TileRows {
  std::size_t first, all;
};

constexpr std::size_t kPartDepth = 32;  // numbers of a block that a weight's gradient takes at once

/// Which vectors of 16 of a block's numbers.
struct BlockPart {
  std::size_t begin, end;
};

/// Kernels for tiles of one size. Depths are 64 or a multiple, columns 32, 64 or a multiple of 64.
struct TileKernels {
  std::size_t outputs, taps;
  std::size_t numbers;  // in a unit

  /// Weights [out_channels, depth], of those of a block's numbers from `begin` to `end`, an even
  /// number, times `scale` -> units [points, depth / numbers, out_channels].
  void (*pack_into)(const Tiling& tiling, const float* weights, float scale, std::size_t begin,
                    std::size_t end, void* packed) noexcept;
  /// Of the outputs from `begin` to `end`, an even number
  /// -> units [points, depth / 64, out_channels / numbers, 64].
  void (*pack_across_into)(const Tiling& tiling, const float* weights, std::size_t begin,
                           std::size_t end, void* packed) noexcept;

  /// Inputs [height, width, channels] of a sample, bytes or numbers -> numbers [points, rows, depth].
  void (*bytes_into)(const Tiling& tiling, const void* x, const TileRows& rows,
                     void* tiles) noexcept;
  void (*inputs_into)(const Tiling& tiling, const void* x, const TileRows& rows,
                      void* tiles) noexcept;
  /// Products [points, rows, out_channels] -> numbers, the ReLU of a sample's outputs.
  void (*outputs_into)(const Tiling& tiling, const float* products, const TileRows& rows,
                       const float* bias, void* y) noexcept;

  /// The gradient of a sample's outputs, numbers -> numbers [points, rows, out_channels].
  void (*output_gradient_into)(const Tiling& tiling, const void* grad, const TileRows& rows,
                               void* tiles) noexcept;
  /// Products [points, rows, depth] -> the gradient of a sample's inputs.
  void (*input_gradient_into)(const Tiling& tiling, const float* products, const TileRows& rows,
                              float* sums) noexcept;

  /// The same as units, whose numbers are of as many samples, null for none: of inputs [points, rows,
  /// kPartDepth], of a gradient of outputs [points, rows, out_channels].
  void (*byte_units_into)(const Tiling& tiling, const void* const* x, const TileRows& rows,
                          const BlockPart& part, void* tiles) noexcept;
  void (*input_units_into)(const Tiling& tiling, const void* const* x, const TileRows& rows,
                           const BlockPart& part, void* tiles) noexcept;
  void (*output_gradient_units_into)(const Tiling& tiling, const void* const* grad,
                                     const TileRows& rows, void* tiles) noexcept;
  /// Products [points, out_channels, kPartDepth] -> the gradient of weights [out_channels, depth].
  void (*weight_gradient_into)(const Tiling& tiling, const float* products, const BlockPart& part,
                               float* weights) noexcept;

  /// For each point numbers left [rows, depth] times units right [depth / numbers, columns] -> [rows,
  /// columns]. Of more than 64 columns right has 64 after 64, as pack_across_into writes them.
  void (*products_into)(std::size_t points, std::size_t rows, std::size_t depth,
                        std::size_t columns, const void* left, const void* right,
                        float* out) noexcept;
  /// For each point the sums over rows of products of units grad [rows, outputs] and x [rows,
  /// kPartDepth] -> [outputs, kPartDepth], added to what is there, or for `first` not.
  void (*products_across_into)(std::size_t points, std::size_t rows, std::size_t outputs,
                               const void* grad, const void* x, bool first, float* out) noexcept;
};

/// Those of the three layers of a Nature network.
using LayerTileKernels = std::array<const TileKernels*, 3>;
/// Null where the processor cannot run them.
const LayerTileKernels* float32_tile_kernels() noexcept;
const LayerTileKernels* bfloat16_tile_kernels() noexcept;

}  // namespace fastdqn
