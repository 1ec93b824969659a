#include "fastdqn/batch.hpp"

#include <algorithm>
#include <new>
#include <utility>

namespace fastdqn {

namespace {

constexpr std::align_val_t kAlignment{64};

constexpr std::size_t aligned(std::size_t nbytes) noexcept {
  constexpr auto alignment = static_cast<std::size_t>(kAlignment);
  return (nbytes + alignment - 1) / alignment * alignment;
}

void free_buffer(std::byte* data) noexcept { ::operator delete[](data, kAlignment); }

}  // namespace

BufferPool::~BufferPool() {
  for (const Unused& buffer : unused_) free_buffer(buffer.data);
}

BufferPool::Buffer BufferPool::acquire(std::size_t nbytes) {
  Release release{shared_from_this(), nbytes};
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(unused_.rbegin(), unused_.rend(), [&](const Unused& buffer) {
      return buffer.nbytes == nbytes;
    });
    if (found != unused_.rend()) {
      std::byte* data = found->data;
      unused_.erase(std::next(found).base());
      unused_nbytes_ -= nbytes;
      return Buffer(data, std::move(release));
    }
  }
  return Buffer(static_cast<std::byte*>(::operator new[](nbytes, kAlignment)),
                std::move(release));
}

void BufferPool::put_back(std::byte* data, std::size_t nbytes) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (nbytes <= kept_nbytes_) {
      unused_.push_back({data, nbytes});
      unused_nbytes_ += nbytes;
      data = nullptr;
    }
    while (unused_nbytes_ > kept_nbytes_) {
      free_buffer(unused_.front().data);
      unused_nbytes_ -= unused_.front().nbytes;
      unused_.erase(unused_.begin());
    }
  } catch (...) {  // no memory for the list: give the buffer back to the system
  }
  if (data != nullptr) free_buffer(data);
}

void BufferPool::Release::operator()(std::byte* data) const noexcept {
  pool->put_back(data, nbytes);
}

Batch::Batch(BufferPool& pool, std::size_t rows, FrameGeometry frame, std::size_t stack,
             StackLayout layout, bool window)
    : frame_(std::move(frame)), stack_(stack) {
  const std::size_t frame_nbytes = frame_.nbytes();
  const std::size_t frames_a_row = window ? stack + 1 : stack;
  const std::size_t states_nbytes = aligned(rows * frames_a_row * frame_nbytes);
  const std::size_t integers_nbytes = aligned(rows * sizeof(std::int64_t));
  const std::size_t floats_nbytes = aligned(rows * sizeof(float));
  buffer_ = pool.acquire((window ? 1 : 2) * states_nbytes + 2 * integers_nbytes +
                         2 * floats_nbytes);

  std::byte* data = buffer_.get();
  const auto take = [&](std::size_t nbytes) { return std::exchange(data, data + nbytes); };
  target_.rows = rows;
  target_.states = contiguous_target(take(states_nbytes), frame_, frames_a_row, layout);
  target_.next_states = target_.states;
  target_.next_states.data =
      window ? target_.states.data + target_.states.frame_stride : take(states_nbytes);
  target_.actions = reinterpret_cast<std::int64_t*>(take(integers_nbytes));
  target_.indices = reinterpret_cast<std::int64_t*>(take(integers_nbytes));
  target_.rewards = reinterpret_cast<float*>(take(floats_nbytes));
  target_.discounts = reinterpret_cast<float*>(take(floats_nbytes));
}

}  // namespace fastdqn
