// The Nature network's kernels in float32, for processors with AVX-512.

#include "fastdqn/nature_kernels.hpp"
#include "fastdqn/tile_kernels.hpp"

#if defined(__x86_64__)

#include <immintrin.h>

#define FASTDQN_TARGET [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]]
#define FASTDQN_INLINE FASTDQN_TARGET [[gnu::always_inline]] inline

namespace fastdqn {

namespace {

struct Op {
  using Number = float;
  using Units = __m512;
  static constexpr std::size_t kNumbers = 1;

  FASTDQN_INLINE static Units load(const void* units) noexcept { return _mm512_loadu_ps(units); }
  FASTDQN_INLINE static Units broadcast(const void* memory) noexcept {
    int unit;
    __builtin_memcpy(&unit, memory, sizeof unit);
    return _mm512_castsi512_ps(_mm512_set1_epi32(unit));
  }
  FASTDQN_INLINE static __m512 multiply_add(__m512 sums, Units a, Units b) noexcept {
    return _mm512_fmadd_ps(a, b, sums);
  }
  FASTDQN_INLINE static void store(Number* to, __mmask16 lanes, __m512 floats) noexcept {
    _mm512_mask_storeu_ps(to, lanes, floats);
  }
  FASTDQN_INLINE static __m512 load_floats(const Number* from) noexcept {
    return _mm512_loadu_ps(from);
  }
  FASTDQN_INLINE static __mmask16 is_positive(const Number* numbers) noexcept {
    return _mm512_cmp_ps_mask(_mm512_loadu_ps(numbers), _mm512_setzero_ps(), _CMP_GT_OQ);
  }
  FASTDQN_INLINE static __m512i unit(__m512 number, __m512) noexcept {
    return _mm512_castps_si512(number);
  }

  /// 64 units, each the numbers at one column of as many rows as a unit has numbers.
  FASTDQN_INLINE static void load_across(const Number* rows, std::size_t, Units (&out)[4]) noexcept {
    for (int vector = 0; vector < 4; ++vector) out[vector] = _mm512_loadu_ps(rows + 16 * vector);
  }
  /// Puts sums over such units in the order of the columns.
  FASTDQN_INLINE static void order_across(__m512 (&)[4]) noexcept {}
};

}  // namespace

}  // namespace fastdqn

#include "fastdqn/nature_kernels_impl.hpp"
#include "fastdqn/tile_kernels_impl.hpp"

namespace fastdqn {

const NatureKernels* float32_kernels() noexcept {
  const bool runs = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return runs ? &kKernels : nullptr;
}

const LayerTileKernels* float32_tile_kernels() noexcept {
  // The more outputs a tile has, the fewer products there are and the more is lost to rounding.
  static constexpr LayerTileKernels kLayers{
      &Tiles<Winograd<4, 2>>::kKernels, &Tiles<Winograd<3, 2>>::kKernels,
      &Tiles<Winograd<4, 3>>::kKernels};
  return float32_kernels() == nullptr ? nullptr : &kLayers;
}

}  // namespace fastdqn

#else

namespace fastdqn {

const NatureKernels* float32_kernels() noexcept { return nullptr; }

const LayerTileKernels* float32_tile_kernels() noexcept { return nullptr; }

}  // namespace fastdqn

#endif
