#pragma once
// Adam's step on 16 numbers, for the passes that take it.

#if defined(__x86_64__)

#include <immintrin.h>

#include "fastdqn/optimizer_steps.hpp"

#define FASTDQN_AVX512 [[gnu::target("avx512f"), gnu::always_inline]] inline

namespace fastdqn {

struct AdamVectors {
  __m512 mean_weight, square_decay, square_weight, divisor, epsilon, step_size;
};

struct AdamNumbers {
  __m512 weight, mean, square;
};

FASTDQN_AVX512 AdamVectors vectors_of(const AdamFactors& factors) noexcept {
  return {_mm512_set1_ps(factors.mean_weight),   _mm512_set1_ps(factors.square_decay),
          _mm512_set1_ps(factors.square_weight), _mm512_set1_ps(factors.square_root_divisor),
          _mm512_set1_ps(factors.epsilon),       _mm512_set1_ps(-factors.step_size)};
}

/// In the order in which PyTorch's step rounds.
FASTDQN_AVX512 AdamNumbers moved(AdamNumbers from, __m512 gradient, const AdamVectors& by) noexcept {
  const __m512 mean = _mm512_fmadd_ps(by.mean_weight, _mm512_sub_ps(gradient, from.mean), from.mean);
  const __m512 square = _mm512_fmadd_ps(_mm512_mul_ps(by.square_weight, gradient), gradient,
                                        _mm512_mul_ps(from.square, by.square_decay));
  const __m512 deviation =
      _mm512_add_ps(_mm512_div_ps(_mm512_sqrt_ps(square), by.divisor), by.epsilon);
  const __m512 change = _mm512_div_ps(_mm512_mul_ps(by.step_size, mean), deviation);
  return {_mm512_add_ps(from.weight, change), mean, square};
}

}  // namespace fastdqn

#undef FASTDQN_AVX512

#endif
