#include "fastdqn/preprocess.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace fastdqn {

// Inlined by force, so that the resize is compiled whole for each instruction set.
#define FASTDQN_INLINE [[gnu::always_inline]] inline

#if defined(__x86_64__)
#define FASTDQN_AVX2 [[gnu::target("avx2")]]
#else
#define FASTDQN_AVX2
#endif

namespace {

constexpr std::uint16_t kUnknown = 256;

// Pixels that are compared at once: long stretches for speed where nothing has changed, and within
// the others blocks of about the width of a sprite.
constexpr std::size_t kStretch = 256;
constexpr std::size_t kBlock = 32;

// Writes the greys of `numbers`; the result has the bit kUnknown where one is not known.
std::uint16_t look_up(const std::uint16_t* grey_of, const std::uint8_t* numbers, std::size_t count,
                      std::uint8_t* greys) noexcept {
  std::uint16_t seen = 0;
#pragma GCC unroll 8
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint16_t grey = grey_of[numbers[i]];
    greys[i] = static_cast<std::uint8_t>(grey);
    seen |= grey;
  }
  return seen;
}

// The resize works on blocks of kLanes rows, and within them on kLanes x kLanes pixels.
constexpr std::size_t kLanes = 8;

// The largest weight of an output pixel whose sum of 255s fits 16 bits with its rounding, and the
// largest whose sum is a whole number that a float holds.
constexpr std::size_t kMaxNarrowWeight = 256;
constexpr std::size_t kMaxWideWeight = 65'792;

constexpr std::size_t pad(std::size_t size) { return (size + kLanes - 1) / kLanes * kLanes; }

template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(kLanes * sizeof(T))));
};
template <class T>
using Vector = typename VectorOf<T>::type;

template <class T>
FASTDQN_INLINE void interleave(const Vector<T>& a, const Vector<T>& b, Vector<T>& low, Vector<T>& high) noexcept {
#if defined(__clang__) || __GNUC__ >= 12
  low = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
  high = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
  using Mask = Vector<std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint32_t>>;
  low = __builtin_shuffle(a, b, Mask{0, 8, 1, 9, 2, 10, 3, 11});
  high = __builtin_shuffle(a, b, Mask{4, 12, 5, 13, 6, 14, 7, 15});
#endif
}

// Three rounds of interleaving rows i and i + 4 transpose a block of 8 x 8.
template <class T>
FASTDQN_INLINE void transpose(Vector<T> (&block)[kLanes]) noexcept {
  static_assert(kLanes == 8);
  for (int round = 0; round < 3; ++round) {
    Vector<T> mixed[kLanes];
    for (std::size_t i = 0; i < kLanes / 2; ++i) {
      interleave<T>(block[i], block[i + kLanes / 2], mixed[2 * i], mixed[2 * i + 1]);
    }
    for (std::size_t i = 0; i < kLanes; ++i) block[i] = mixed[i];
  }
}

// sums[x] += weight * max(a, b)[x]
FASTDQN_INLINE void add_row(const std::uint8_t* a, const std::uint8_t* b, std::size_t width,
                            std::uint16_t weight, std::uint16_t* __restrict sums) noexcept {
  for (std::size_t x = 0; x < width; ++x) {
    sums[x] = static_cast<std::uint16_t>(sums[x] + weight * std::max(a[x], b[x]));
  }
}

}  // namespace

GreyScreens::GreyScreens(std::size_t size) {
  grey_of_.fill(kUnknown);
  for (Screen& screen : screens_) {
    screen.numbers.resize(size);
    screen.greys.resize(size);
  }
}

bool GreyScreens::update(int slot, const std::uint8_t* numbers) noexcept {
  Screen& screen = screens_[static_cast<std::size_t>(slot)];
  const bool compare = screen.complete;
  const std::size_t size = screen.numbers.size();
  std::uint8_t* const held = screen.numbers.data();
  std::uint8_t* const greys = screen.greys.data();
  std::uint16_t seen = 0;
  for (std::size_t start = 0; start < size; start += kStretch) {
    const std::size_t end = std::min(start + kStretch, size);
    if (compare && std::memcmp(numbers + start, held + start, end - start) == 0) continue;
    for (std::size_t i = start; i < end; i += kBlock) {
      const std::size_t count = std::min(kBlock, end - i);
      if (compare && count == kBlock && std::memcmp(numbers + i, held + i, kBlock) == 0) continue;
      seen |= look_up(grey_of_.data(), numbers + i, count, greys + i);
      std::memcpy(held + i, numbers + i, count);
    }
  }
  screen.complete = (seen & kUnknown) == 0;
  return screen.complete;
}

