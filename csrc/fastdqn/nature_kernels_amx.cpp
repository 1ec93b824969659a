// The Nature network's kernels in bfloat16 for processors with AMX, which multiplies tiles: 16 rows
// of 32 numbers by 16 rows of 16 units, added to 16 rows of 16 floats, in as many cycles as it has rows.
//
// Products are so cheap there that minimal filtering, which saves products and adds conversions, would
// lose. A tile's rows may lie anywhere at equal distances, so that convolutions read their images where
// they are: a tile's rows are the neighbouring outputs of one line, a line's width cut into equal parts.
// What multiplies nothing is the same as for other processors with bfloat16, and so is what stacks of
// other depths make of the first layer: kernels for tiles want runs of whole tiles.

#include "fastdqn/nature_kernels.hpp"

#if defined(__x86_64__) && defined(__linux__)

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
#include <utility>

#define FASTDQN_TARGET [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]]
#define FASTDQN_INLINE FASTDQN_TARGET [[gnu::always_inline]] inline

namespace fastdqn {

namespace {

using Number = std::uint16_t;
using Unit = std::uint32_t;

constexpr std::size_t kSide = 16;       // rows of a tile, and units or floats of a row
constexpr std::size_t kPair = 2 * kSide;  // numbers of a row, and columns of two tiles

// The registers: sums of two rows of tiles by two columns, and their factors.
constexpr int kSums = 0, kLeft = 4, kRight = 6;

template <int kTile>
[[gnu::always_inline]] inline void load(const void* from, std::size_t row_nbytes) noexcept {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(row_nbytes), "i"(kTile) : "memory");
}
template <int kTile>
[[gnu::always_inline]] inline void store(void* to, std::size_t row_nbytes) noexcept {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(row_nbytes), "i"(kTile) : "memory");
}
template <int kTile>
[[gnu::always_inline]] inline void clear() noexcept {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
template <int kTo, int kBy, int kWith>
[[gnu::always_inline]] inline void multiply_add() noexcept {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kTo), "i"(kBy), "i"(kWith));
}

/// The sizes of all registers, for as long as it lives.
class Shapes {
 public:
  /// Sums of two rows of tiles by two columns, so many rows each, over `depth` units; of the second
  /// tiles on each side these may be others.
  Shapes(std::size_t rows, std::size_t depth, std::size_t other) noexcept {
    for (int i = 0; i < 4; ++i) set(kSums + i, rows, kSide);
    for (int i = 0; i < 2; ++i) {
      const std::size_t own = i == 0 ? depth : other;
      set(kLeft + i, rows, own);
      set(kRight + i, own, kSide);
    }
    asm volatile("ldtilecfg %0" ::"m"(config_));
  }
  Shapes(std::size_t rows, std::size_t depth) noexcept : Shapes(rows, depth, depth) {}
  /// All but the last have so many rows, and that is a whole second factor.
  explicit Shapes(std::size_t rows) noexcept {
    for (int i = 0; i < 7; ++i) set(i, rows, kSide);
    set(7, kSide, kSide);
    asm volatile("ldtilecfg %0" ::"m"(config_));
  }
  ~Shapes() { asm volatile("tilerelease"); }
  Shapes(const Shapes&) = delete;
  Shapes& operator=(const Shapes&) = delete;

 private:
  void set(int tile, std::size_t rows, std::size_t row) noexcept {
    config_.rows[static_cast<std::size_t>(tile)] = static_cast<std::uint8_t>(rows);
    config_.row_nbytes[static_cast<std::size_t>(tile)] =
        static_cast<std::uint16_t>(row * sizeof(Unit));
  }
  struct alignas(64) {
    std::uint8_t palette = 1, start_row = 0;
    std::array<std::uint8_t, 14> reserved{};
    std::array<std::uint16_t, 16> row_nbytes{};
    std::array<std::uint8_t, 16> rows{};
  } config_;
};

