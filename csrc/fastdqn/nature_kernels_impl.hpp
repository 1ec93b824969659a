// The kernels of nature_kernels.hpp, written once for both kinds of numbers.
//
// To be included once by a source file that has defined FASTDQN_TARGET, its instruction sets,
// FASTDQN_INLINE, which inlines too, and a struct Op: its numbers, and how units of them are loaded,
// multiplied and rounded. Everything is
// local to that file, as it is compiled for its instruction sets alone.
//
// All products are sums of outer products that stay in registers: a few rows, of which one unit at a
// time goes to all lanes, by a few vectors of 16 columns. So many rows are taken that 24 sums are
// under way where there are that many: eight hide the latency, and the more there are the fewer loads
// there are for each product.

#include <array>
#include <cstring>
#include <utility>

#include "fastdqn/adam_kernel.hpp"
#include "fastdqn/nature_kernels.hpp"

namespace fastdqn {

namespace {

using Number = Op::Number;
using Unit = std::uint32_t;  // never read as such: kernels are handed memory of floats too

constexpr std::size_t kLanes = 16;

// Rows of a block of sums for so many vectors of columns.
constexpr std::size_t kMaxVectors = 4;
constexpr std::array<std::size_t, kMaxVectors + 1> kMaxRows{0, 12, 12, 8, 6};

template <int kRows, int kVectors>
using Sums = __m512[kRows][kVectors];

/// Calls a function with each of `count` things cut into as few pieces of at most `most` as there
/// are, none more than one larger than another.
struct Pieces {
  std::size_t number, size, larger;
  Pieces(std::size_t count, std::size_t most)
      : number((count + most - 1) / most),
        size(count == 0 ? 0 : count / number),
        larger(count == 0 ? 0 : count % number) {}
  std::size_t begin(std::size_t piece) const {
    return piece * size + (piece < larger ? piece : larger);
  }
  std::size_t length(std::size_t piece) const { return size + (piece < larger ? 1 : 0); }
};

template <int kRows, int kVectors>
FASTDQN_INLINE void clear(Sums<kRows, kVectors>& sums) noexcept {
#pragma GCC unroll 12
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) sums[row][vector] = _mm512_setzero_ps();
  }
}

/// sums += rows' units at `place`, times the units at `columns`.
template <int kRows, int kVectors>
FASTDQN_INLINE void multiply(Sums<kRows, kVectors>& sums, const Unit* const (&rows)[kRows],
                             std::size_t place, const Unit* columns) noexcept {
  Op::Units right[kVectors];
#pragma GCC unroll 4
  for (int vector = 0; vector < kVectors; ++vector) {
    right[vector] = Op::load(columns + vector * static_cast<int>(kLanes));
  }
#pragma GCC unroll 12
  for (int row = 0; row < kRows; ++row) {
    const Op::Units left = Op::broadcast(rows[row] + place);
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) {
      sums[row][vector] = Op::multiply_add(sums[row][vector], left, right[vector]);
    }
  }
}

const Unit* units(const void* memory) noexcept { return static_cast<const Unit*>(memory); }

// -- conversions ------------------------------------------------------------------------------

/// The lanes of a row of that many bytes that are left from `place` on.
__mmask16 lanes_left(std::size_t row, std::size_t place) noexcept {
  return row - place >= kLanes ? __mmask16{0xffff}
                               : static_cast<__mmask16>((1U << (row - place)) - 1);
}

FASTDQN_INLINE __m512 floats_of_bytes(const std::uint8_t* bytes, __mmask16 lanes) noexcept {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(lanes, bytes)));
}

FASTDQN_TARGET void image_into(const std::uint8_t* image, std::size_t height, std::size_t row,
                               std::size_t padding, std::size_t channels, void* numbers) noexcept {
  auto* out = static_cast<Number*>(numbers);
  const std::size_t side = padding * channels;
  const std::size_t width = row + 2 * side;
  std::memset(out, 0, padding * width * sizeof(Number));
  out += padding * width;
  for (std::size_t y = 0; y < height; ++y, image += row, out += width) {
    if (side != 0) std::memset(out, 0, side * sizeof(Number));
    for (std::size_t x = 0; x < row; x += kLanes) {
      const __mmask16 lanes = lanes_left(row, x);
      Op::store(out + side + x, lanes, floats_of_bytes(image + x, lanes));
    }
    if (side != 0) std::memset(out + side + row, 0, side * sizeof(Number));
  }
  std::memset(out, 0, padding * width * sizeof(Number));
}

