// The kernels of tile_kernels.hpp, written once for both kinds of numbers: to be included by a source
// file behind nature_kernels_impl.hpp, whose definitions they need.

#include "fastdqn/tile_kernels.hpp"
#include "fastdqn/winograd.hpp"

namespace fastdqn {

namespace {

/// A tile of vectors.
template <std::size_t kSide>
using Tile = __m512[kSide][kSide];

/// The entry of a matrix, or of the transposed one.
template <const auto& kMatrix, bool kTransposed>
constexpr float entry(std::size_t row, std::size_t column) {
  return kTransposed ? kMatrix[column][row] : kMatrix[row][column];
}

/// out = matrix times in. Zeros and ones of the matrix, which is a constant, cost nothing.
template <const auto& kMatrix, bool kTransposed, std::size_t kIn, std::size_t kOut>
FASTDQN_INLINE void apply(const __m512 (&in)[kIn], __m512 (&out)[kOut]) noexcept {
#pragma GCC unroll 6
  for (std::size_t row = 0; row < kOut; ++row) {
    __m512 sum = _mm512_setzero_ps();
    bool empty = true;
#pragma GCC unroll 6
    for (std::size_t column = 0; column < kIn; ++column) {
      if (entry<kMatrix, kTransposed>(row, column) != 1) continue;
      sum = empty ? in[column] : _mm512_add_ps(sum, in[column]);
      empty = false;
    }
#pragma GCC unroll 6
    for (std::size_t column = 0; column < kIn; ++column) {
      const float factor = entry<kMatrix, kTransposed>(row, column);
      if (factor == 0 || factor == 1) continue;
      if (empty) {
        sum = _mm512_mul_ps(in[column], _mm512_set1_ps(factor));
      } else if (factor == -1) {
        sum = _mm512_sub_ps(sum, in[column]);
      } else {
        sum = _mm512_fmadd_ps(in[column], _mm512_set1_ps(factor), sum);
      }
      empty = false;
    }
    out[row] = sum;
  }
}

/// The same along both axes.
template <const auto& kMatrix, bool kTransposed, std::size_t kIn, std::size_t kOut>
FASTDQN_INLINE void apply_both(const Tile<kIn>& in, Tile<kOut>& out) noexcept {
  __m512 half[kOut][kIn];
#pragma GCC unroll 6
  for (std::size_t column = 0; column < kIn; ++column) {
    __m512 line[kIn], sums[kOut];
#pragma GCC unroll 6
    for (std::size_t row = 0; row < kIn; ++row) line[row] = in[row][column];
    apply<kMatrix, kTransposed>(line, sums);
#pragma GCC unroll 6
    for (std::size_t row = 0; row < kOut; ++row) half[row][column] = sums[row];
  }
#pragma GCC unroll 6
  for (std::size_t row = 0; row < kOut; ++row) apply<kMatrix, kTransposed>(half[row], out[row]);
}

struct Byte {
  std::uint8_t value;
};
FASTDQN_INLINE __m512 load_floats(const Number* from) noexcept { return Op::load_floats(from); }
FASTDQN_INLINE __m512 load_floats(const Byte* from) noexcept {
  return _mm512_cvtepi32_ps(
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}

constexpr std::size_t kProductColumns = 64;  // of a product of matrices, at most

using ProductBlock = void (*)(const Number*, const Unit*, std::size_t, std::size_t,
                              float*) noexcept;

/// Some rows of left [rows, depth] times right [depth / numbers, columns of the vectors].
template <int kRows, int kVectors>
FASTDQN_TARGET void product_block(const Number* left, const Unit* right, std::size_t depth,
                                  std::size_t row, float* out) noexcept {
  Sums<kRows, kVectors> sums;
  clear<kRows, kVectors>(sums);
  const Unit* lines[kRows];
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i) lines[i] = units(left + static_cast<std::size_t>(i) * depth);
  const std::size_t length = depth / Op::kNumbers;
  for (std::size_t place = 0; place < length; ++place, right += kVectors * kLanes) {
    multiply<kRows, kVectors>(sums, lines, place, right);
  }
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i, out += row) {
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) {
      _mm512_storeu_ps(out + vector * static_cast<int>(kLanes), sums[i][vector]);
    }
  }
}