[[gnu::always_inline]] inline void clear_sums() noexcept {
  clear<kSums>();
  clear<kSums + 1>();
  clear<kSums + 2>();
  clear<kSums + 3>();
}

/// Adds to the sums the products of two rows of tiles by two columns, which lie side by side.
[[gnu::always_inline]] inline void multiply_pairs(const void* first, const void* second,
                                                  std::size_t left_nbytes, const Unit* right,
                                                  std::size_t right_nbytes) noexcept {
  load<kLeft>(first, left_nbytes);
  load<kRight>(right, right_nbytes);
  load<kRight + 1>(right + kSide, right_nbytes);
  load<kLeft + 1>(second, left_nbytes);
  multiply_add<kSums, kLeft, kRight>();
  multiply_add<kSums + 1, kLeft, kRight + 1>();
  multiply_add<kSums + 2, kLeft + 1, kRight>();
  multiply_add<kSums + 3, kLeft + 1, kRight + 1>();
}

/// Two rows of tiles by two columns.
struct alignas(64) PairSums {
  float rows[2][kSide][kPair];
};

[[gnu::always_inline]] inline void store_sums(PairSums& sums) noexcept {
  constexpr std::size_t kRow = kPair * sizeof(float);
  store<kSums>(sums.rows[0][0], kRow);
  store<kSums + 1>(sums.rows[0][0] + kSide, kRow);
  store<kSums + 2>(sums.rows[1][0], kRow);
  store<kSums + 3>(sums.rows[1][0] + kSide, kRow);
}

const Unit* units(const void* memory) noexcept { return static_cast<const Unit*>(memory); }

/// A line of outputs cut into the fewest parts that are no wider than a tile is high; of equal width,
/// so that the last may begin before the one before it ends. What both compute is the same.
struct Parts {
  std::size_t width, count, size;
  explicit Parts(std::size_t width_) noexcept
      : width(width_),
        count((width_ + kSide - 1) / kSide),
        size((width_ + count - 1) / count) {}
  std::size_t begin(std::size_t part) const noexcept {
    return std::min(part * size, width - size);
  }
};

/// The same without a part that overlaps another one, for sums over all: more parts, if need be.
struct DisjointParts {
  std::size_t count, size;
  explicit DisjointParts(std::size_t width) noexcept : count((width + kSide - 1) / kSide) {
    while (width % count != 0) ++count;
    size = width / count;
  }
};