FASTDQN_TARGET void image_units_into(const std::uint8_t* first, const std::uint8_t* second,
                                     std::size_t height, std::size_t row, std::size_t padding,
                                     std::size_t channels, void* memory) noexcept {
  if constexpr (Op::kNumbers == 1) {
    image_into(first, height, row, padding, channels, memory);
  } else {
    auto* out = static_cast<Unit*>(memory);
    const std::size_t side = padding * channels;
    const std::size_t width = row + 2 * side;
    std::memset(out, 0, padding * width * sizeof(Unit));
    out += padding * width;
    for (std::size_t y = 0; y < height; ++y, out += width) {
      if (side != 0) std::memset(out, 0, side * sizeof(Unit));
      for (std::size_t x = 0; x < row; x += kLanes) {
        const __mmask16 lanes = lanes_left(row, x);
        const std::size_t place = y * row + x;
        // Bytes are exact in the upper half of a float, which is a bfloat16.
        __m512i pair = _mm512_srli_epi32(
            _mm512_castps_si512(floats_of_bytes(first + place, lanes)), 16);
        if (second != nullptr) {
          pair = _mm512_or_si512(
              pair, _mm512_castps_si512(floats_of_bytes(second + place, lanes)));
        }
        _mm512_mask_storeu_epi32(out + side + x, lanes, pair);
      }
      if (side != 0) std::memset(out + side + row, 0, side * sizeof(Unit));
    }
    std::memset(out, 0, padding * width * sizeof(Unit));
  }
}

FASTDQN_TARGET void pair_into(const void* first, const void* second, std::size_t count,
                              void* memory) noexcept {
  const auto* a = static_cast<const Number*>(first);
  const auto* b = static_cast<const Number*>(second);
  auto* out = static_cast<Unit*>(memory);
  for (std::size_t i = 0; i < count; i += kLanes) {
    __m512i pair = _mm512_cvtepu16_epi32(
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a + i)));
    if (b != nullptr) {
      const __m512i upper = _mm512_cvtepu16_epi32(
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b + i)));
      pair = _mm512_or_si512(pair, _mm512_slli_epi32(upper, 16));
    }
    _mm512_storeu_si512(out + i, pair);
  }
}

FASTDQN_TARGET void round_into(const float* floats, std::size_t count, void* numbers) noexcept {
  auto* out = static_cast<Number*>(numbers);
  for (std::size_t i = 0; i < count; i += kLanes) {
    Op::store(out + i, 0xffff, _mm512_loadu_ps(floats + i));
  }
}

std::size_t packed_columns(const Convolution& shape) noexcept { return shape.out_channels; }

FASTDQN_TARGET void pack_by_depth_into(const float* weights, std::size_t outputs,
                                       std::size_t depth, float scale, std::size_t columns,
                                       std::size_t begin, std::size_t end, void* memory) noexcept {
  auto* out = static_cast<Unit*>(memory);
  const __m512i step = _mm512_set1_epi32(static_cast<int>(depth));
  const __m512i lanes =
      _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i places = _mm512_mullo_epi32(lanes, step);
  const __m512 factor = _mm512_set1_ps(scale);
  for (std::size_t unit = begin; unit < end; ++unit) {
    for (std::size_t output = 0; output < outputs; output += kLanes) {
      const float* first = weights + output * depth + unit * Op::kNumbers;
      const __m512 lower = _mm512_i32gather_ps(places, first, 4);
      const __m512 upper =
          Op::kNumbers == 2 ? _mm512_i32gather_ps(places, first + 1, 4) : lower;
      const std::size_t group = output / columns * (depth / Op::kNumbers);
      _mm512_storeu_si512(out + (group + unit) * columns + output % columns,
                          Op::unit(_mm512_mul_ps(lower, factor), _mm512_mul_ps(upper, factor)));
    }
  }
}

FASTDQN_TARGET void pack_by_place_into(const float* weights, std::size_t outputs,
                                       std::size_t places, std::size_t channels,
                                       std::size_t begin, std::size_t end, void* memory) noexcept {
  const std::size_t depth = places * channels;
  auto* out = static_cast<Unit*>(memory) + begin * (outputs / Op::kNumbers) * channels;
  for (std::size_t place = begin; place < end; ++place) {
    for (std::size_t output = 0; output < outputs; output += Op::kNumbers) {
      const float* lower = weights + output * depth + place * channels;
      const float* upper = lower + (Op::kNumbers == 2 ? depth : 0);
      for (std::size_t channel = 0; channel < channels; channel += kLanes, out += kLanes) {
        _mm512_storeu_si512(out, Op::unit(_mm512_loadu_ps(lower + channel),
                                          _mm512_loadu_ps(upper + channel)));
      }
    }
  }
}

