#include "fastdqn/optimizer_steps.hpp"

#include <algorithm>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fastdqn {

namespace {

constexpr std::size_t kPart = 32768;  // numbers that a thread takes at a time
constexpr std::size_t kLanes = 16;

#if defined(__x86_64__)

#define FASTDQN_AVX512 [[gnu::target("avx512f")]]

struct AdamVectors {
  __m512 mean_weight, square_decay, square_weight, divisor, epsilon, step_size;
};

struct AdamNumbers {
  __m512 weight, mean, square;
};

/// In the order in which PyTorch's step rounds.
FASTDQN_AVX512 [[gnu::always_inline]] inline AdamNumbers moved(AdamNumbers from, __m512 gradient,
                                                               const AdamVectors& by) noexcept {
  const __m512 mean = _mm512_fmadd_ps(by.mean_weight, _mm512_sub_ps(gradient, from.mean), from.mean);
  const __m512 square = _mm512_fmadd_ps(_mm512_mul_ps(by.square_weight, gradient), gradient,
                                        _mm512_mul_ps(from.square, by.square_decay));
  const __m512 deviation =
      _mm512_add_ps(_mm512_div_ps(_mm512_sqrt_ps(square), by.divisor), by.epsilon);
  const __m512 change = _mm512_div_ps(_mm512_mul_ps(by.step_size, mean), deviation);
  return {_mm512_add_ps(from.weight, change), mean, square};
}

FASTDQN_AVX512 void adam_step_avx512(const AdamArrays& arrays, std::size_t begin, std::size_t end,
                                     const AdamFactors& factors) noexcept {
  const AdamVectors by{_mm512_set1_ps(factors.mean_weight),
                       _mm512_set1_ps(factors.square_decay),
                       _mm512_set1_ps(factors.square_weight),
                       _mm512_set1_ps(factors.square_root_divisor),
                       _mm512_set1_ps(factors.epsilon),
                       _mm512_set1_ps(-factors.step_size)};
  std::size_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    const AdamNumbers to = moved({_mm512_loadu_ps(arrays.weights + i),
                                  _mm512_loadu_ps(arrays.means + i),
                                  _mm512_loadu_ps(arrays.squares + i)},
                                 _mm512_loadu_ps(arrays.gradients + i), by);
    _mm512_storeu_ps(arrays.weights + i, to.weight);
    _mm512_storeu_ps(arrays.means + i, to.mean);
    _mm512_storeu_ps(arrays.squares + i, to.square);
  }
  if (i == end) return;
  const auto lanes = static_cast<__mmask16>((1U << (end - i)) - 1);
  const AdamNumbers to = moved({_mm512_maskz_loadu_ps(lanes, arrays.weights + i),
                                _mm512_maskz_loadu_ps(lanes, arrays.means + i),
                                _mm512_maskz_loadu_ps(lanes, arrays.squares + i)},
                               _mm512_maskz_loadu_ps(lanes, arrays.gradients + i), by);
  _mm512_mask_storeu_ps(arrays.weights + i, lanes, to.weight);
  _mm512_mask_storeu_ps(arrays.means + i, lanes, to.mean);
  _mm512_mask_storeu_ps(arrays.squares + i, lanes, to.square);
}

#endif

}  // namespace

bool has_adam_step() noexcept {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f");
#else
  return false;
#endif
}

void adam_step(ThreadPool& pool, std::span<const AdamArrays> arrays, const AdamFactors& factors) {
#if defined(__x86_64__)
  struct Part {
    const AdamArrays* arrays;
    std::size_t begin;
  };
  std::vector<Part> parts;
  for (const AdamArrays& each : arrays) {
    for (std::size_t begin = 0; begin < each.size; begin += kPart) parts.push_back({&each, begin});
  }
  pool.run(parts.size(), [&](std::size_t item, std::size_t) {
    const auto [array, begin] = parts[item];
    adam_step_avx512(*array, begin, std::min(begin + kPart, array->size), factors);
  });
#else
  (void)pool, (void)arrays, (void)factors;
#endif
}

}  // namespace fastdqn