/// 16 rows of 16 units: their columns become the rows.
FASTDQN_INLINE void transpose(__m512i (&rows)[kSide]) noexcept {
  __m512i pairs[kSide];
#pragma GCC unroll 8
  for (std::size_t i = 0; i < kSide; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  __m512i fours[kSide];
#pragma GCC unroll 4
  for (std::size_t i = 0; i < kSide; i += 4) {
    fours[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
    fours[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
    fours[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
    fours[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
  }
#pragma GCC unroll 4
  for (std::size_t i = 0; i < 4; ++i) {
    // Columns i, i + 4, i + 8 and i + 12 of four rows each.
    const __m512i low_even = _mm512_shuffle_i32x4(fours[i], fours[i + 4], 0x88);
    const __m512i low_odd = _mm512_shuffle_i32x4(fours[i], fours[i + 4], 0xdd);
    const __m512i high_even = _mm512_shuffle_i32x4(fours[i + 8], fours[i + 12], 0x88);
    const __m512i high_odd = _mm512_shuffle_i32x4(fours[i + 8], fours[i + 12], 0xdd);
    rows[i] = _mm512_shuffle_i32x4(low_even, high_even, 0x88);
    rows[i + 8] = _mm512_shuffle_i32x4(low_even, high_even, 0xdd);
    rows[i + 4] = _mm512_shuffle_i32x4(low_odd, high_odd, 0x88);
    rows[i + 12] = _mm512_shuffle_i32x4(low_odd, high_odd, 0xdd);
  }
}

// -- convolutions -----------------------------------------------------------------------------

bool in_whole_tiles(const Convolution& shape) noexcept { return shape.run() % kPair == 0; }

/// Neighbouring outputs that are computed at once, and which of them are wanted.
struct Outputs {
  std::size_t position, begin, end;
};

constexpr std::size_t kMostOutputs = 5;  // whose sums are in registers: weights are loaded once for all

/// The sums of 16 channels at all of `outputs`. The weights of these channels lie one after the other.
template <std::size_t... kOutput>
[[gnu::always_inline]] inline void convolve_channels(const Convolution& shape, const Number* x,
                                                     const Unit* weights, const Outputs* outputs,
                                                     float (*sums)[kSide][kSide],
                                                     std::index_sequence<kOutput...>) noexcept {
  // Sums in registers 0 to 4, rows of images in 5 and 6 in turns, and weights in 7.
  const std::size_t left_nbytes = shape.stride * shape.in_channels * sizeof(Number);
  const std::size_t next_line = shape.in_width * shape.in_channels;
  const Number* lines[] = {x + shape.offsets[outputs[kOutput].position]...};
  (clear<static_cast<int>(kOutput)>(), ...);
  for (std::size_t row = 0; row < shape.kernel; ++row) {
    for (std::size_t place = 0; place < shape.run(); place += kPair, weights += kSide * kSide) {
      load<7>(weights, kSide * sizeof(Unit));
      ((load<5 + static_cast<int>(kOutput % 2)>(lines[kOutput] + place, left_nbytes),
        multiply_add<static_cast<int>(kOutput), 5 + static_cast<int>(kOutput % 2), 7>()),
       ...);
    }
    ((lines[kOutput] += next_line), ...);
  }
  (store<static_cast<int>(kOutput)>(sums[kOutput], kSide * sizeof(float)), ...);
}

template <std::size_t kCount>
FASTDQN_TARGET void convolve_outputs(const Convolution& shape, const Number* x,
                                     const Unit* weights, const float* bias,
                                     const Outputs* outputs, Number* y) noexcept {
  const std::size_t channels = shape.out_channels;
  alignas(64) float sums[kCount][kSide][kSide];
  for (std::size_t channel = 0; channel < channels; channel += kSide) {
    convolve_channels(shape, x, weights + channel * shape.depth() / 2, outputs, sums,
                      std::make_index_sequence<kCount>());
    const __m512 biases = _mm512_loadu_ps(bias + channel);
    for (std::size_t k = 0; k < kCount; ++k) {
      Number* to = y + outputs[k].position * channels + channel;
      for (std::size_t i = outputs[k].begin; i < outputs[k].end; ++i) {
        const __m512 sum = _mm512_max_ps(_mm512_add_ps(_mm512_load_ps(sums[k][i]), biases),
                                         _mm512_setzero_ps());
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i * channels),
                            reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(sum)));
      }
    }
  }
}

FASTDQN_TARGET void convolve_into(const Convolution& shape, const void* x, const void* weights,
                                  const float* bias, std::size_t begin, std::size_t end,
                                  void* y) noexcept {
  using Convolve = void (*)(const Convolution&, const Number*, const Unit*, const float*,
                            const Outputs*, Number*) noexcept;
  static constexpr std::array<Convolve, kMostOutputs> kConvolve{
      &convolve_outputs<1>, &convolve_outputs<2>, &convolve_outputs<3>, &convolve_outputs<4>,
      &convolve_outputs<5>};
  if (!in_whole_tiles(shape)) {
    bfloat16_kernels()->convolve_into(shape, x, weights, bias, begin, end, y);
    return;
  }
  if (begin == end) return;
  const Parts parts(shape.out_width);
  const Shapes shapes(parts.size);
  std::array<Outputs, kMostOutputs> outputs;
  // No more at a time than there are registers, in passes of nearly equal size.
  const std::size_t lines = (end - begin + parts.size - 1) / parts.size;
  const std::size_t passes = (lines + kMostOutputs - 1) / kMostOutputs;
  const std::size_t most = (lines + passes - 1) / passes;
  std::size_t count = 0;
  for (std::size_t position = begin; position < end;) {
    const std::size_t line = position / parts.width * parts.width;
    const std::size_t first = std::min(position, line + parts.width - parts.size);
    const std::size_t last = std::min({first + parts.size, line + parts.width, end});
    outputs[count++] = {first, position - first, last - first};
    position = last;
    if (count < most && position < end) continue;
    kConvolve[count - 1](shape, static_cast<const Number*>(x), units(weights), bias,
                         outputs.data(), static_cast<Number*>(y));
    count = 0;
  }
}

std::size_t packed_columns(const Convolution& shape) noexcept {
  return in_whole_tiles(shape) ? kSide : shape.out_channels;
}

/// The gradient of inputs is a convolution too, for each of stride by stride kinds of inputs: of the
/// outputs' gradient with so many lines and columns of zeros around, by every stride-th place.
struct Backwards {
  std::size_t taps, lines, width;  // of the places; of the inputs of a kind that any output reads
  explicit Backwards(const Convolution& shape) noexcept
      : taps((shape.kernel + shape.stride - 1) / shape.stride),
        lines(shape.out_height + taps - 1),
        width(shape.out_width + taps - 1) {}
  std::size_t padded_width() const noexcept { return width + taps - 1; }
  std::size_t padded_numbers(const Convolution& shape) const noexcept {
    return (lines + taps - 1) * padded_width() * shape.out_channels;
  }
};

std::size_t input_gradient_floats(const Convolution& shape) noexcept {
  return shape.inputs() + (Backwards(shape).padded_numbers(shape) + 1) / 2;
}

FASTDQN_TARGET void input_gradient_into(const Convolution& shape, const void* grad,
                                        const void* weights, float* sums) noexcept {
  const Backwards back(shape);
  const std::size_t in = shape.in_channels, out = shape.out_channels, stride = shape.stride;
  auto* const padded = reinterpret_cast<Number*>(sums + shape.inputs());
  const std::size_t edge = back.taps - 1;
  const std::size_t padded_row = back.padded_width() * out;
  std::memset(padded, 0, back.padded_numbers(shape) * sizeof(Number));
  for (std::size_t y = 0; y < shape.out_height; ++y) {
    std::memcpy(padded + (y + edge) * padded_row + edge * out,
                static_cast<const Number*>(grad) + y * shape.out_width * out,
                shape.out_width * out * sizeof(Number));
  }
  if (back.lines * stride != shape.in_height || back.width * stride != shape.in_width) {
    std::memset(sums, 0, shape.inputs() * sizeof(float));  // some of them no output reads
  }

  const Parts parts(back.width);
  const Shapes shapes(parts.size, kSide);
  const std::size_t blocks = back.lines * parts.count;
  const std::size_t sums_nbytes = stride * in * sizeof(float);
  for (std::size_t kind = 0; kind < stride * stride; ++kind) {
    const std::size_t kind_y = kind / stride, kind_x = kind % stride;
    for (std::size_t block = 0; block < blocks; block += 2) {
      const Number* from[2];
      float* to[2];
      for (std::size_t k = 0; k < 2; ++k) {
        const std::size_t own = std::min(block + k, blocks - 1);  // the last twice, if need be
        const std::size_t line = own / parts.count, begin = parts.begin(own % parts.count);
        from[k] = padded + (line + edge) * padded_row + (begin + edge) * out;
        to[k] = sums + ((line * stride + kind_y) * shape.in_width + begin * stride + kind_x) * in;
      }
      for (std::size_t column = 0; column < in; column += kPair) {
        clear_sums();
        for (std::size_t y = kind_y, up = 0; y < shape.kernel; y += stride, up += padded_row) {
          for (std::size_t x = kind_x, left = 0; x < shape.kernel; x += stride, left += out) {
            const Unit* right =
                units(weights) + (y * shape.kernel + x) * (out / 2) * in + column;
            for (std::size_t channel = 0; channel < out; channel += kPair, right += kSide * in) {
              const std::ptrdiff_t place = static_cast<std::ptrdiff_t>(channel) -
                                           static_cast<std::ptrdiff_t>(up + left);
              multiply_pairs(from[0] + place, from[1] + place, out * sizeof(Number), right,
                             in * sizeof(Unit));
            }
          }
        }
        store<kSums>(to[0] + column, sums_nbytes);
        store<kSums + 1>(to[0] + column + kSide, sums_nbytes);
        store<kSums + 2>(to[1] + column, sums_nbytes);
        store<kSums + 3>(to[1] + column + kSide, sums_nbytes);
      }
    }
  }
}

FASTDQN_INLINE __m512i widened(const Number* numbers) noexcept {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(numbers)));
}