// -- convolutions -----------------------------------------------------------------------------

using ConvolveBlock = void (*)(const Convolution&, const Number*, const Unit*, const float*,
                               std::size_t, Number*) noexcept;

template <int kRows, int kVectors>
FASTDQN_TARGET void convolve_block(const Convolution& shape, const Number* x, const Unit* weights,
                                   const float* bias, std::size_t position, Number* y) noexcept {
  constexpr std::size_t kColumns = kVectors * kLanes;
  Sums<kRows, kVectors> sums;
  const Unit* rows[kRows];
#pragma GCC unroll 12
  for (int row = 0; row < kRows; ++row) {
    rows[row] = units(x + shape.offsets[position + static_cast<std::size_t>(row)]);
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) {
      sums[row][vector] = _mm512_loadu_ps(bias + vector * static_cast<int>(kLanes));
    }
  }
  const std::size_t run = shape.run() / Op::kNumbers;
  const std::size_t next = shape.in_width * shape.in_channels / Op::kNumbers;
  for (std::size_t y_in_kernel = 0; y_in_kernel < shape.kernel; ++y_in_kernel) {
    for (std::size_t place = 0; place < run; ++place) {
      multiply<kRows, kVectors>(sums, rows, place, weights);
      weights += kColumns;
    }
#pragma GCC unroll 12
    for (int row = 0; row < kRows; ++row) rows[row] += next;
  }
  y += position * kColumns;
#pragma GCC unroll 12
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) {
      Op::store(y, 0xffff, _mm512_max_ps(sums[row][vector], _mm512_setzero_ps()));
      y += kLanes;
    }
  }
}

template <int kVectors, std::size_t... kRows>
constexpr std::array<ConvolveBlock, sizeof...(kRows)> convolve_blocks(
    std::index_sequence<kRows...>) {
  return {&convolve_block<static_cast<int>(kRows) + 1, kVectors>...};
}

template <int kVectors>
FASTDQN_TARGET void convolve_with(const Convolution& shape, const Number* x, const Unit* weights,
                                  const float* bias, std::size_t begin, std::size_t end,
                                  Number* y) noexcept {
  static constexpr auto kBlocks =
      convolve_blocks<kVectors>(std::make_index_sequence<kMaxRows[kVectors]>());
  const Pieces pieces(end - begin, kMaxRows[kVectors]);
  for (std::size_t piece = 0; piece < pieces.number; ++piece) {
    kBlocks[pieces.length(piece) - 1](shape, x, weights, bias, begin + pieces.begin(piece), y);
  }
}

FASTDQN_TARGET void convolve_into(const Convolution& shape, const void* x, const void* weights,
                                  const float* bias, std::size_t begin, std::size_t end,
                                  void* y) noexcept {
  const auto* in = static_cast<const Number*>(x);
  auto* out = static_cast<Number*>(y);
  if (shape.out_channels == 32) {
    convolve_with<2>(shape, in, units(weights), bias, begin, end, out);
  } else {
    convolve_with<4>(shape, in, units(weights), bias, begin, end, out);
  }
}

using SpreadBlock = void (*)(const Convolution&, const Number*, const Unit*, std::size_t,
                             float*) noexcept;

/// Adds what the gradients at some positions come to at one place of the kernel, `sums` on.
template <int kRows, int kVectors>
FASTDQN_TARGET void spread_block(const Convolution& shape, const Number* grad, const Unit* weights,
                                 std::size_t position, float* to) noexcept {
  constexpr std::size_t kColumns = kVectors * kLanes;
  Sums<kRows, kVectors> sums;
  const Unit* rows[kRows];
#pragma GCC unroll 12
  for (int row = 0; row < kRows; ++row) {
    const std::size_t here = position + static_cast<std::size_t>(row);
    rows[row] = units(grad + here * shape.out_channels);
  }
  clear<kRows, kVectors>(sums);
  const std::size_t depth = shape.out_channels / Op::kNumbers;
  for (std::size_t place = 0; place < depth; ++place) {
    multiply<kRows, kVectors>(sums, rows, place, weights);
    weights += kColumns;
  }
#pragma GCC unroll 12
  for (int row = 0; row < kRows; ++row) {
    float* out = to + shape.offsets[position + static_cast<std::size_t>(row)];
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector, out += kLanes) {
      _mm512_storeu_ps(out, _mm512_add_ps(_mm512_loadu_ps(out), sums[row][vector]));
    }
  }
}

