#include "fastdqn/frame_codec.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#define FASTDQN_AVX512 \
  [[gnu::target("avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,vpclmulqdq,bmi,bmi2,popcnt")]]
#endif

namespace fastdqn {

static_assert(std::endian::native == std::endian::little, "words are taken apart by their bytes");

namespace {

using Byte = std::uint8_t;
using Word = std::uint64_t;

constexpr std::size_t kWord = 8;
constexpr std::size_t kBlock = 64;
constexpr std::size_t kPiece = 512;
constexpr std::size_t kPage = 4096;

constexpr Byte kTree = 0;
constexpr Byte kTreeWithRuns = 1;
constexpr Byte kAsItIs = 2;
constexpr Byte kFromRowAbove = 16;

constexpr Word kOnes = 0x0101010101010101;  // each byte 1

constexpr std::size_t ceil_divide(std::size_t a, std::size_t b) noexcept { return (a + b - 1) / b; }

Word load_word(const void* data) noexcept {
  Word word;
  std::memcpy(&word, data, sizeof(word));
  return word;
}

void store_word(void* data, Word word) noexcept { std::memcpy(data, &word, sizeof(word)); }

constexpr std::array<Byte, 256> kBitCounts = [] {
  std::array<Byte, 256> counts{};
  for (std::size_t i = 0; i < counts.size(); ++i) {
    counts[i] = static_cast<Byte>(std::popcount(i));
  }
  return counts;
}();

std::size_t count_bits(const Byte* bytes, std::size_t count) noexcept {
  std::size_t bits = 0;
  for (std::size_t i = 0; i < count; ++i) bits += kBitCounts[bytes[i]];
  return bits;
}

/// Bit i: byte i of the word is not zero.
Byte bytes_in(Word word) noexcept {
  constexpr Word kHigh = kOnes << 7;
  const Word high = (((word & ~kHigh) + ~kHigh) | word) & kHigh;
  return static_cast<Byte>((high * 0x0002040810204081) >> 56);
}

/// Each byte the exclusive or of itself and all below.
Word with_all_below(Word word) noexcept {
  word ^= word << 8;
  word ^= word << 16;
  return word ^ word << 32;
}

/// The word operations in which instruction sets differ.
struct PortableWords {
  static std::size_t count(Byte mask) noexcept { return kBitCounts[mask]; }
  static std::size_t count_all(Word word) noexcept {
    word -= word >> 1 & kOnes * 0x55;
    word = (word & kOnes * 0x33) + (word >> 2 & kOnes * 0x33);
    return ((word + (word >> 4)) & kOnes * 0x0F) * kOnes >> 56;
  }

  /// The word whose bytes named by the mask are the next ones of `bytes`.
  static Word spread(Byte mask, const Byte* bytes) noexcept {
    Word word = 0;
    for (unsigned rest = mask; rest != 0; rest &= rest - 1) {
      word |= Word{*bytes++} << (8 * std::countr_zero(rest));
    }
    return word;
  }

  /// The opposite; writes up to 8 bytes.
  static void gather(Word word, Byte mask, Byte* bytes) noexcept {
    for (unsigned rest = mask; rest != 0; rest &= rest - 1) {
      *bytes++ = static_cast<Byte>(word >> (8 * std::countr_zero(rest)));
    }
  }
};

#if defined(__x86_64__)
/// Written as instructions, because a function with a target of its own is not inlined into a
/// template that has none.
struct Bmi2Words {
  static std::size_t count(Byte mask) noexcept { return count_all(mask); }
  static std::size_t count_all(Word word) noexcept {
    __asm__("popcnt %0, %0" : "+r"(word) : : "cc");
    return word;
  }
  static Word deposit(Word value, Word mask) noexcept {
    Word result;
    __asm__("pdep %2, %1, %0" : "=r"(result) : "r"(value), "r"(mask));
    return result;
  }
  static Word extract(Word value, Word mask) noexcept {
    Word result;
    __asm__("pext %2, %1, %0" : "=r"(result) : "r"(value), "r"(mask));
    return result;
  }
  static Word byte_mask(Byte mask) noexcept { return deposit(mask, kOnes) * 0xFF; }