/// -> units [out_height, out_channels, out_width].
FASTDQN_TARGET void pair_gradient_into(const Convolution& shape, const void* first,
                                       const void* second, void* memory) noexcept {
  if (!in_whole_tiles(shape)) {
    bfloat16_kernels()->pair_gradient_into(shape, first, second, memory);
    return;
  }
  auto* out = static_cast<Unit*>(memory);
  const std::size_t channels = shape.out_channels, width = shape.out_width;
  for (std::size_t line = 0; line < shape.out_height; ++line, out += channels * width) {
    for (std::size_t channel = 0; channel < channels; channel += kSide) {
      for (std::size_t x = 0; x < width; x += kSide) {
        const std::size_t count = std::min(kSide, width - x);
        __m512i rows[kSide];
        for (std::size_t i = 0; i < kSide; ++i) {
          rows[i] = _mm512_setzero_si512();
          if (i >= count) continue;
          const std::size_t place = (line * width + x + i) * channels + channel;
          rows[i] = widened(static_cast<const Number*>(first) + place);
          if (second == nullptr) continue;
          const __m512i upper = widened(static_cast<const Number*>(second) + place);
          rows[i] = _mm512_or_si512(rows[i], _mm512_slli_epi32(upper, 16));
        }
        transpose(rows);
        const auto lanes = static_cast<__mmask16>((1U << count) - 1);
        for (std::size_t i = 0; i < kSide; ++i) {
          _mm512_mask_storeu_epi32(out + (channel + i) * width + x, lanes, rows[i]);
        }
      }
    }
  }
}