template <int kVectors, std::size_t... kRows>
constexpr std::array<ProductBlock, sizeof...(kRows)> product_blocks(
    std::index_sequence<kRows...>) {
  return {&product_block<static_cast<int>(kRows) + 1, kVectors>...};
}

void products_into(std::size_t points, std::size_t rows, std::size_t depth, std::size_t columns,
                   const void* left_numbers, const void* right_units, float* out) noexcept {
  const auto* left = static_cast<const Number*>(left_numbers);
  const Unit* right = units(right_units);
  const std::size_t length = depth / Op::kNumbers;
  static constexpr auto kNarrow = product_blocks<2>(std::make_index_sequence<kMaxRows[2]>());
  static constexpr auto kWide = product_blocks<4>(std::make_index_sequence<kMaxRows[4]>());
  const bool narrow = columns < kProductColumns;
  const std::size_t width = narrow ? columns : kProductColumns;
  const Pieces pieces(rows, kMaxRows[narrow ? 2 : 4]);
  for (std::size_t point = 0; point < points; ++point) {
    for (std::size_t column = 0; column < columns; column += width) {
      for (std::size_t piece = 0; piece < pieces.number; ++piece) {
        const std::size_t row = pieces.begin(piece);
        const auto& blocks = narrow ? kNarrow.data() : kWide.data();
        blocks[pieces.length(piece) - 1](left + row * depth, right + column * length, depth,
                                         columns, out + row * columns + column);
      }
    }
    left += Tiling::apart(rows * depth);
    right += Tiling::apart(length * columns);
    out += Tiling::apart(rows * columns);
  }
}

using AcrossBlock = void (*)(const Unit*, const Unit*, std::size_t, std::size_t, bool,
                             float*) noexcept;

/// Adds up over rows the products of some outputs' gradients and the numbers of the vectors.
template <int kRows, int kVectors>
FASTDQN_TARGET void across_block(const Unit* grad, const Unit* x, std::size_t rows,
                                 std::size_t outputs, bool first, float* sums_in_memory) noexcept {
  constexpr std::size_t kWidth = kVectors * kLanes;
  Sums<kRows, kVectors> sums;
  clear<kRows, kVectors>(sums);
  for (std::size_t row = 0; row < rows; ++row, x += kWidth, grad += outputs) {
    const Unit* lines[kRows];
#pragma GCC unroll 12
    for (int i = 0; i < kRows; ++i) lines[i] = grad + i;
    multiply<kRows, kVectors>(sums, lines, 0, x);
  }
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i, sums_in_memory += kWidth) {
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) {
      // Each group is summed up by itself, which keeps more of its small numbers.
      float* to = sums_in_memory + vector * static_cast<int>(kLanes);
      const __m512 before = first ? _mm512_setzero_ps() : _mm512_loadu_ps(to);
      _mm512_storeu_ps(to, _mm512_add_ps(before, sums[i][vector]));
    }
  }
}

template <int kVectors, std::size_t... kRows>
constexpr std::array<AcrossBlock, sizeof...(kRows)> across_blocks(std::index_sequence<kRows...>) {
  return {&across_block<static_cast<int>(kRows) + 1, kVectors>...};
}

void products_across_into(std::size_t points, std::size_t rows, std::size_t outputs,
                          const void* grad_units, const void* x_units, bool first,
                          float* out) noexcept {
  const Unit* grad = units(grad_units);
  const Unit* x = units(x_units);
  constexpr int kVectors = static_cast<int>(kPartDepth / kLanes);
  static constexpr auto kBlocks =
      across_blocks<kVectors>(std::make_index_sequence<kMaxRows[kVectors]>());
  const Pieces pieces(outputs, kMaxRows[kVectors]);
  for (std::size_t point = 0; point < points; ++point) {
    for (std::size_t piece = 0; piece < pieces.number; ++piece) {
      const std::size_t output = pieces.begin(piece);
      kBlocks[pieces.length(piece) - 1](grad + output, x, rows, outputs, first,
                                        out + output * kPartDepth);
    }
    grad += Tiling::apart(rows * outputs);
    x += Tiling::apart(rows * kPartDepth);
    out += Tiling::apart(outputs * kPartDepth);
  }
}

