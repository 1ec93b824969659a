#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "fastdqn/frame_stack.hpp"
#include "fastdqn/geometry.hpp"

namespace fastdqn {

/// Memory that is used again: asking the system anew for each batch costs more than filling it.
///
/// Thread-safe. A buffer keeps its pool alive, so both may outlive whoever made them.
class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  struct Release {
    std::shared_ptr<BufferPool> pool;
    std::size_t nbytes = 0;
    void operator()(std::byte* data) const noexcept;
  };
  using Buffer = std::unique_ptr<std::byte[], Release>;

  /// The pool keeps at most `kept_nbytes` of unused memory.
  explicit BufferPool(std::size_t kept_nbytes) : kept_nbytes_(kept_nbytes) {}
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  /// `nbytes` of memory with any contents, aligned to a cache line, used by nobody else until the
  /// buffer is destroyed.
  Buffer acquire(std::size_t nbytes);

 private:
  struct Unused {
    std::byte* data;
    std::size_t nbytes;
  };

  void put_back(std::byte* data, std::size_t nbytes) noexcept;

  const std::size_t kept_nbytes_;
  std::mutex mutex_;                  // guards the two below
  std::vector<Unused> unused_;        // oldest first
  std::size_t unused_nbytes_ = 0;
};

/// The caller's memory for a batch of `rows` transitions: nothing here owns anything.
struct BatchTarget {
  std::size_t rows;
  StackTarget states;
  StackTarget next_states;
  std::int64_t* actions;
  float* rewards;
  float* discounts;
  std::int64_t* indices;

  /// The same memory from a row on.
  BatchTarget from_row(std::size_t first, std::size_t count) const noexcept {
    return {count,           states.from_row(first), next_states.from_row(first), actions + first,
            rewards + first, discounts + first,      indices + first};
  }
};

/// The caller's memory for a batch of `rows` transitions whose frames stay where they are: states
/// name the slots of their frames, oldest first, and `capacity` stands for a frame of zeros.
struct SlotBatchTarget {
  std::size_t rows;
  std::int64_t* state_slots;       // [rows, stack]
  std::int64_t* next_state_slots;  // [rows, stack]
  std::int64_t* actions;
  float* rewards;
  float* discounts;
  std::int64_t* indices;
};

/// A batch that owns its memory. Its contents never change once a ReplayMemory has handed it out.
class Batch {
 public:
  /// `window`: planar states and next_states share one run of stack + 1 frames a row.
  Batch(BufferPool& pool, std::size_t rows, FrameGeometry frame, std::size_t stack,
        StackLayout layout, bool window);

  std::size_t rows() const noexcept { return target_.rows; }
  std::size_t stack() const noexcept { return stack_; }
  const FrameGeometry& frame() const noexcept { return frame_; }

  /// Where everything lies: states, next_states and the columns.
  const BatchTarget& target() const noexcept { return target_; }

 private:
  FrameGeometry frame_;
  std::size_t stack_;
  BufferPool::Buffer buffer_;
  BatchTarget target_;
};

}  // namespace fastdqn
