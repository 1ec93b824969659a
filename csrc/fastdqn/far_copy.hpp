#pragma once
// Copies out of memory that no cache has.

#include <cstddef>

namespace fastdqn {

/// Copies `nbytes` from `source`, asking for what lies two pages further on: up to `end`, and from
/// there on at `next`, if that is not null. By itself a processor looks ahead within a page alone,
/// and the next one's address is slow to find where there are no huge pages.
void copy_from_far(std::byte* target, const std::byte* source, std::size_t nbytes,
                   const std::byte* end, const std::byte* next) noexcept;

}  // namespace fastdqn