template <class Filter>
struct Tiles {
  static constexpr std::size_t kPoints = Filter::kPoints;
  static constexpr std::size_t kOutputs = Filter::kOutputs;
  static constexpr std::size_t kTaps = Filter::kTaps;

  /// Where a vector of a block's numbers lies, from the block's first number on.
  static std::size_t place_in_block(const Tiling& tiling, std::size_t vector) noexcept {
    const std::size_t vectors = tiling.run() / kLanes;
    return vector / vectors * tiling.shape.in_width * tiling.shape.in_channels +
           vector % vectors * kLanes;
  }
  /// The same in an output's weights, from those of a tap on.
  static std::size_t place_in_weights(const Tiling& tiling, std::size_t number) noexcept {
    return number / tiling.run() * tiling.shape.run() + number % tiling.run();
  }
  static std::size_t place_of_tap(const Tiling& tiling, std::size_t y, std::size_t x) noexcept {
    return y * tiling.shape.stride * tiling.shape.run() + x * tiling.run();
  }

  FASTDQN_TARGET static void pack_into(const Tiling& tiling, const float* weights, float scale,
                                       std::size_t begin, std::size_t end,
                                       void* packed) noexcept {
    const Convolution& shape = tiling.shape;
    const __m512i lanes =
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i places =
        _mm512_mullo_epi32(lanes, _mm512_set1_epi32(static_cast<int>(shape.depth())));
    const __m512 factor = _mm512_set1_ps(scale);
    for (std::size_t number = begin; number < end; number += Op::kNumbers) {
      for (std::size_t output = 0; output < shape.out_channels; output += kLanes) {
        Tile<kPoints> out[Op::kNumbers];
#pragma GCC unroll 2
        for (std::size_t i = 0; i < Op::kNumbers; ++i) {
          const float* from =
              weights + output * shape.depth() + place_in_weights(tiling, number + i);
          Tile<kTaps> in;
#pragma GCC unroll 3
          for (std::size_t y = 0; y < kTaps; ++y) {
#pragma GCC unroll 3
            for (std::size_t x = 0; x < kTaps; ++x) {
              in[y][x] = _mm512_mul_ps(
                  factor, _mm512_i32gather_ps(places, from + place_of_tap(tiling, y, x), 4));
            }
          }
          apply_both<Filter::kWeight, false>(in, out[i]);
        }
        const std::size_t length = tiling.depth() / Op::kNumbers;
        store_units(out, Tiling::apart(length * shape.out_channels),
                    static_cast<Unit*>(packed) + number / Op::kNumbers * shape.out_channels +
                        output);
      }
    }
  }

  FASTDQN_TARGET static void pack_across_into(const Tiling& tiling, const float* weights,
                                              std::size_t begin, std::size_t end,
                                              void* packed) noexcept {
    const Convolution& shape = tiling.shape;
    const std::size_t length = shape.out_channels / Op::kNumbers;
    for (std::size_t output = begin; output < end; output += Op::kNumbers) {
      for (std::size_t number = 0; number < tiling.depth(); number += kLanes) {
        Tile<kPoints> out[Op::kNumbers];
#pragma GCC unroll 2
        for (std::size_t i = 0; i < Op::kNumbers; ++i) {
          const float* from =
              weights + (output + i) * shape.depth() + place_in_weights(tiling, number);
          Tile<kTaps> in;
#pragma GCC unroll 3
          for (std::size_t y = 0; y < kTaps; ++y) {
#pragma GCC unroll 3
            for (std::size_t x = 0; x < kTaps; ++x) {
              in[y][x] = _mm512_loadu_ps(from + place_of_tap(tiling, y, x));
            }
          }
          apply_both<Filter::kWeight, false>(in, out[i]);
        }
        store_units(out, Tiling::apart(length * tiling.depth()),
                    static_cast<Unit*>(packed) +
                        (number / kProductColumns * length + output / Op::kNumbers) *
                            kProductColumns +
                        number % kProductColumns);
      }
    }
  }

