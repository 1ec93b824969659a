// The Nature network's kernels in bfloat16, for processors with AVX512-BF16.

#include "fastdqn/nature_kernels.hpp"
#include "fastdqn/tile_kernels.hpp"

#if defined(__x86_64__)

#include <immintrin.h>

#define FASTDQN_TARGET [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]]
#define FASTDQN_INLINE FASTDQN_TARGET [[gnu::always_inline]] inline

namespace fastdqn {

namespace {

struct Op {
  using Number = std::uint16_t;
  using Units = __m512bh;
  static constexpr std::size_t kNumbers = 2;

  FASTDQN_INLINE static Units load(const void* units) noexcept {
    return reinterpret_cast<Units>(_mm512_loadu_si512(units));
  }
  FASTDQN_INLINE static Units broadcast(const void* memory) noexcept {
    int unit;
    __builtin_memcpy(&unit, memory, sizeof unit);
    return reinterpret_cast<Units>(_mm512_set1_epi32(unit));
  }
  FASTDQN_INLINE static __m512 multiply_add(__m512 sums, Units a, Units b) noexcept {
    return _mm512_dpbf16_ps(sums, a, b);
  }
  FASTDQN_INLINE static void store(Number* to, __mmask16 lanes, __m512 floats) noexcept {
    _mm256_mask_storeu_epi16(to, lanes, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(floats)));
  }
  FASTDQN_INLINE static __m512 load_floats(const Number* from) noexcept {
    const __m256i numbers = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(numbers), 16));
  }
  FASTDQN_INLINE static __mmask16 is_positive(const Number* numbers) noexcept {
    return _mm512_cmp_ps_mask(load_floats(numbers), _mm512_setzero_ps(), _CMP_GT_OQ);
  }
  FASTDQN_INLINE static __m512i unit(__m512 lower, __m512 upper) noexcept {
    const auto low = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(lower));
    const auto high = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(upper));
    return _mm512_or_si512(_mm512_cvtepu16_epi32(low),
                           _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
  }

  /// 64 units, each the numbers at one column of as many rows as a unit has numbers.
  FASTDQN_INLINE static void load_across(const Number* rows, std::size_t row,
                                         Units (&out)[4]) noexcept {
    for (int half = 0; half < 2; ++half) {
      const __m512i upper = _mm512_loadu_si512(rows + 32 * half);
      const __m512i lower = _mm512_loadu_si512(rows + row + 32 * half);
      // Within each 128 bits: the first four columns, and the last four.
      out[2 * half] = reinterpret_cast<Units>(_mm512_unpacklo_epi16(upper, lower));
      out[2 * half + 1] = reinterpret_cast<Units>(_mm512_unpackhi_epi16(upper, lower));
    }
  }
  /// Puts sums over such units in the order of the columns.
  FASTDQN_INLINE static void order_across(__m512 (&sums)[4]) noexcept {
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second =
        _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    for (int half = 0; half < 2; ++half) {
      const __m512 lower = sums[2 * half];
      const __m512 upper = sums[2 * half + 1];
      sums[2 * half] = _mm512_permutex2var_ps(lower, first, upper);
      sums[2 * half + 1] = _mm512_permutex2var_ps(lower, second, upper);
    }
  }
};

}  // namespace

}  // namespace fastdqn

#include "fastdqn/nature_kernels_impl.hpp"
#include "fastdqn/tile_kernels_impl.hpp"

namespace fastdqn {

const NatureKernels* bfloat16_kernels() noexcept {
  const bool runs = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                    __builtin_cpu_supports("avx512bf16");
  return runs ? &kKernels : nullptr;
}

const LayerTileKernels* bfloat16_tile_kernels() noexcept {
  // Larger tiles would have fewer products, and lose to rounding what these numbers hardly have.
  static constexpr LayerTileKernels kLayers{
      &Tiles<Winograd<3, 2>>::kKernels, &Tiles<Winograd<3, 2>>::kKernels,
      &Tiles<Winograd<2, 3>>::kKernels};
  return bfloat16_kernels() == nullptr ? nullptr : &kLayers;
}

}  // namespace fastdqn

#else

namespace fastdqn {

const NatureKernels* bfloat16_kernels() noexcept { return nullptr; }

const LayerTileKernels* bfloat16_tile_kernels() noexcept { return nullptr; }

}  // namespace fastdqn

#endif
