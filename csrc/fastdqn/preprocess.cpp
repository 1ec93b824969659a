#include "fastdqn/preprocess.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

namespace fastdqn {

namespace {

// The quotient of a sum s <= 255.5 n by n, n <= 2^24, is exact as (s * ceil(2^56 / n)) >> 56: the
// reciprocal is too large by less than 1 / n, and the product stays below 2^64.
constexpr int kReciprocalBits = 56;
constexpr std::uint64_t kMaxWeightSum = std::uint64_t{1} << 24;

}  // namespace

void max_pool(const std::uint8_t* a, const std::uint8_t* b, std::uint8_t* out,
              std::size_t size) noexcept {
  for (std::size_t i = 0; i < size; ++i) out[i] = std::max(a[i], b[i]);
}

AreaResize::Axis::Axis(std::size_t source_size, std::size_t size) : taps(0) {
  if (size == 0 || source_size < size) {
    throw std::invalid_argument("cannot average " + std::to_string(source_size) +
                                " pixels to " + std::to_string(size) +
                                ": the output must have at least 1 pixel and no more than the "
                                "source");
  }
  // In units of 1 / (size / common) of a source pixel, an output pixel is `sum` units wide.
  const std::size_t common = std::gcd(source_size, size);
  const std::size_t units = size / common;
  const std::size_t width = source_size / common;
  sum = static_cast<std::uint32_t>(width);
  first.resize(size);
  for (std::size_t i = 0; i < size; ++i) {
    first[i] = i * width / units;
    const std::size_t last = ((i + 1) * width - 1) / units;
    taps = std::max(taps, last - first[i] + 1);
  }
  weights.assign(size * taps, 0);
  for (std::size_t i = 0; i < size; ++i) {
    const std::size_t begin = i * width;
    const std::size_t end = begin + width;
    for (std::size_t k = 0; k < taps; ++k) {
      const std::size_t left = std::max(begin, (first[i] + k) * units);
      const std::size_t right = std::min(end, (first[i] + k + 1) * units);
      if (left < right) weights[i * taps + k] = static_cast<std::uint32_t>(right - left);
    }
  }
}

AreaResize::AreaResize(const ResizeShape& shape)
    : shape_(shape),
      rows_(shape.source_height, shape.height),
      columns_(shape.source_width, shape.width) {
  const std::uint64_t total = std::uint64_t{rows_.sum} * columns_.sum;
  if (total > kMaxWeightSum) {
    throw std::invalid_argument("an image of " + std::to_string(shape.source_height) + "x" +
                                std::to_string(shape.source_width) +
                                " pixels is too large to be averaged exactly");
  }
  reciprocal_ = ((std::uint64_t{1} << kReciprocalBits) + total - 1) / total;
  row_sums_.assign(shape.source_width + columns_.taps, 0);
}

void AreaResize::apply(const std::uint8_t* source, std::uint8_t* out) noexcept {
  apply_max(source, source, out);
}

void AreaResize::apply_max(const std::uint8_t* a, const std::uint8_t* b,
                           std::uint8_t* out) noexcept {
  const std::size_t source_width = shape_.source_width;
  const std::uint32_t half = rows_.sum * columns_.sum / 2;
  std::uint32_t* sums = row_sums_.data();
  for (std::size_t y = 0; y < shape_.height; ++y) {
    std::fill_n(sums, source_width, 0U);
    for (std::size_t k = 0; k < rows_.taps; ++k) {
      const std::uint32_t weight = rows_.weights[y * rows_.taps + k];
      if (weight == 0) break;
      const std::size_t start = (rows_.first[y] + k) * source_width;
      for (std::size_t x = 0; x < source_width; ++x) {
        sums[x] += weight * std::max(a[start + x], b[start + x]);
      }
    }
    for (std::size_t x = 0; x < shape_.width; ++x) {
      std::uint64_t sum = half;
      for (std::size_t k = 0; k < columns_.taps; ++k) {
        sum += columns_.weights[x * columns_.taps + k] * sums[columns_.first[x] + k];
      }
      *out++ = static_cast<std::uint8_t>(sum * reciprocal_ >> kReciprocalBits);
    }
  }
}

}  // namespace fastdqn