  template <class Source>
  FASTDQN_TARGET static void inputs_into(const Tiling& tiling, const void* x,
                                         const TileRows& rows, void* tiles) noexcept {
    const std::size_t depth = tiling.depth();
    for (std::size_t tile = 0; tile < tiling.tiles(); ++tile) {
      Number* to = static_cast<Number*>(tiles) + (rows.first + tile) * depth;
      const Corner corner(tiling, tile);
      for (std::size_t vector = 0; vector < depth / kLanes; ++vector, to += kLanes) {
        Tile<kPoints> out;
        inputs_of(tiling, static_cast<const Source*>(x), corner, vector, out);
        store_numbers(out, Tiling::apart(rows.all * depth), to);
      }
    }
  }

  template <class Source>
  FASTDQN_TARGET static void input_units_into(const Tiling& tiling, const void* const* x,
                                              const TileRows& rows, const BlockPart& part,
                                              void* tiles) noexcept {
    for (std::size_t tile = 0; tile < tiling.tiles(); ++tile) {
      Unit* to = static_cast<Unit*>(tiles) + (rows.first + tile) * kPartDepth;
      const Corner corner(tiling, tile);
      for (std::size_t vector = part.begin; vector < part.end; ++vector, to += kLanes) {
        Tile<kPoints> out[Op::kNumbers] = {};
#pragma GCC unroll 2
        for (std::size_t i = 0; i < Op::kNumbers; ++i) {
          if (x[i] == nullptr) continue;
          inputs_of(tiling, static_cast<const Source*>(x[i]), corner, vector, out[i]);
        }
        store_units(out, Tiling::apart(rows.all * kPartDepth), to);
      }
    }
  }

  FASTDQN_TARGET static void outputs_into(const Tiling& tiling, const float* products,
                                          const TileRows& rows, const float* bias,
                                          void* y) noexcept {
    const Convolution& shape = tiling.shape;
    const std::size_t columns = shape.out_channels;
    for (std::size_t tile = 0; tile < tiling.tiles(); ++tile) {
      const Corner corner(tiling, tile);
      const float* from = products + (rows.first + tile) * columns;
      Number* to =
          static_cast<Number*>(y) + (corner.y * shape.out_width + corner.x) * columns;
      for (std::size_t column = 0; column < columns; column += kLanes) {
        Tile<kPoints> in;
        Tile<kOutputs> out;
        load_points(from + column, Tiling::apart(rows.all * columns), in);
        apply_both<Filter::kOutput, false>(in, out);
        const __m512 biases = _mm512_loadu_ps(bias + column);
#pragma GCC unroll 4
        for (std::size_t i = 0; i < kOutputs; ++i) {
#pragma GCC unroll 4
          for (std::size_t j = 0; j < kOutputs; ++j) {
            if (i >= corner.outputs_y || j >= corner.outputs_x) continue;
            Op::store(
                to + (i * shape.out_width + j) * columns + column, 0xffff,
                _mm512_max_ps(_mm512_add_ps(out[i][j], biases), _mm512_setzero_ps()));
          }
        }
      }
    }
  }

  FASTDQN_TARGET static void output_gradient_into(const Tiling& tiling, const void* grad,
                                                  const TileRows& rows, void* tiles) noexcept {
    const std::size_t columns = tiling.shape.out_channels;
    for (std::size_t tile = 0; tile < tiling.tiles(); ++tile) {
      Number* to = static_cast<Number*>(tiles) + (rows.first + tile) * columns;
      const Corner corner(tiling, tile);
      for (std::size_t column = 0; column < columns; column += kLanes) {
        Tile<kPoints> out;
        outputs_of(tiling, static_cast<const Number*>(grad), corner, column, out);
        store_numbers(out, Tiling::apart(rows.all * columns), to + column);
      }
    }
  }

  FASTDQN_TARGET static void output_gradient_units_into(const Tiling& tiling,
                                                        const void* const* grad,
                                                        const TileRows& rows,
                                                        void* tiles) noexcept {
    const std::size_t columns = tiling.shape.out_channels;
    for (std::size_t tile = 0; tile < tiling.tiles(); ++tile) {
      Unit* to = static_cast<Unit*>(tiles) + (rows.first + tile) * columns;
      const Corner corner(tiling, tile);
      for (std::size_t column = 0; column < columns; column += kLanes) {
        Tile<kPoints> out[Op::kNumbers] = {};
#pragma GCC unroll 2
        for (std::size_t i = 0; i < Op::kNumbers; ++i) {
          if (grad[i] == nullptr) continue;
          outputs_of(tiling, static_cast<const Number*>(grad[i]), corner, column, out[i]);
        }
        store_units(out, Tiling::apart(rows.all * columns), to + column);
      }
    }
  }