bool GreyScreens::learn(const std::uint8_t* numbers, const std::uint8_t* greys) noexcept {
  for (std::size_t i = 0; i < screens_[0].numbers.size(); ++i) {
    std::uint16_t& grey = grey_of_[numbers[i]];
    if (grey == kUnknown) grey = greys[i];
    if (grey != greys[i]) return false;
  }
  return true;
}

const std::uint8_t* GreyScreens::pixels(int slot) const noexcept {
  return screens_[static_cast<std::size_t>(slot)].greys.data();
}

AreaResize::Axis::Axis(std::size_t source_size, std::size_t size) : taps(0) {
  if (size == 0 || source_size < size) {
    throw std::invalid_argument("cannot average " + std::to_string(source_size) + " pixels to " +
                                std::to_string(size) +
                                ": expected at least 1 and at most as many");
  }
  // Lengths are in parts of a source pixel: it has `parts`, an output pixel has `sum`.
  const std::size_t common = std::gcd(source_size, size);
  const std::size_t parts = size / common;
  sum = source_size / common;
  if (sum > kMaxWideWeight) {
    throw std::invalid_argument(std::to_string(source_size) +
                                " pixels are too many to be averaged exactly to " +
                                std::to_string(size));
  }
  for (std::size_t i = 0; i < size; ++i) {
    taps = std::max(taps, ((i + 1) * sum - 1) / parts - i * sum / parts + 1);
  }
  first.resize(pad(size));
  weights.resize(pad(size) * taps);
  for (std::size_t i = 0; i < size; ++i) {
    // Where the last pixels have fewer taps, theirs begin early, with weights of 0.
    first[i] = std::min(i * sum / parts, source_size - taps);
    for (std::size_t k = 0; k < taps; ++k) {
      const std::size_t left = std::max(i * sum, (first[i] + k) * parts);
      const std::size_t right = std::min((i + 1) * sum, (first[i] + k + 1) * parts);
      if (left < right) weights[i * taps + k] = static_cast<std::uint16_t>(right - left);
    }
  }
}

InstructionSet best_instruction_set() noexcept {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return InstructionSet::kAvx2;
#endif
  return InstructionSet::kBaseline;
}

AreaResize::AreaResize(const ResizeShape& shape, InstructionSet instructions)
    : shape_(shape),
      instructions_(instructions),
      rows_(shape.source_height, shape.height),
      columns_(shape.source_width, shape.width) {
  const std::size_t weight = rows_.sum * columns_.sum;
  if (rows_.sum > kMaxNarrowWeight || weight > kMaxWideWeight) {
    throw std::invalid_argument("an image of " + std::to_string(shape.source_height) + "x" +
                                std::to_string(shape.source_width) +
                                " pixels is too large to be averaged exactly to " +
                                std::to_string(shape.height) + "x" + std::to_string(shape.width));
  }
  const std::size_t block = kLanes * pad(shape.source_width);
  row_sums_.resize(block);
  pixels_.resize(kLanes * pad(shape.width));
  if (weight <= kMaxNarrowWeight) {
    narrow_columns_.resize(block);
  } else {
    wide_columns_.resize(block);
  }
}