template <int kVectors, std::size_t... kRows>
constexpr std::array<SpreadBlock, sizeof...(kRows)> spread_blocks(std::index_sequence<kRows...>) {
  return {&spread_block<static_cast<int>(kRows) + 1, kVectors>...};
}

template <int kVectors>
FASTDQN_TARGET void spread_with(const Convolution& shape, const Number* grad, const Unit* weights,
                                float* sums) noexcept {
  static constexpr auto kBlocks =
      spread_blocks<kVectors>(std::make_index_sequence<kMaxRows[kVectors]>());
  const Pieces pieces(shape.positions(), kMaxRows[kVectors]);
  const std::size_t next = shape.out_channels / Op::kNumbers * shape.in_channels;
  for (std::size_t y = 0; y < shape.kernel; ++y) {
    for (std::size_t x = 0; x < shape.kernel; ++x, weights += next) {
      float* to = sums + (y * shape.in_width + x) * shape.in_channels;
      for (std::size_t piece = 0; piece < pieces.number; ++piece) {
        kBlocks[pieces.length(piece) - 1](shape, grad, weights, pieces.begin(piece), to);
      }
    }
  }
}

FASTDQN_TARGET void input_gradient_into(const Convolution& shape, const void* grad,
                                        const void* weights, float* sums) noexcept {
  std::memset(sums, 0, shape.inputs() * sizeof(float));
  const auto* from = static_cast<const Number*>(grad);
  if (shape.in_channels == 32) {
    spread_with<2>(shape, from, units(weights), sums);
  } else {
    spread_with<4>(shape, from, units(weights), sums);
  }
}

std::size_t input_gradient_floats(const Convolution& shape) noexcept { return shape.inputs(); }

FASTDQN_TARGET void pair_gradient_into(const Convolution& shape, const void* first,
                                       const void* second, void* units) noexcept {
  pair_into(first, second, shape.outputs(), units);
}

using WeightBlock = void (*)(const Convolution&, const Unit*, const Unit*, bool, float*) noexcept;

/// The gradients of the weights that lead from some columns of a run to some outputs.
template <int kRows, int kVectors>
FASTDQN_TARGET void weight_block(const Convolution& shape, const Unit* x, const Unit* grad,
                                 bool first, float* weights) noexcept {
  const std::size_t depth = shape.depth();
  Sums<kRows, kVectors> sums;
  clear<kRows, kVectors>(sums);
  const std::size_t step = shape.stride * shape.in_channels;
  const std::size_t next = shape.stride * shape.in_width * shape.in_channels;
  for (std::size_t out_y = 0; out_y < shape.out_height; ++out_y, x += next) {
    const Unit* column = x;
    for (std::size_t out_x = 0; out_x < shape.out_width; ++out_x) {
      const Unit* rows[kRows];
#pragma GCC unroll 12
      for (int row = 0; row < kRows; ++row) rows[row] = grad + row;
      multiply<kRows, kVectors>(sums, rows, 0, column);
      column += step;
      grad += shape.out_channels;
    }
  }
#pragma GCC unroll 12
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (std::size_t vector = 0; vector < kVectors; ++vector) {
      // Each group is summed up by itself, which keeps more of its small numbers.
      float* out = weights + static_cast<std::size_t>(row) * depth + vector * kLanes;
      const __m512 before = first ? _mm512_setzero_ps() : _mm512_loadu_ps(out);
      _mm512_storeu_ps(out, _mm512_add_ps(before, sums[row][vector]));
    }
  }
}

template <int kVectors, std::size_t... kRows>
constexpr std::array<WeightBlock, sizeof...(kRows)> weight_blocks(std::index_sequence<kRows...>) {
  return {&weight_block<static_cast<int>(kRows) + 1, kVectors>...};
}

/// How a weight's gradient is cut up: into pieces of a run by pieces of the outputs.
struct WeightBlocks {
  Pieces runs;
  std::size_t most_rows;
  Pieces rows;
  explicit WeightBlocks(const Convolution& shape)
      : runs(shape.run() / kLanes, kMaxVectors),
        most_rows(kMaxRows[runs.length(0)]),
        rows(shape.out_channels, most_rows) {}
};

std::size_t count_blocks(const Convolution& shape) noexcept {
  const WeightBlocks blocks(shape);
  return shape.kernel * blocks.runs.number * blocks.rows.number;
}