  FASTDQN_TARGET static void input_gradient_into(const Tiling& tiling, const float* products,
                                                 const TileRows& rows, float* sums) noexcept {
    const Convolution& shape = tiling.shape;
    std::memset(sums, 0, shape.inputs() * sizeof(float));
    const std::size_t next_y = shape.stride * shape.in_width * shape.in_channels;
    const std::size_t next_x = tiling.run();
    for (std::size_t tile = 0; tile < tiling.tiles(); ++tile) {
      const Corner corner(tiling, tile);
      const float* from = products + (rows.first + tile) * tiling.depth();
      float* to = sums + corner.y * next_y + corner.x * next_x;
      for (std::size_t vector = 0; vector < tiling.depth() / kLanes; ++vector) {
        Tile<kPoints> in, out;
        load_points(from + vector * kLanes, Tiling::apart(rows.all * tiling.depth()), in);
        apply_both<Filter::kInput, true>(in, out);
        float* first = to + place_in_block(tiling, vector);
#pragma GCC unroll 6
        for (std::size_t i = 0; i < kPoints; ++i) {
#pragma GCC unroll 6
          for (std::size_t j = 0; j < kPoints; ++j) {
            if (i >= corner.blocks_y || j >= corner.blocks_x) continue;
            float* here = first + i * next_y + j * next_x;
            _mm512_storeu_ps(here, _mm512_add_ps(_mm512_loadu_ps(here), out[i][j]));
          }
        }
      }
    }
  }

  FASTDQN_TARGET static void weight_gradient_into(const Tiling& tiling, const float* products,
                                                  const BlockPart& part,
                                                  float* weights) noexcept {
    const Convolution& shape = tiling.shape;
    for (std::size_t output = 0; output < shape.out_channels; ++output) {
      for (std::size_t vector = part.begin; vector < part.end; ++vector, products += kLanes) {
        Tile<kPoints> in;
        Tile<kTaps> out;
        load_points(products, Tiling::apart(shape.out_channels * kPartDepth), in);
        apply_both<Filter::kWeight, true>(in, out);
        float* to = weights + output * shape.depth() + place_in_weights(tiling, vector * kLanes);
#pragma GCC unroll 3
        for (std::size_t y = 0; y < kTaps; ++y) {
#pragma GCC unroll 3
          for (std::size_t x = 0; x < kTaps; ++x) {
            _mm512_storeu_ps(to + place_of_tap(tiling, y, x), out[y][x]);
          }
        }
      }
    }
  }

  static constexpr TileKernels kKernels{
      .outputs = kOutputs,
      .taps = kTaps,
      .numbers = Op::kNumbers,
      .pack_into = &pack_into,
      .pack_across_into = &pack_across_into,
      .bytes_into = &inputs_into<Byte>,
      .inputs_into = &inputs_into<Number>,
      .outputs_into = &outputs_into,
      .output_gradient_into = &output_gradient_into,
      .input_gradient_into = &input_gradient_into,
      .byte_units_into = &input_units_into<Byte>,
      .input_units_into = &input_units_into<Number>,
      .output_gradient_units_into = &output_gradient_units_into,
      .weight_gradient_into = &weight_gradient_into,
      .products_into = &products_into,
      .products_across_into = &products_across_into,
  };

 private:
  /// A tile's first output, which is its first block too, and how many there are up to the last.
  struct Corner {
    std::size_t y, x, outputs_y, outputs_x, blocks_y, blocks_x;
    bool blocks_are_whole;
    Corner(const Tiling& tiling, std::size_t tile)
        : y(tile / tiling.tiles_x * kOutputs),
          x(tile % tiling.tiles_x * kOutputs),
          outputs_y(left(tiling.shape.out_height - y, kOutputs)),
          outputs_x(left(tiling.shape.out_width - x, kOutputs)),
          blocks_y(left(tiling.shape.out_height - y + kTaps - 1, kPoints)),
          blocks_x(left(tiling.shape.out_width - x + kTaps - 1, kPoints)),
          blocks_are_whole(blocks_y == kPoints && blocks_x == kPoints) {}
    static std::size_t left(std::size_t to_the_last, std::size_t most) {
      return to_the_last < most ? to_the_last : most;
    }
  };

