#include "fastdqn/optimizer_steps.hpp"

#include <algorithm>
#include <vector>

#include "fastdqn/adam_kernel.hpp"

namespace fastdqn {

namespace {

constexpr std::size_t kPart = 32768;  // numbers that a thread takes at a time
constexpr std::size_t kLanes = 16;

#if defined(__x86_64__)

[[gnu::target("avx512f")]] void adam_step_avx512(const AdamArrays& arrays, std::size_t begin, std::size_t end,
                                     const AdamFactors& factors) noexcept {
  const AdamVectors by = vectors_of(factors);
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