FASTDQN_TARGET void weight_gradient_into(const Convolution& shape, const void* x, const void* grad,
                                         std::size_t begin, std::size_t end, bool first,
                                         float* weights) noexcept {
  static constexpr auto kOne = weight_blocks<1>(std::make_index_sequence<kMaxRows[1]>());
  static constexpr auto kTwo = weight_blocks<2>(std::make_index_sequence<kMaxRows[2]>());
  static constexpr auto kThree = weight_blocks<3>(std::make_index_sequence<kMaxRows[3]>());
  static constexpr auto kFour = weight_blocks<4>(std::make_index_sequence<kMaxRows[4]>());
  static constexpr std::array<const WeightBlock*, kMaxVectors + 1> kBlocks{
      nullptr, kOne.data(), kTwo.data(), kThree.data(), kFour.data()};
  const WeightBlocks blocks(shape);
  for (std::size_t block = begin; block < end; ++block) {
    const std::size_t piece = block / blocks.rows.number;
    const std::size_t y = piece / blocks.runs.number;
    const std::size_t run = piece % blocks.runs.number;
    const std::size_t rows = block % blocks.rows.number;
    const std::size_t place = blocks.runs.begin(run) * kLanes;
    const std::size_t output = blocks.rows.begin(rows);
    kBlocks[blocks.runs.length(run)][blocks.rows.length(rows) - 1](
        shape, units(x) + y * shape.in_width * shape.in_channels + place, units(grad) + output,
        first, weights + output * shape.depth() + y * shape.run() + place);
  }
}

FASTDQN_TARGET void relu_gradient_into(const float* sums, const void* y, std::size_t count,
                                       void* grad) noexcept {
  const auto* outputs = static_cast<const Number*>(y);
  auto* out = static_cast<Number*>(grad);
  for (std::size_t i = 0; i < count; i += kLanes) {
    Op::store(out + i, 0xffff,
              _mm512_maskz_loadu_ps(Op::is_positive(outputs + i), sums + i));
  }
}

FASTDQN_TARGET void sum_rows_into(const void* numbers, std::size_t rows, std::size_t columns,
                                  float* sums) noexcept {
  const auto* in = static_cast<const Number*>(numbers);
  for (std::size_t column = 0; column < columns; column += kLanes) {
    __m512 sum = _mm512_setzero_ps();
    for (std::size_t row = 0; row < rows; ++row) {
      sum = _mm512_add_ps(sum, Op::load_floats(in + row * columns + column));
    }
    _mm512_storeu_ps(sums + column, sum);
  }
}

// -- the dense layer --------------------------------------------------------------------------

constexpr std::size_t kDenseOutputs = 8;
constexpr std::size_t kDenseRows = 3;
constexpr std::size_t kDenseInputs = 64;
// So many vectors of eight outputs' weights stay in the first cache while all rows pass by.
constexpr std::size_t kDenseSteps = 49;

/// The sums of the lanes of each of eight vectors.
FASTDQN_INLINE __m256 sums_of_lanes(const __m512 (&vectors)[kDenseOutputs]) noexcept {
  __m256 halves[kDenseOutputs];
#pragma GCC unroll 8
  for (std::size_t i = 0; i < kDenseOutputs; ++i) {
    halves[i] = _mm256_add_ps(_mm512_castps512_ps256(vectors[i]),
                              _mm512_extractf32x8_ps(vectors[i], 1));
  }
  const __m256 lower = _mm256_hadd_ps(_mm256_hadd_ps(halves[0], halves[1]),
                                      _mm256_hadd_ps(halves[2], halves[3]));
  const __m256 upper = _mm256_hadd_ps(_mm256_hadd_ps(halves[4], halves[5]),
                                      _mm256_hadd_ps(halves[6], halves[7]));
  return _mm256_add_ps(_mm256_permute2f128_ps(lower, upper, 0x20),
                       _mm256_permute2f128_ps(lower, upper, 0x31));
}