/// A block is 32 neighbours of a run by 32 outputs.
std::size_t count_blocks(const Convolution& shape) noexcept {
  if (!in_whole_tiles(shape)) return bfloat16_kernels()->count_blocks(shape);
  return shape.kernel * (shape.run() / kPair) * (shape.out_channels / kPair);
}

FASTDQN_TARGET void weight_gradient_into(const Convolution& shape, const void* x, const void* grad,
                                         std::size_t begin, std::size_t end, bool first,
                                         float* weights) noexcept {
  if (!in_whole_tiles(shape)) {
    bfloat16_kernels()->weight_gradient_into(shape, x, grad, begin, end, first, weights);
    return;
  }
  const std::size_t width = shape.out_width, channels = shape.out_channels;
  const DisjointParts parts(width);
  const Shapes shapes(kSide, parts.size);
  const std::size_t step = shape.stride * shape.in_channels;
  const std::size_t runs = shape.run() / kPair, outputs = channels / kPair;
  PairSums sums;
  for (std::size_t block = begin; block < end; ++block) {
    const std::size_t output = block % outputs * kPair;
    const std::size_t place = block / outputs % runs * kPair;
    const std::size_t y = block / outputs / runs;
    const Unit* right = units(x) + y * shape.in_width * shape.in_channels + place;
    const Unit* left = units(grad) + output * width;
    clear_sums();
    for (std::size_t line = 0; line < shape.out_height; ++line) {
      for (std::size_t part = 0; part < parts.count; ++part) {
        const Unit* from = left + part * parts.size;
        multiply_pairs(from, from + kSide * width, width * sizeof(Unit),
                       right + part * parts.size * step, step * sizeof(Unit));
      }
      right += shape.stride * shape.in_width * shape.in_channels;
      left += channels * width;
    }
    store_sums(sums);
    float* to = weights + output * shape.depth() + y * shape.run() + place;
    for (std::size_t i = 0; i < kPair; ++i, to += shape.depth()) {
      const float* from = sums.rows[i / kSide][i % kSide];
      for (std::size_t k = 0; k < kPair; k += kSide) {
        // Each group is summed up by itself, which keeps more of its small numbers.
        const __m512 before = first ? _mm512_setzero_ps() : _mm512_loadu_ps(to + k);
        _mm512_storeu_ps(to + k, _mm512_add_ps(before, _mm512_load_ps(from + k)));
      }
    }
  }
}

