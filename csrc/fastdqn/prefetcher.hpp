#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "fastdqn/replay_memory.hpp"

namespace fastdqn {

/// Threads that copy batches out of a memory while the caller does something else.
///
/// What a batch holds is decided when it is submitted: its transitions are drawn there and then, on
/// the caller's thread, and the memory lets nobody overwrite them until they are copied. So batches
/// do not depend on the number of threads or on who comes first. Large batches are shared out
/// between the threads by rows, small ones copied at once. Threads without work sleep, and who waits
/// for a batch that none of them has begun copies it himself: on a machine whose processors are
/// busy, nothing waits for a thread to wake.
///
/// Any call from any thread, except that the memory has to outlive the prefetcher and that what one
/// thread submits while another does is in the order in which it got there.
class Prefetcher {
 public:
  static constexpr std::size_t kMaxThreads = 64;

  /// Throws std::invalid_argument for a number of threads that is not 1 to kMaxThreads,
  /// std::system_error where the system has no thread to give.
  Prefetcher(ReplayMemory& memory, std::size_t threads);

  /// Ends as close does.
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  const ReplayMemory& memory() const noexcept { return memory_; }

  /// Draws a batch into `target`, which nobody else may touch until it was waited for. `owner` is
  /// kept until then: whatever keeps that memory alive. It is let go by the thread that waits or
  /// closes. Throws as ReplayMemory::sample_into does, std::logic_error once closed.
  void submit(const BatchTarget& target, std::shared_ptr<void> owner = nullptr);

  /// Returns when the oldest batch not yet waited for is there. Throws what copying it threw;
  /// std::logic_error where no batch was submitted, or once closed.
  void wait();

  /// Batches submitted and not yet waited for.
  std::size_t outstanding() const;

  /// Gives up batches whose copying was not begun, waits for the others, ends the threads and lets
  /// go of all owners: nothing is written to any target from here on.
  void close();

 private:
  friend struct PrefetcherTest;  // submits work that fails

  using Copy = std::function<void(std::size_t first, std::size_t count)>;

  /// A batch, copied in `parts` parts. A part is taken, copied and then done.
  struct Job {
    std::size_t rows;
    std::size_t parts;
    Copy copy;  // holds the drawn transitions
    std::shared_ptr<void> owner;
    std::size_t taken = 0;
    std::size_t done = 0;
    bool finished = false;  // every part is done and the memory may be written to
    std::exception_ptr error;
  };

  void enqueue(std::size_t rows, std::size_t parts, Copy copy, std::shared_ptr<void> owner,
               bool at_once = false);
  void copy_part(Job& job, std::unique_lock<std::mutex>& lock);
  void work();

  ReplayMemory& memory_;
  mutable std::mutex mutex_;  // guards all of the below but the threads
  std::condition_variable work_comes_;
  std::condition_variable job_finished_;
  std::deque<std::unique_ptr<Job>> jobs_;  // not yet waited for, oldest first
  std::size_t first_open_ = 0;             // in jobs_: the first with parts that nobody took yet
  std::size_t copying_ = 0;                // parts being copied now
  bool closing_ = false;

  std::mutex threads_mutex_;  // guards the threads; never taken inside mutex_
  std::vector<std::thread> threads_;
  const std::size_t num_threads_;
};

}  // namespace fastdqn