/// Products of some rows with eight outputs over `steps` vectors, added to y. Meanwhile as many of
/// the weights from `ahead` on are asked for, which come from main memory.
template <int kRows>
FASTDQN_TARGET void dense_block(const Unit* x, const Unit* weights, std::size_t steps,
                                std::size_t length, std::size_t outputs, const Unit* ahead,
                                float* y) noexcept {
  __m512 sums[kRows][kDenseOutputs];
#pragma GCC unroll 3
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
    for (std::size_t output = 0; output < kDenseOutputs; ++output) {
      sums[row][output] = _mm512_setzero_ps();
    }
  }
  for (std::size_t step = 0; step < steps; ++step, x += kLanes, weights += kLanes) {
    _mm_prefetch(reinterpret_cast<const char*>(ahead + step * kLanes), _MM_HINT_T0);
    Op::Units left[kRows];
#pragma GCC unroll 3
    for (int row = 0; row < kRows; ++row) {
      left[row] = Op::load(x + static_cast<std::size_t>(row) * length);
    }
#pragma GCC unroll 8
    for (std::size_t output = 0; output < kDenseOutputs; ++output) {
      Op::Units right = Op::load(weights + output * length);
      // Once into a register, which the compiler would do again for each row.
      asm("" : "+v"(right));
#pragma GCC unroll 3
      for (int row = 0; row < kRows; ++row) {
        sums[row][output] = Op::multiply_add(sums[row][output], left[row], right);
      }
    }
  }
#pragma GCC unroll 3
  for (int row = 0; row < kRows; ++row, y += outputs) {
    _mm256_storeu_ps(y, _mm256_add_ps(_mm256_loadu_ps(y), sums_of_lanes(sums[row])));
  }
}

FASTDQN_TARGET void dense_into(const void* x, const void* weights, const float* bias,
                               std::size_t rows, std::size_t inputs, std::size_t outputs,
                               std::size_t begin, std::size_t end, float* y) noexcept {
  constexpr void (*kBlocks[kDenseRows])(const Unit*, const Unit*, std::size_t, std::size_t,
                                        std::size_t, const Unit*, float*) noexcept = {
      &dense_block<1>, &dense_block<2>, &dense_block<3>};
  const std::size_t length = inputs / Op::kNumbers;
  const Pieces steps(length / kLanes, kDenseSteps);
  const Pieces groups(rows, kDenseRows);
  const auto weights_of = [&](std::size_t output, std::size_t piece) {
    return units(weights) + output * length + steps.begin(piece) * kLanes;
  };
  for (std::size_t output = begin; output < end; output += kDenseOutputs) {
    const __m256 biases = _mm256_loadu_ps(bias + output);
    for (std::size_t row = 0; row < rows; ++row) {
      _mm256_storeu_ps(y + row * outputs + output, biases);
    }
    for (std::size_t piece = 0; piece < steps.number; ++piece) {
      const Unit* columns = weights_of(output, piece);
      const Unit* lines = units(x) + steps.begin(piece) * kLanes;
      const bool more = piece + 1 < steps.number;
      const Unit* next = more                         ? weights_of(output, piece + 1)
                         : output + kDenseOutputs < end ? weights_of(output + kDenseOutputs, 0)
                                                        : columns;
      for (std::size_t group = 0; group < groups.number; ++group) {
        const std::size_t row = groups.begin(group);
        kBlocks[groups.length(group) - 1](lines + row * length, columns, steps.length(piece),
                                          length, outputs, next + group % kDenseOutputs * length,
                                          y + row * outputs + output);
      }
    }
    for (std::size_t row = 0; row < rows; ++row) {
      float* out = y + row * outputs + output;
      _mm256_storeu_ps(out, _mm256_max_ps(_mm256_loadu_ps(out), _mm256_setzero_ps()));
    }
  }
}

constexpr int kDenseVectors = static_cast<int>(kDenseInputs / kLanes);
using DenseBlock = void (*)(const Number*, const Number*, const Number*, std::size_t, std::size_t,
                            Number*) noexcept;

template <int kRows>
FASTDQN_TARGET void dense_input_block(const Number* grad, const Number* weights, const Number* x,
                                      std::size_t inputs, std::size_t outputs,
                                      Number* grad_x) noexcept {
  Sums<kRows, kDenseVectors> sums;
  clear<kRows, kDenseVectors>(sums);
  for (std::size_t output = 0; output < outputs; output += Op::kNumbers) {
    Op::Units right[kDenseVectors];
    Op::load_across(weights + output * inputs, inputs, right);
#pragma GCC unroll 12
    for (int row = 0; row < kRows; ++row) {
      const Op::Units left =
          Op::broadcast(units(grad + static_cast<std::size_t>(row) * outputs + output));
#pragma GCC unroll 4
      for (int vector = 0; vector < kDenseVectors; ++vector) {
        sums[row][vector] = Op::multiply_add(sums[row][vector], left, right[vector]);
      }
    }
  }
#pragma GCC unroll 12
  for (int row = 0; row < kRows; ++row, x += inputs, grad_x += inputs) {
    Op::order_across(sums[row]);
#pragma GCC unroll 4
    for (std::size_t vector = 0; vector < kDenseVectors; ++vector) {
      Op::store(grad_x + vector * kLanes, 0xffff,
                _mm512_maskz_mov_ps(Op::is_positive(x + vector * kLanes), sums[row][vector]));
    }
  }
}