// -- the dense layer --------------------------------------------------------------------------

constexpr std::size_t kDenseSteps = 14;  // tiles of weights that are made ready at once
constexpr std::size_t kDenseTiles = 4;   // of rows, whose sums are in registers
constexpr std::size_t kDenseGroup = 8;   // of rows, for which weights are made ready once

/// Adds to the sums of some tiles of rows the products over `steps` tiles of numbers.
template <std::size_t kTiles>
FASTDQN_TARGET void dense_tiles(const Number* const* x, std::size_t x_nbytes, const Unit* weights,
                                std::size_t steps, bool first, float (*sums)[kSide][kSide]) noexcept {
  constexpr std::size_t kRow = kSide * sizeof(float);
  const auto each = [&]<std::size_t... kTile>(std::index_sequence<kTile...>) {
    if (first) {
      (clear<kSums + static_cast<int>(kTile)>(), ...);
    } else {
      (load<kSums + static_cast<int>(kTile)>(sums[kTile], kRow), ...);
    }
    for (std::size_t step = 0; step < steps; ++step) {
      load<kRight>(weights + step * kSide * kSide, kSide * sizeof(Unit));
      ((load<kLeft + static_cast<int>(kTile % 2)>(x[kTile] + step * kPair, x_nbytes),
        multiply_add<kSums + static_cast<int>(kTile), kLeft + static_cast<int>(kTile % 2),
                     kRight>()),
       ...);
    }
    (store<kSums + static_cast<int>(kTile)>(sums[kTile], kRow), ...);
  };
  each(std::make_index_sequence<kTiles>());
}

FASTDQN_TARGET void dense_into(const void* x, const void* weights, const float* bias,
                               std::size_t rows, std::size_t inputs, std::size_t outputs,
                               std::size_t begin, std::size_t end, float* y) noexcept {
  using Tiles = void (*)(const Number* const*, std::size_t, const Unit*, std::size_t, bool,
                         float (*)[kSide][kSide]) noexcept;
  static constexpr std::array<Tiles, kDenseTiles> kTiles{&dense_tiles<1>, &dense_tiles<2>,
                                                         &dense_tiles<3>, &dense_tiles<4>};
  const Parts parts(rows);
  const Shapes shapes(parts.size, kSide);
  const std::size_t steps = inputs / kPair;
  alignas(64) Unit ready[kDenseSteps * kSide * kSide];
  alignas(64) float sums[kDenseGroup][kSide][kSide];
  const Number* from[kDenseGroup];
  for (std::size_t output = begin; output < end; output += kSide) {
    for (std::size_t group = 0; group < parts.count; group += kDenseGroup) {
      const std::size_t tiles = std::min(kDenseGroup, parts.count - group);
      for (std::size_t step = 0; step < steps; step += kDenseSteps) {
        const std::size_t count = std::min(kDenseSteps, steps - step);
        // Weights lie output by output; a tile of the second factor has them side by side.
        for (std::size_t i = 0; i < count; ++i) {
          __m512i lines[kSide];
#pragma GCC unroll 16
          for (std::size_t k = 0; k < kSide; ++k) {
            lines[k] = _mm512_loadu_si512(static_cast<const Number*>(weights) +
                                          (output + k) * inputs + (step + i) * kPair);
          }
          transpose(lines);
#pragma GCC unroll 16
          for (std::size_t k = 0; k < kSide; ++k) {
            _mm512_store_si512(ready + (i * kSide + k) * kSide, lines[k]);
          }
        }
        for (std::size_t tile = 0; tile < tiles; ++tile) {
          from[tile] = static_cast<const Number*>(x) + parts.begin(group + tile) * inputs +
                       step * kPair;
        }
        for (std::size_t tile = 0; tile < tiles; tile += kDenseTiles) {
          const std::size_t now = std::min(kDenseTiles, tiles - tile);
          kTiles[now - 1](from + tile, inputs * sizeof(Number), ready, count, step == 0,
                          sums + tile);
        }
      }
      const __m512 biases = _mm512_loadu_ps(bias + output);
      for (std::size_t tile = 0; tile < tiles; ++tile) {
        float* to = y + parts.begin(group + tile) * outputs + output;
        for (std::size_t i = 0; i < parts.size; ++i, to += outputs) {
          _mm512_storeu_ps(to, _mm512_max_ps(_mm512_add_ps(_mm512_load_ps(sums[tile][i]), biases),
                                             _mm512_setzero_ps()));
        }
      }
    }
  }
}