  static Word spread(Byte mask, const Byte* bytes) noexcept {
    return deposit(load_word(bytes), byte_mask(mask));
  }
  static void gather(Word word, Byte mask, Byte* bytes) noexcept {
    store_word(bytes, extract(word, byte_mask(mask)));
  }
};
#endif

// -- the parts of a code ----------------------------------------------------------------------

/// Reads up to 7 bytes more.
template <class Words>
std::size_t count_all(const Byte* bytes, std::size_t count) noexcept {
  std::size_t bits = 0;
  for (; count >= kWord; count -= kWord, bytes += kWord) bits += Words::count_all(load_word(bytes));
  return bits + Words::count_all(load_word(bytes) & ((Word{1} << 8 * count) - 1));
}

/// Where the parts of a tree begin.
struct Tree {
  const Byte* pieces;
  const Byte* blocks;
  const Byte* runs;  // null where no block is of runs
  const Byte* words;
  const Byte* masks;
  const Byte* bytes;
};

template <class Words>
Tree find_parts(const Byte* code, std::size_t num_pieces) noexcept {
  Tree tree{};
  tree.pieces = code + 1;
  tree.blocks = tree.pieces + ceil_divide(num_pieces, 8);
  const std::size_t pieces = count_all<Words>(tree.pieces, ceil_divide(num_pieces, 8));
  const bool with_runs = (code[0] & ~kFromRowAbove) == kTreeWithRuns;
  tree.runs = with_runs ? tree.blocks + pieces : nullptr;
  tree.words = tree.blocks + (with_runs ? 2 * pieces : pieces);
  tree.masks = tree.words + count_all<Words>(tree.blocks, pieces);
  tree.bytes = tree.masks +
               count_all<Words>(tree.words, static_cast<std::size_t>(tree.masks - tree.words));
  return tree;
}

/// The parts of a tree as they are made, in a workspace, and how much of each.
struct Draft {
  Byte* blocks;
  Byte* runs;
  Byte* words;
  Byte* masks;
  Byte* bytes;
  std::size_t num_blocks = 0;  // that hold anything: as many words bytes
  std::size_t num_words = 0;
  std::size_t num_bytes = 0;
  bool with_runs = false;
};

/// A block is written as runs where that saves more bytes than one.
constexpr bool runs_are_shorter(std::size_t plain, std::size_t with_runs) noexcept {
  return with_runs + 1 < plain;
}

// -- one word at a time -----------------------------------------------------------------------

template <class Words>
void apply_block(Byte words, bool runs, const Byte*& masks, const Byte*& bytes,
                 Byte* frame) noexcept {
  if (!runs) {
    for (unsigned rest = words; rest != 0; rest &= rest - 1) {
      Byte* place = frame + kWord * static_cast<std::size_t>(std::countr_zero(rest));
      store_word(place, load_word(place) ^ Words::spread(*masks, bytes));
      bytes += Words::count(*masks++);
    }
    return;
  }
  Word last = 0;
  for (std::size_t k = 0; k < kBlock / kWord; ++k) {
    Word word = last;
    if ((words >> k & 1) != 0) {
      word ^= with_all_below(Words::spread(*masks, bytes));
      bytes += Words::count(*masks++);
    }
    last = (word >> 56) * kOnes;
    store_word(frame + k * kWord, load_word(frame + k * kWord) ^ word);
  }
}

/// Takes the bits of 64 blocks at a time, so that there is one loop over those that are there.
template <class Words>
void apply_tree(const Byte* code, Byte* frame, std::size_t frame_nbytes,
                std::size_t num_pieces) noexcept {
  const Tree tree = find_parts<Words>(code, num_pieces);
  const Byte* blocks = tree.blocks;
  const Byte* runs = tree.runs;
  const Byte* words = tree.words;
  const Byte* masks = tree.masks;
  const Byte* bytes = tree.bytes;
  for (std::size_t page = 0; page < ceil_divide(num_pieces, 8); ++page) {
    const Byte pieces = tree.pieces[page];
    const Word runs_here = runs == nullptr ? 0 : Words::spread(pieces, runs);
    for (Word rest = Words::spread(pieces, blocks); rest != 0; rest &= rest - 1) {
      const auto block = static_cast<std::size_t>(std::countr_zero(rest));
      const std::size_t offset = page * kPage + block * kBlock;
      const bool with_runs = (runs_here >> block & 1) != 0;
      if (offset + kBlock <= frame_nbytes) {
        apply_block<Words>(*words++, with_runs, masks, bytes, frame + offset);
      } else {
        std::array<Byte, kBlock> last{};
        std::memcpy(last.data(), frame + offset, frame_nbytes - offset);
        apply_block<Words>(*words++, with_runs, masks, bytes, last.data());
        std::memcpy(frame + offset, last.data(), frame_nbytes - offset);
      }
    }
    blocks += Words::count(pieces);
    if (runs != nullptr) runs += Words::count(pieces);
  }
}

template <class Words>
void write_block(const std::array<Word, kBlock / kWord>& block, Draft& draft) noexcept {
  Byte words = 0;
  for (std::size_t k = 0; k < block.size(); ++k) {
    if (block[k] == 0) continue;
    words |= static_cast<Byte>(1U << k);
    const Byte mask = bytes_in(block[k]);
    draft.masks[draft.num_words++] = mask;
    Words::gather(block[k], mask, draft.bytes + draft.num_bytes);
    draft.num_bytes += Words::count(mask);
  }
  draft.words[draft.num_blocks++] = words;
}

template <class Words>
void draft_tree(const Byte* before, const Byte* after, std::size_t frame_nbytes,
                std::size_t num_pieces, Draft& draft) noexcept {
  std::size_t offset = 0;
  for (std::size_t piece = 0; piece < num_pieces; ++piece) {
    unsigned blocks = 0;
    unsigned runs = 0;
    for (unsigned bit = 1; bit < 256 && offset < frame_nbytes; bit <<= 1, offset += kBlock) {
      std::array<Word, kBlock / kWord> block{};
      if (offset + kBlock <= frame_nbytes) {
        for (std::size_t k = 0; k < block.size(); ++k) {
          block[k] = load_word(before + offset + k * kWord) ^ load_word(after + offset + k * kWord);
        }
      } else {
        auto* bytes = reinterpret_cast<Byte*>(block.data());
        for (std::size_t i = 0; offset + i < frame_nbytes; ++i) {
          bytes[i] = before[offset + i] ^ after[offset + i];
        }
      }
      Word any = 0;
      for (const Word word : block) any |= word;
      if (any == 0) continue;
      std::array<Word, kBlock / kWord> neighbours;
      std::size_t plain = 0;
      std::size_t with_runs = 0;
      Word below = 0;
      for (std::size_t k = 0; k < block.size(); ++k) {
        neighbours[k] = block[k] ^ (block[k] << 8 | below);
        below = block[k] >> 56;
        plain += kBitCounts[bytes_in(block[k])] + (block[k] != 0 ? 1U : 0U);
        with_runs += kBitCounts[bytes_in(neighbours[k])] + (neighbours[k] != 0 ? 1U : 0U);
      }
      blocks |= bit;
      if (runs_are_shorter(plain, with_runs)) runs |= bit;
      write_block<Words>((runs & bit) != 0 ? neighbours : block, draft);
    }
    draft.blocks[piece] = static_cast<Byte>(blocks);
    draft.runs[piece] = static_cast<Byte>(runs);
    draft.with_runs |= runs != 0;
  }
}

// -- one block at a time ----------------------------------------------------------------------

#if defined(__x86_64__)

constexpr std::array<Byte, kBlock> places_in_block(Byte (*place)(std::size_t)) {
  std::array<Byte, kBlock> places{};
  for (std::size_t i = 0; i < kBlock; ++i) places[i] = place(i);
  return places;
}
alignas(kBlock) constexpr auto kLastOfWords =
    places_in_block([](std::size_t i) { return static_cast<Byte>(i % kWord * kWord + kWord - 1); });
alignas(kBlock) constexpr auto kNumbersOfWords =
    places_in_block([](std::size_t i) { return static_cast<Byte>(i / kWord); });

/// Each byte of the block the exclusive or of itself and all below: a product without carries with
/// a one in every byte is that within a word.
FASTDQN_AVX512 [[gnu::always_inline]] inline __m512i with_all_below(__m512i block) noexcept {
  const __m512i ones = _mm512_set1_epi64(static_cast<long long>(kOnes));
  const __m512i words = _mm512_unpacklo_epi64(_mm512_clmulepi64_epi128(block, ones, 0x00),
                                              _mm512_clmulepi64_epi128(block, ones, 0x01));
  // The last bytes of all words, as one word; of each the words below, back at all bytes of it.
  const __m512i last = _mm512_permutexvar_epi8(_mm512_load_si512(kLastOfWords.data()), words);
  const __m512i below = _mm512_clmulepi64_epi128(last, _mm512_slli_epi64(ones, 8), 0x00);
  return _mm512_xor_si512(
      words, _mm512_permutexvar_epi8(_mm512_load_si512(kNumbersOfWords.data()), below));
}

template <bool kWithRuns>
FASTDQN_AVX512 void apply_tree_avx512(const Byte* code, Byte* frame, std::size_t frame_nbytes,
                                      std::size_t num_pieces) noexcept {
  const Tree tree = find_parts<Bmi2Words>(code, num_pieces);
  const Byte* blocks = tree.blocks;
  const Byte* runs = tree.runs;
  const Byte* words = tree.words;
  const Byte* masks = tree.masks;
  const Byte* bytes = tree.bytes;
  // The form of the instruction that makes zeros itself waits on AMD's processors for what its
  // register held before, so that one block would wait for another. The compiler must not see it.
  __m512i zeros = _mm512_setzero_si512();
  __asm__("" : "+v"(zeros));
  for (std::size_t page = 0; page < ceil_divide(num_pieces, 8); ++page) {
    const Byte pieces = tree.pieces[page];
    const Word byte_mask = _pdep_u64(pieces, kOnes) * 0xFF;
    Word runs_here = 0;
    if constexpr (kWithRuns) runs_here = _pdep_u64(load_word(runs), byte_mask);
    for (Word rest = _pdep_u64(load_word(blocks), byte_mask); rest != 0; rest &= rest - 1) {
      const auto block = static_cast<std::size_t>(_tzcnt_u64(rest));
      const std::size_t offset = page * kPage + block * kBlock;
      const Byte word_bits = *words++;
      const Word mask = _pdep_u64(load_word(masks), _pdep_u64(word_bits, kOnes) * 0xFF);
      masks += _mm_popcnt_u32(word_bits);
      __m512i change = _mm512_mask_expand_epi8(zeros, mask, _mm512_loadu_si512(bytes));
      bytes += _mm_popcnt_u64(mask);
      if constexpr (kWithRuns) {  // without a branch, which nobody could predict
        const auto chosen = static_cast<__mmask8>(0 - (runs_here >> block & 1));
        change = _mm512_mask_mov_epi64(change, chosen, with_all_below(change));
      }
      Byte* place = frame + offset;
      if (offset + kBlock <= frame_nbytes) {
        _mm512_storeu_si512(place, _mm512_xor_si512(_mm512_loadu_si512(place), change));
      } else {
        const __mmask64 whole = _bzhi_u64(~Word{0}, static_cast<unsigned>(frame_nbytes - offset));
        _mm512_mask_storeu_epi8(place, whole,
                                _mm512_xor_si512(_mm512_maskz_loadu_epi8(whole, place), change));
      }
    }
    blocks += _mm_popcnt_u32(pieces);
    if constexpr (kWithRuns) runs += _mm_popcnt_u32(pieces);
  }
}

FASTDQN_AVX512 void sum_rows_avx512(Byte* frame, std::size_t frame_nbytes,
                                    std::size_t row_nbytes) noexcept {
  for (std::size_t left = 0; left < row_nbytes; left += kBlock) {
    const std::size_t width = std::min(kBlock, row_nbytes - left);
    const __mmask64 columns = _bzhi_u64(~Word{0}, static_cast<unsigned>(width));
    __m512i sum = _mm512_setzero_si512();
    for (std::size_t row = left; row < frame_nbytes; row += row_nbytes) {
      sum = _mm512_xor_si512(sum, _mm512_maskz_loadu_epi8(columns, frame + row));
      _mm512_mask_storeu_epi8(frame + row, columns, sum);
    }
  }
}

FASTDQN_AVX512 void draft_tree_avx512(const Byte* before, const Byte* after,
                                      std::size_t frame_nbytes, std::size_t num_pieces,
                                      Draft& draft) noexcept {
  alignas(kBlock) static constexpr auto kOneDown =
      places_in_block([](std::size_t i) { return static_cast<Byte>(i == 0 ? 0 : i - 1); });
  const __m512i one_down = _mm512_load_si512(kOneDown.data());
  std::size_t offset = 0;
  for (std::size_t piece = 0; piece < num_pieces; ++piece) {
    unsigned blocks = 0;
    unsigned runs = 0;
    for (unsigned bit = 1; bit < 256 && offset < frame_nbytes; bit <<= 1, offset += kBlock) {
      __m512i change;
      if (offset + kBlock <= frame_nbytes) {
        change = _mm512_xor_si512(_mm512_loadu_si512(before + offset),
                                  _mm512_loadu_si512(after + offset));
      } else {
        const __mmask64 whole = _bzhi_u64(~Word{0}, static_cast<unsigned>(frame_nbytes - offset));
        change = _mm512_xor_si512(_mm512_maskz_loadu_epi8(whole, before + offset),
                                  _mm512_maskz_loadu_epi8(whole, after + offset));
      }
      Word mask = _mm512_test_epi8_mask(change, change);
      if (mask == 0) continue;
      Byte words = _mm512_test_epi64_mask(change, change);
      const __m512i neighbours = _mm512_xor_si512(
          change, _mm512_maskz_permutexvar_epi8(~Word{1}, one_down, change));
      const Word run_mask = _mm512_test_epi8_mask(neighbours, neighbours);
      const Byte run_words = _mm512_test_epi64_mask(neighbours, neighbours);
      blocks |= bit;
      const auto plain = _mm_popcnt_u64(mask) + _mm_popcnt_u32(words);
      const auto with_runs = _mm_popcnt_u64(run_mask) + _mm_popcnt_u32(run_words);
      if (runs_are_shorter(static_cast<std::size_t>(plain), static_cast<std::size_t>(with_runs))) {
        runs |= bit;
        change = neighbours;
        mask = run_mask;
        words = run_words;
      }
      draft.words[draft.num_blocks++] = words;
      store_word(draft.masks + draft.num_words, _pext_u64(mask, _pdep_u64(words, kOnes) * 0xFF));
      draft.num_words += static_cast<std::size_t>(_mm_popcnt_u32(words));
      _mm512_storeu_si512(draft.bytes + draft.num_bytes,
                          _mm512_maskz_compress_epi8(mask, change));
      draft.num_bytes += static_cast<std::size_t>(_mm_popcnt_u64(mask));
    }
    draft.blocks[piece] = static_cast<Byte>(blocks);
    draft.runs[piece] = static_cast<Byte>(runs);
    draft.with_runs |= runs != 0;
  }
}

#endif

// -- rows -------------------------------------------------------------------------------------

/// Replaces each row by its exclusive or with the row above.
void difference_rows(const Byte* frame, std::size_t frame_nbytes, std::size_t row_nbytes,
                     Byte* target) noexcept {
  std::memcpy(target, frame, row_nbytes);
  for (std::size_t i = row_nbytes; i < frame_nbytes; ++i) {
    target[i] = frame[i] ^ frame[i - row_nbytes];
  }
}

/// The opposite, in place. Rows are summed apart from the frame: a row that was just written cannot
/// be read again at once without waiting for it.
void sum_rows(Byte* frame, std::size_t frame_nbytes, std::size_t row_nbytes) noexcept {
  constexpr std::size_t kColumns = 1024;
  std::array<Byte, kColumns> sum;
  for (std::size_t left = 0; left < row_nbytes; left += kColumns) {
    const std::size_t width = std::min(kColumns, row_nbytes - left);
    std::fill_n(sum.begin(), width, Byte{0});
    for (std::size_t row = left; row < frame_nbytes; row += row_nbytes) {
      for (std::size_t i = 0; i < width; ++i) {
        sum[i] ^= frame[row + i];
        frame[row + i] = sum[i];
      }
    }
  }
}

std::size_t row_nbytes_of(const FrameGeometry& frame) noexcept {
  const auto& shape = frame.shape;
  if (shape.size() < 2) return 0;
  // Colours that lie side by side belong to a row.
  const bool colours = shape.size() > 2 && shape.back() <= 4;
  std::size_t nbytes = info(frame.dtype).size;
  for (std::size_t k = shape.size() - (colours ? 2 : 1); k < shape.size(); ++k) {
    nbytes *= static_cast<std::size_t>(shape[k]);
  }
  return nbytes < frame.nbytes() ? nbytes : 0;
}

const Byte* as_bytes(const std::byte* data) noexcept { return reinterpret_cast<const Byte*>(data); }
Byte* as_bytes(std::byte* data) noexcept { return reinterpret_cast<Byte*>(data); }

}  // namespace

FrameCodec::InstructionSet FrameCodec::best_instruction_set() noexcept {
#if defined(__x86_64__)
  __builtin_cpu_init();
  // Zen 1 and 2 have pdep and pext, but take hundreds of cycles for them.
  const bool words = __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt") &&
                     !__builtin_cpu_is("znver1") && !__builtin_cpu_is("znver2");
  if (words && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
      __builtin_cpu_supports("vpclmulqdq")) {
    return InstructionSet::kAvx512;
  }
  if (words) return InstructionSet::kBmi2;
#endif
  return InstructionSet::kPortable;
}

FrameCodec::FrameCodec(const FrameGeometry& frame, InstructionSet instruction_set)
    : frame_nbytes_(frame.nbytes()),
      row_nbytes_(row_nbytes_of(frame)),
      num_blocks_(ceil_divide(frame_nbytes_, kBlock)),
      num_pieces_(ceil_divide(frame_nbytes_, kPiece)),
      workspace_nbytes_(2 * frame_nbytes_ + 2 * num_pieces_ + num_blocks_ +
                        (num_blocks_ * kBlock / kWord + kWord) + (frame_nbytes_ + kBlock)),
      instruction_set_(instruction_set) {}

std::size_t FrameCodec::encode(const std::byte* before, const std::byte* after, std::byte* code,
                               Workspace& workspace) const noexcept {
  Draft draft{};
  // The first two frames are encode_key's.
  draft.blocks = as_bytes(workspace.data()) + 2 * frame_nbytes_;
  draft.runs = draft.blocks + num_pieces_;
  draft.words = draft.runs + num_pieces_;
  draft.masks = draft.words + num_blocks_;
  draft.bytes = draft.masks + num_blocks_ * kBlock / kWord + kWord;
  switch (instruction_set_) {
#if defined(__x86_64__)
    case InstructionSet::kAvx512:
      draft_tree_avx512(as_bytes(before), as_bytes(after), frame_nbytes_, num_pieces_, draft);
      break;
    case InstructionSet::kBmi2:
      draft_tree<Bmi2Words>(as_bytes(before), as_bytes(after), frame_nbytes_, num_pieces_, draft);
      break;
#endif
    default:
      draft_tree<PortableWords>(as_bytes(before), as_bytes(after), frame_nbytes_, num_pieces_,
                                draft);
  }
  if (draft.num_blocks == 0) return 0;

  Byte* out = as_bytes(code);
  const std::size_t pieces_nbytes = ceil_divide(num_pieces_, 8);
  std::size_t pieces = 0;
  for (std::size_t piece = 0; piece < num_pieces_; ++piece) pieces += draft.blocks[piece] != 0;
  const std::size_t nbytes = 1 + pieces_nbytes + (draft.with_runs ? 2 * pieces : pieces) +
                             draft.num_blocks + draft.num_words + draft.num_bytes;
  if (nbytes > frame_nbytes_) {
    *out++ = kAsItIs;
    for (std::size_t i = 0; i < frame_nbytes_; ++i) {
      out[i] = as_bytes(before)[i] ^ as_bytes(after)[i];
    }
    return frame_nbytes_ + 1;
  }
  *out++ = draft.with_runs ? kTreeWithRuns : kTree;
  Byte* bits = out;
  std::memset(bits, 0, pieces_nbytes);
  out += pieces_nbytes;
  for (std::size_t piece = 0; piece < num_pieces_; ++piece) {
    if (draft.blocks[piece] == 0) continue;
    bits[piece / 8] |= static_cast<Byte>(1U << piece % 8);
    if (draft.with_runs) out[pieces] = draft.runs[piece];
    *out++ = draft.blocks[piece];
  }
  if (draft.with_runs) out += pieces;
  const auto put = [&](const Byte* part, std::size_t count) {
    std::memcpy(out, part, count);
    out += count;
  };
  put(draft.words, draft.num_blocks);
  put(draft.masks, draft.num_words);
  put(draft.bytes, draft.num_bytes);
  return nbytes;
}

void FrameCodec::apply(const std::byte* code, std::size_t nbytes,
                       std::byte* frame) const noexcept {
  if (nbytes == 0) return;
  const Byte* in = as_bytes(code);
  Byte* out = as_bytes(frame);
  if ((in[0] & ~kFromRowAbove) == kAsItIs) {
    for (std::size_t i = 0; i < frame_nbytes_; ++i) out[i] ^= in[i + 1];
    return;
  }
  switch (instruction_set_) {
#if defined(__x86_64__)
    case InstructionSet::kAvx512:
      return (in[0] & ~kFromRowAbove) == kTree
                 ? apply_tree_avx512<false>(in, out, frame_nbytes_, num_pieces_)
                 : apply_tree_avx512<true>(in, out, frame_nbytes_, num_pieces_);
    case InstructionSet::kBmi2:
      return apply_tree<Bmi2Words>(in, out, frame_nbytes_, num_pieces_);
#endif
    default:
      return apply_tree<PortableWords>(in, out, frame_nbytes_, num_pieces_);
  }
}

std::size_t FrameCodec::encode_key(const std::byte* frame, std::byte* code,
                                   Workspace& workspace) const noexcept {
  const std::byte* zeros = workspace.data();
  const std::size_t plain = encode(zeros, frame, code, workspace);
  if (row_nbytes_ == 0) return plain;
  std::byte* rows = workspace.data() + frame_nbytes_;
  difference_rows(as_bytes(frame), frame_nbytes_, row_nbytes_, as_bytes(rows));
  const std::size_t from_rows = encode(zeros, rows, code, workspace);
  if (from_rows >= plain) return encode(zeros, frame, code, workspace);
  code[0] |= std::byte{kFromRowAbove};
  return from_rows;
}

void FrameCodec::decode_key(const std::byte* code, std::size_t nbytes,
                            std::byte* frame) const noexcept {
  std::memset(frame, 0, frame_nbytes_);
  apply(code, nbytes, frame);
  if (nbytes > 0 && (code[0] & std::byte{kFromRowAbove}) != std::byte{0}) {
#if defined(__x86_64__)
    if (instruction_set_ == InstructionSet::kAvx512) {
      return sum_rows_avx512(as_bytes(frame), frame_nbytes_, row_nbytes_);
    }
#endif
    sum_rows(as_bytes(frame), frame_nbytes_, row_nbytes_);
  }
}

bool FrameCodec::is_valid(const std::byte* code, std::size_t nbytes) const noexcept {
  if (nbytes == 0) return true;
  const Byte* in = as_bytes(code);
  const Byte kind = static_cast<Byte>(in[0] & ~kFromRowAbove);
  if ((in[0] & kFromRowAbove) != 0 && row_nbytes_ == 0) return false;
  if (kind == kAsItIs) return nbytes == frame_nbytes_ + 1;
  if (kind != kTree && kind != kTreeWithRuns) return false;
  std::size_t at = 1;
  const auto take = [&](std::size_t count) {  // the place of that many bytes, null if there are less
    const Byte* part = count <= nbytes - at ? in + at : nullptr;
    if (part != nullptr) at += count;
    return part;
  };
  const Byte* bits = take(ceil_divide(num_pieces_, 8));
  if (bits == nullptr) return false;
  if (num_pieces_ % 8 != 0 && bits[num_pieces_ / 8] >> num_pieces_ % 8 != 0) return false;
  const std::size_t pieces = count_bits(bits, ceil_divide(num_pieces_, 8));
  const Byte* blocks = take(pieces);
  if (blocks == nullptr) return false;
  const bool last_piece = (bits[(num_pieces_ - 1) / 8] >> (num_pieces_ - 1) % 8 & 1) != 0;
  if (last_piece && num_blocks_ % 8 != 0 && blocks[pieces - 1] >> num_blocks_ % 8 != 0) return false;
  if (kind == kTreeWithRuns && take(pieces) == nullptr) return false;
  const std::size_t num_blocks = count_bits(blocks, pieces);
  const Byte* words = take(num_blocks);
  if (words == nullptr) return false;
  const std::size_t num_words = count_bits(words, num_blocks);
  const Byte* masks = take(num_words);
  if (masks == nullptr) return false;
  return take(count_bits(masks, num_words)) != nullptr && at == nbytes;
}

}  // namespace fastdqn