template <std::size_t... kRows>
constexpr std::array<DenseBlock, sizeof...(kRows)> dense_input_blocks(
    std::index_sequence<kRows...>) {
  return {&dense_input_block<static_cast<int>(kRows) + 1>...};
}

FASTDQN_TARGET void dense_input_gradient_into(const void* grad, const void* weights, const void* x,
                                              std::size_t rows, std::size_t inputs,
                                              std::size_t outputs, std::size_t input,
                                              void* grad_x) noexcept {
  static constexpr auto kBlocks =
      dense_input_blocks(std::make_index_sequence<kMaxRows[kDenseVectors]>());
  const Pieces pieces(rows, kMaxRows[kDenseVectors]);
  for (std::size_t piece = 0; piece < pieces.number; ++piece) {
    const std::size_t row = pieces.begin(piece);
    kBlocks[pieces.length(piece) - 1](static_cast<const Number*>(grad) + row * outputs,
                                      static_cast<const Number*>(weights) + input,
                                      static_cast<const Number*>(x) + row * inputs + input, inputs,
                                      outputs, static_cast<Number*>(grad_x) + row * inputs + input);
  }
}

template <int kRows>
FASTDQN_TARGET void dense_weight_block(const Unit* grad, const Unit* x, std::size_t rows,
                                       std::size_t inputs, std::size_t weights_row,
                                       float* weights) noexcept {
  Sums<kRows, kDenseVectors> sums;
  clear<kRows, kDenseVectors>(sums);
  const Unit* lines[kRows];
#pragma GCC unroll 12
  for (int row = 0; row < kRows; ++row) lines[row] = grad + static_cast<std::size_t>(row) * rows;
  for (std::size_t place = 0; place < rows; ++place, x += inputs) {
    multiply<kRows, kDenseVectors>(sums, lines, place, x);
  }
#pragma GCC unroll 12
  for (int row = 0; row < kRows; ++row, weights += weights_row) {
#pragma GCC unroll 4
    for (std::size_t vector = 0; vector < kDenseVectors; ++vector) {
      _mm512_storeu_ps(weights + vector * kLanes, sums[row][vector]);
    }
  }
}

using DenseWeightBlock = void (*)(const Unit*, const Unit*, std::size_t, std::size_t, std::size_t,
                                  float*) noexcept;

template <std::size_t... kRows>
constexpr std::array<DenseWeightBlock, sizeof...(kRows)> dense_weight_blocks(
    std::index_sequence<kRows...>) {
  return {&dense_weight_block<static_cast<int>(kRows) + 1>...};
}

FASTDQN_TARGET void dense_weight_gradient_into(const void* grad, const void* x, std::size_t rows,
                                               std::size_t inputs, std::size_t outputs,
                                               std::size_t begin, std::size_t end,
                                               std::size_t row, float* weights) noexcept {
  static constexpr auto kBlocks =
      dense_weight_blocks(std::make_index_sequence<kMaxRows[kDenseVectors]>());
  const Pieces pieces(outputs, kMaxRows[kDenseVectors]);
  for (std::size_t input = begin; input < end; input += kDenseInputs) {
    for (std::size_t piece = 0; piece < pieces.number; ++piece) {
      const std::size_t output = pieces.begin(piece);
      kBlocks[pieces.length(piece) - 1](units(grad) + output * rows, units(x) + input, rows,
                                        inputs, row, weights + output * row + input - begin);
    }
  }
}

FASTDQN_TARGET void adam_step_into(const float* gradients, std::size_t count,
                                   const AdamArrays& adam, std::size_t place,
                                   const AdamFactors& factors, void* numbers) noexcept {
  const AdamVectors by = vectors_of(factors);
  float* const weights = adam.weights + place;
  float* const means = adam.means + place;
  float* const squares = adam.squares + place;
  for (std::size_t i = 0; i < count; i += kLanes) {
    const AdamNumbers after = moved({_mm512_loadu_ps(weights + i), _mm512_loadu_ps(means + i),
                                     _mm512_loadu_ps(squares + i)},
                                    _mm512_loadu_ps(gradients + i), by);
    _mm512_storeu_ps(weights + i, after.weight);
    _mm512_storeu_ps(means + i, after.mean);
    _mm512_storeu_ps(squares + i, after.square);
    if constexpr (Op::kNumbers == 2) {
      Op::store(static_cast<Number*>(numbers) + place + i, 0xffff, after.weight);
    }
  }
}