constexpr std::size_t kDenseInputs = 64;
constexpr std::size_t kDenseOutputs = 512;  // of the layer, at most, for its inputs' gradient

FASTDQN_TARGET void dense_input_gradient_into(const void* grad, const void* weights, const void* x,
                                              std::size_t rows, std::size_t inputs,
                                              std::size_t outputs, std::size_t input,
                                              void* grad_x) noexcept {
  const Parts parts(rows);
  const Shapes shapes(parts.size, kSide);
  alignas(64) Unit ready[kDenseOutputs / 2 * kPair];  // of two outputs each
  alignas(64) Number places[kPair];  // of the columns in two rows, one column's numbers side by side
  for (std::size_t i = 0; i < kPair; ++i) {
    places[i] = static_cast<Number>(i / 2 + (i % 2 == 0 ? 0 : kPair));
  }
  const __m512i lower_columns = _mm512_load_si512(places);
  const __m512i upper_columns = _mm512_add_epi16(lower_columns, _mm512_set1_epi16(kSide));
  PairSums sums;
  for (std::size_t column = input; column < input + kDenseInputs; column += kPair) {
    for (std::size_t pair = 0; pair < outputs / 2; ++pair) {
      const Number* line = static_cast<const Number*>(weights) + 2 * pair * inputs + column;
      const __m512i even = _mm512_loadu_si512(line);
      const __m512i odd = _mm512_loadu_si512(line + inputs);
      _mm512_store_si512(ready + pair * kPair,
                         _mm512_permutex2var_epi16(even, lower_columns, odd));
      _mm512_store_si512(ready + pair * kPair + kSide,
                         _mm512_permutex2var_epi16(even, upper_columns, odd));
    }
    for (std::size_t part = 0; part < parts.count; part += 2) {
      const std::size_t begins[2] = {parts.begin(part),
                                     parts.begin(std::min(part + 1, parts.count - 1))};
      const Number* from[2];
      for (std::size_t k = 0; k < 2; ++k) {
        from[k] = static_cast<const Number*>(grad) + begins[k] * outputs;
      }
      clear_sums();
      for (std::size_t output = 0; output < outputs; output += kPair) {
        multiply_pairs(from[0] + output, from[1] + output, outputs * sizeof(Number),
                       ready + output / 2 * kPair, kPair * sizeof(Unit));
      }
      store_sums(sums);
      for (std::size_t k = 0; k < 2; ++k) {
        for (std::size_t i = 0; i < parts.size; ++i) {
          const std::size_t place = (begins[k] + i) * inputs + column;
          const __m512i numbers = _mm512_loadu_si512(static_cast<const Number*>(x) + place);
          // Positive bfloat16 are positive as integers.
          const __mmask32 active = _mm512_cmpgt_epi16_mask(numbers, _mm512_setzero_si512());
          const float* sum = sums.rows[k][i];
          const auto rounded = reinterpret_cast<__m512i>(
              _mm512_cvtne2ps_pbh(_mm512_load_ps(sum + kSide), _mm512_load_ps(sum)));
          _mm512_storeu_si512(static_cast<Number*>(grad_x) + place,
                              _mm512_maskz_mov_epi16(active, rounded));
        }
      }
    }
  }
}