template <class Sum, class Real>
FASTDQN_INLINE void AreaResize::apply_with(Sum* columns, const std::uint8_t* a,
                            const std::uint8_t* b, std::uint8_t* out) noexcept {
  const std::size_t source_width = shape_.source_width;
  const std::size_t stride = pad(source_width);
  const std::size_t width = shape_.width;
  const std::size_t pixel_stride = pad(width);
  const std::size_t taps = columns_.taps;
  const std::size_t* const first = columns_.first.data();
  const std::uint16_t* const weights = columns_.weights.data();
  std::uint16_t* const row_sums = row_sums_.data();
  std::uint8_t* const pixels = pixels_.data();
  const Real weight = static_cast<Real>(rows_.sum * columns_.sum);
  const Real scale = 1 / weight;
  // A quarter more than the half that rounds: sums are whole numbers, so it changes no quotient,
  // but it keeps all of them clear of the whole numbers that a rounding error would cross.
  const Real offset = weight / 2 + Real{0.25};

  for (std::size_t y = 0; y < shape_.height; y += kLanes) {
    const std::size_t rows = std::min(kLanes, shape_.height - y);

    // Down: each output row is a weighted sum of source rows.
    for (std::size_t row = 0; row < rows; ++row) {
      std::fill_n(row_sums + row * stride, source_width, std::uint16_t{0});
      for (std::size_t k = 0; k < rows_.taps; ++k) {
        const std::size_t start = (rows_.first[y + row] + k) * source_width;
        add_row(a + start, b + start, source_width, rows_.weights[(y + row) * rows_.taps + k],
                row_sums + row * stride);
      }
    }

    // Transposed, so that a column of the block is one vector.
    for (std::size_t x = 0; x < stride; x += kLanes) {
      Vector<std::uint16_t> block[kLanes];
      for (std::size_t row = 0; row < kLanes; ++row) {
        std::memcpy(&block[row], row_sums + row * stride + x, sizeof(block[row]));
      }
      transpose<std::uint16_t>(block);
      for (std::size_t i = 0; i < kLanes; ++i) {
        const Vector<Sum> column = __builtin_convertvector(block[i], Vector<Sum>);
        std::memcpy(columns + (x + i) * kLanes, &column, sizeof(column));
      }
    }

    // Across: each output column is a weighted sum of columns; transposed back and divided.
    for (std::size_t x = 0; x < width; x += kLanes) {
      Vector<Sum> block[kLanes] = {};
      for (std::size_t k = 0; k < taps; ++k) {
        for (std::size_t i = 0; i < kLanes; ++i) {
          Vector<Sum> column;
          std::memcpy(&column, columns + (first[x + i] + k) * kLanes, sizeof(column));
          block[i] += column * static_cast<Sum>(weights[(x + i) * taps + k]);
        }
      }
      transpose<Sum>(block);
      for (std::size_t row = 0; row < rows; ++row) {
        const Vector<Real> mean =
            (__builtin_convertvector(block[row], Vector<Real>) + offset) * scale;
        const auto whole = __builtin_convertvector(mean, Vector<std::int32_t>);
        const auto block_pixels = __builtin_convertvector(
            __builtin_convertvector(whole, Vector<std::uint16_t>), Vector<std::uint8_t>);
        std::memcpy(pixels + row * pixel_stride + x, &block_pixels, sizeof(block_pixels));
      }
    }
    for (std::size_t row = 0; row < rows; ++row) {
      std::memcpy(out + (y + row) * width, pixels + row * pixel_stride, width);
    }
  }
}

FASTDQN_INLINE void AreaResize::apply(const std::uint8_t* a, const std::uint8_t* b,
                                      std::uint8_t* out) noexcept {
  if (wide_columns_.empty()) {
    apply_with<std::uint16_t, float>(narrow_columns_.data(), a, b, out);
  } else {
    apply_with<float, double>(wide_columns_.data(), a, b, out);
  }
}

void AreaResize::apply_baseline(const std::uint8_t* a, const std::uint8_t* b,
                                std::uint8_t* out) noexcept {
  apply(a, b, out);
}

FASTDQN_AVX2 void AreaResize::apply_avx2(const std::uint8_t* a, const std::uint8_t* b,
                                         std::uint8_t* out) noexcept {
  apply(a, b, out);
}

void AreaResize::apply_max(const std::uint8_t* a, const std::uint8_t* b,
                           std::uint8_t* out) noexcept {
  if (instructions_ == InstructionSet::kAvx2) {
    apply_avx2(a, b, out);
  } else {
    apply_baseline(a, b, out);
  }
}

}  // namespace fastdqn