// -- the values, in float32 throughout --------------------------------------------------------

FASTDQN_TARGET void values_into(const float* x, const float* weights, std::size_t rows,
                                std::size_t inputs, std::size_t actions, float* values) noexcept {
  for (std::size_t row = 0; row < rows; ++row, x += inputs) {
    for (std::size_t action = 0; action < actions; ++action) {
      const float* line = weights + action * inputs;
      __m512 sums[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
      for (std::size_t i = 0; i < inputs; i += 2 * kLanes) {
        for (std::size_t k = 0; k < 2; ++k) {
          sums[k] = _mm512_fmadd_ps(_mm512_loadu_ps(x + i + k * kLanes),
                                    _mm512_loadu_ps(line + i + k * kLanes), sums[k]);
        }
      }
      *values++ += _mm512_reduce_add_ps(_mm512_add_ps(sums[0], sums[1]));
    }
  }
}

FASTDQN_TARGET void values_gradient_into(const float* grad, const float* x, const float* weights,
                                         std::size_t rows, std::size_t inputs, std::size_t actions,
                                         std::size_t input, const ValuesGradient& out) noexcept {
  x += input;
  weights += input;
  for (std::size_t action = 0; action < actions; ++action) {
    __m512 sum = _mm512_setzero_ps();
    for (std::size_t row = 0; row < rows; ++row) {
      sum = _mm512_fmadd_ps(_mm512_set1_ps(grad[row * actions + action]),
                            _mm512_loadu_ps(x + row * inputs), sum);
    }
    _mm512_storeu_ps(out.weights + action * inputs + input, sum);
  }
  auto* rounded = static_cast<Number*>(out.x) + input;
  auto* across = static_cast<Number*>(out.x_across);
  const std::size_t width = (rows + Op::kNumbers - 1) / Op::kNumbers * Op::kNumbers;
  __m512 biases = _mm512_setzero_ps();
  for (std::size_t row = 0; row < width; ++row) {
    Number numbers[kLanes] = {};
    if (row < rows) {
      __m512 sum = _mm512_setzero_ps();
      for (std::size_t action = 0; action < actions; ++action) {
        sum = _mm512_fmadd_ps(_mm512_set1_ps(grad[row * actions + action]),
                              _mm512_loadu_ps(weights + action * inputs), sum);
      }
      const __mmask16 active = _mm512_cmp_ps_mask(_mm512_loadu_ps(x + row * inputs),
                                                  _mm512_setzero_ps(), _CMP_GT_OQ);
      sum = _mm512_maskz_mov_ps(active, sum);
      Op::store(numbers, 0xffff, sum);
      std::memcpy(rounded + row * inputs, numbers, sizeof numbers);
      biases = _mm512_add_ps(biases, sum);
    }
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      across[(input + lane) * width + row] = numbers[lane];
    }
  }
  _mm512_storeu_ps(out.bias + input, biases);
}

constexpr NatureKernels kKernels{
    .number_nbytes = sizeof(Number),
    .numbers = Op::kNumbers,
    .image_into = &image_into,
    .image_units_into = &image_units_into,
    .pair_into = Op::kNumbers == 2 ? &pair_into : nullptr,
    .round_into = &round_into,
    .packed_columns = &packed_columns,
    .pack_by_depth_into = &pack_by_depth_into,
    .pack_by_place_into = &pack_by_place_into,
    .convolve_into = &convolve_into,
    .input_gradient_into = &input_gradient_into,
    .input_gradient_floats = &input_gradient_floats,
    .pair_gradient_into = Op::kNumbers == 2 ? &pair_gradient_into : nullptr,
    .weight_gradient_into = &weight_gradient_into,
    .count_blocks = &count_blocks,
    .relu_gradient_into = &relu_gradient_into,
    .sum_rows_into = &sum_rows_into,
    .dense_into = &dense_into,
    .dense_input_gradient_into = &dense_input_gradient_into,
    .dense_weight_gradient_into = &dense_weight_gradient_into,
    .adam_step_into = &adam_step_into,
    .values_into = &values_into,
    .values_gradient_into = &values_gradient_into,
};

}  // namespace

}  // namespace fastdqn