FASTDQN_TARGET void dense_weight_gradient_into(const void* grad, const void* x, std::size_t rows,
                                               std::size_t inputs, std::size_t outputs,
                                               std::size_t begin, std::size_t end,
                                               std::size_t row, float* weights) noexcept {
  const Parts parts(outputs);
  const std::size_t whole = rows / kSide * kSide, rest = rows - whole;
  const Shapes shapes(parts.size, kSide, std::max<std::size_t>(rest, 1));
  const std::size_t left_nbytes = rows * sizeof(Unit), right_nbytes = inputs * sizeof(Unit);
  const std::size_t to_nbytes = row * sizeof(float);
  const auto columns = [&]<int kKind>(std::integral_constant<int, kKind>, const Unit* left,
                                      const Unit* right) {
    load<kLeft + kKind>(left, left_nbytes);
    const auto column = [&]<int kColumn>(std::integral_constant<int, kColumn>) {
      load<kRight + kKind>(right + kColumn * static_cast<int>(kSide), right_nbytes);
      multiply_add<kSums + kColumn, kLeft + kKind, kRight + kKind>();
    };
    column(std::integral_constant<int, 0>());
    column(std::integral_constant<int, 1>());
    column(std::integral_constant<int, 2>());
    column(std::integral_constant<int, 3>());
  };
  for (std::size_t input = begin; input < end; input += kDenseInputs) {
    for (std::size_t part = 0; part < parts.count; ++part) {
      const Unit* left = units(grad) + parts.begin(part) * rows;
      const Unit* right = units(x) + input;
      clear_sums();
      for (std::size_t place = 0; place < whole; place += kSide) {
        columns(std::integral_constant<int, 0>(), left + place, right + place * inputs);
      }
      if (rest != 0) {
        columns(std::integral_constant<int, 1>(), left + whole, right + whole * inputs);
      }
      float* to = weights + parts.begin(part) * row + input - begin;
      store<kSums>(to, to_nbytes);
      store<kSums + 1>(to + kSide, to_nbytes);
      store<kSums + 2>(to + 2 * kSide, to_nbytes);
      store<kSums + 3>(to + 3 * kSide, to_nbytes);
    }
  }
}

/// Whether there are tiles, and the system lets this process have them, which it has to be asked.
bool may_use_tiles() noexcept {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

const NatureKernels* amx_kernels() noexcept {
  static const NatureKernels* const kernels = []() -> const NatureKernels* {
    const NatureKernels* others = bfloat16_kernels();
    if (others == nullptr || !may_use_tiles()) return nullptr;
    static NatureKernels own = *others;
    own.packed_columns = &packed_columns;
    own.convolve_into = &convolve_into;
    own.input_gradient_into = &input_gradient_into;
    own.input_gradient_floats = &input_gradient_floats;
    own.pair_gradient_into = &pair_gradient_into;
    own.weight_gradient_into = &weight_gradient_into;
    own.count_blocks = &count_blocks;
    own.dense_into = &dense_into;
    own.dense_input_gradient_into = &dense_input_gradient_into;
    own.dense_weight_gradient_into = &dense_weight_gradient_into;
    return &own;
  }();
  return kernels;
}

}  // namespace fastdqn

#else

namespace fastdqn {

const NatureKernels* amx_kernels() noexcept { return nullptr; }

}  // namespace fastdqn

#endif