  /// The points of a tile of inputs, at a vector of the blocks.
  template <class Source>
  FASTDQN_INLINE static void inputs_of(const Tiling& tiling, const Source* x,
                                       const Corner& corner, std::size_t vector,
                                       Tile<kPoints>& out) noexcept {
    const std::size_t next_y =
        tiling.shape.stride * tiling.shape.in_width * tiling.shape.in_channels;
    const std::size_t next_x = tiling.run();
    const Source* first =
        x + corner.y * next_y + corner.x * next_x + place_in_block(tiling, vector);
    Tile<kPoints> in;
    if (corner.blocks_are_whole) {
#pragma GCC unroll 6
      for (std::size_t i = 0; i < kPoints; ++i) {
#pragma GCC unroll 6
        for (std::size_t j = 0; j < kPoints; ++j) {
          in[i][j] = load_floats(first + i * next_y + j * next_x);
        }
      }
    } else {
#pragma GCC unroll 6
      for (std::size_t i = 0; i < kPoints; ++i) {
#pragma GCC unroll 6
        for (std::size_t j = 0; j < kPoints; ++j) {
          in[i][j] = i < corner.blocks_y && j < corner.blocks_x
                         ? load_floats(first + i * next_y + j * next_x)
                         : _mm512_setzero_ps();
        }
      }
    }
    apply_both<Filter::kInput, false>(in, out);
  }

  /// The points of a tile of the outputs' gradient, at 16 columns.
  FASTDQN_INLINE static void outputs_of(const Tiling& tiling, const Number* grad,
                                        const Corner& corner, std::size_t column,
                                        Tile<kPoints>& out) noexcept {
    const std::size_t columns = tiling.shape.out_channels;
    const std::size_t width = tiling.shape.out_width;
    const Number* first = grad + (corner.y * width + corner.x) * columns + column;
    Tile<kOutputs> in;
#pragma GCC unroll 4
    for (std::size_t i = 0; i < kOutputs; ++i) {
#pragma GCC unroll 4
      for (std::size_t j = 0; j < kOutputs; ++j) {
        in[i][j] = i < corner.outputs_y && j < corner.outputs_x
                       ? load_floats(first + (i * width + j) * columns)
                       : _mm512_setzero_ps();
      }
    }
    apply_both<Filter::kOutput, true>(in, out);
  }

  FASTDQN_INLINE static void store_numbers(const Tile<kPoints>& tile, std::size_t step,
                                           Number* to) noexcept {
#pragma GCC unroll 6
    for (std::size_t i = 0; i < kPoints; ++i) {
#pragma GCC unroll 6
      for (std::size_t j = 0; j < kPoints; ++j, to += step) Op::store(to, 0xffff, tile[i][j]);
    }
  }
  /// As units of one tile's numbers, or of two tiles'.
  FASTDQN_INLINE static void store_units(const Tile<kPoints> (&tiles)[Op::kNumbers],
                                         std::size_t step, Unit* to) noexcept {
#pragma GCC unroll 6
    for (std::size_t i = 0; i < kPoints; ++i) {
#pragma GCC unroll 6
      for (std::size_t j = 0; j < kPoints; ++j, to += step) {
        _mm512_storeu_si512(to, Op::unit(tiles[0][i][j], tiles[Op::kNumbers - 1][i][j]));
      }
    }
  }
  FASTDQN_INLINE static void load_points(const float* from, std::size_t step,
                                         Tile<kPoints>& tile) noexcept {
#pragma GCC unroll 6
    for (std::size_t i = 0; i < kPoints; ++i) {
#pragma GCC unroll 6
      for (std::size_t j = 0; j < kPoints; ++j, from += step) tile[i][j] = _mm512_loadu_ps(from);
    }
  }
};

}  // namespace

}  // namespace fastdqn
