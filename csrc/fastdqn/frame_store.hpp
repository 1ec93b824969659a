#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <string>

#include "fastdqn/geometry.hpp"

namespace fastdqn {

/// Memory that the system does not have; what() names the bytes that were asked for.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(std::string message) : message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

/// Where frames live: `capacity` frames of `frame_nbytes` each, one behind the other, no padding.
///
/// The memory is reserved at once and committed as it is first written. Reading and writing
/// different slots from several threads is safe; one slot needs a lock of the owner's.
class FrameStore {
 public:
  /// Throws OutOfMemory where the system refuses.
  FrameStore(std::size_t capacity, std::size_t frame_nbytes);

  std::size_t frame_nbytes() const noexcept { return frame_nbytes_; }
  std::size_t nbytes() const noexcept { return nbytes_; }

  void write(Slot slot, const std::byte* source) noexcept;

  /// Copies one frame, or zeros for kNoSlot, to `target`: no other copy of it is made.
  void read_into(Slot slot, std::byte* target) const noexcept;

  /// One frame in place, or a frame of zeros for kNoSlot, for readers that take several apart at
  /// once. Valid until the slot is written again.
  const std::byte* frame(Slot slot) const noexcept;

  /// Asks for the beginning of a frame that is read soon.
  void prefetch(Slot slot) const noexcept;

  /// The first `count` frames as they lie, for snapshots.
  std::span<std::byte> first(std::size_t count) noexcept {
    return {data_.get(), count * frame_nbytes_};
  }
  std::span<const std::byte> first(std::size_t count) const noexcept {
    return {data_.get(), count * frame_nbytes_};
  }

 private:
  struct Release {
    std::size_t nbytes = 0;
    void operator()(std::byte* data) const noexcept;
  };
  using Memory = std::unique_ptr<std::byte[], Release>;
  static Memory allocate(std::size_t nbytes);

  std::size_t capacity_;
  std::size_t frame_nbytes_;
  std::size_t nbytes_;
  Memory data_;  // capacity_ frames and, behind them, one of zeros that is never written
};

}  // namespace fastdqn
