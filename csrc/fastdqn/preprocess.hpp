#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastdqn {

/// Writes the element-wise maximum of `a` and `b`, each `size` bytes, to `out`, which may be
/// either of them.
void max_pool(const std::uint8_t* a, const std::uint8_t* b, std::uint8_t* out,
              std::size_t size) noexcept;

/// Sizes in pixels of an image and of the smaller image it is averaged to.
struct ResizeShape {
  std::size_t source_height;
  std::size_t source_width;
  std::size_t height;
  std::size_t width;
};

/// Area-average downscaling of grey images: each output pixel is the mean of the rectangle it
/// covers, weighted by the covered share of every source pixel, rounded half up.
///
/// The arithmetic is in integers and exact: the ratio of two sizes is a fraction, so every weight
/// is a whole number of its parts. One object holds scratch memory: it serves one thread at a time.
class AreaResize {
 public:
  /// Throws std::invalid_argument where a size is 0, where the output is larger than the source
  /// (there is no area to average), or where the sizes are too large for exact 32-bit sums.
  explicit AreaResize(const ResizeShape& shape);

  /// Resizes `source` [source_height, source_width] to `out` [height, width], both contiguous.
  void apply(const std::uint8_t* source, std::uint8_t* out) noexcept;

  /// Resizes the pixel-wise maximum of `a` and `b`; equals max_pool followed by apply.
  void apply_max(const std::uint8_t* a, const std::uint8_t* b, std::uint8_t* out) noexcept;

 private:
  /// The source pixels of every output pixel along one axis, and their integer weights.
  struct Axis {
    Axis(std::size_t source_size, std::size_t size);

    std::vector<std::size_t> first;      ///< [size] first source pixel
    std::vector<std::uint32_t> weights;  ///< [size, taps], 0 where a pixel covers fewer
    std::size_t taps;
    std::uint32_t sum;  ///< of the weights of any one output pixel
  };

  ResizeShape shape_;
  Axis rows_;
  Axis columns_;
  std::uint64_t reciprocal_;             // of the product of both sums, times 2^56
  std::vector<std::uint32_t> row_sums_;  // [source_width + columns_.taps]
};

}  // namespace fastdqn
