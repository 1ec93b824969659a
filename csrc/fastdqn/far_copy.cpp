#include "fastdqn/far_copy.hpp"

#include <algorithm>
#include <cstring>

namespace fastdqn {

#if defined(__GNUC__)

namespace {

using Line [[gnu::vector_size(64), gnu::aligned(1), gnu::may_alias]] = char;
constexpr std::size_t kAhead = 8192;

/// By the widest vectors of the function that it is inlined into.
[[gnu::always_inline]] inline void copy(std::byte* target, const std::byte* source,
                                        std::size_t nbytes, const std::byte* end,
                                        const std::byte* next) noexcept {
  const auto known = static_cast<std::size_t>(end - source);
  const std::size_t here = std::min(nbytes, known > kAhead ? known - kAhead : 0);
  std::size_t i = 0;
  const auto copy_line = [&] {
    *reinterpret_cast<Line*>(target + i) = *reinterpret_cast<const Line*>(source + i);
  };
  for (; i < here && i + sizeof(Line) <= nbytes; i += sizeof(Line)) {
    __builtin_prefetch(source + i + kAhead);
    copy_line();
  }
  for (; i + sizeof(Line) <= nbytes; i += sizeof(Line)) {
    if (next != nullptr) __builtin_prefetch(next + (i + kAhead - known));
    copy_line();
  }
  std::memcpy(target + i, source + i, nbytes - i);
}

#if defined(__x86_64__)
[[gnu::target("avx512f")]] void copy_by_avx512(std::byte* target, const std::byte* source,
                                               std::size_t nbytes, const std::byte* end,
                                        const std::byte* next) noexcept {
  copy(target, source, nbytes, end, next);
}
const bool has_avx512 = __builtin_cpu_supports("avx512f") != 0;
#endif

}  // namespace

void copy_from_far(std::byte* target, const std::byte* source, std::size_t nbytes,
                   const std::byte* end, const std::byte* next) noexcept {
#if defined(__x86_64__)
  if (has_avx512) return copy_by_avx512(target, source, nbytes, end, next);
#endif
  copy(target, source, nbytes, end, next);
}

#else

void copy_from_far(std::byte* target, const std::byte* source, std::size_t nbytes,
                   const std::byte*, const std::byte*) noexcept {
  std::memcpy(target, source, nbytes);
}

#endif

}  // namespace fastdqn
