#include "fastdqn/thread_pool.hpp"

#include <unistd.h>

#include <chrono>
#include <new>
#include <stdexcept>
#include <string>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fastdqn {

namespace {

// Between the jobs of an update lie up to some tens of microseconds of Python, beyond it milliseconds.
// A thread that has slept may be woken on its caller's core, where it waits for that.
constexpr std::chrono::microseconds kLookOut{100};

void pause() noexcept {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

/// Waits until `value` is not `old`: awake for kLookOut, then asleep.
void wait_for_change(const std::atomic<std::uint32_t>& value, std::uint32_t old) noexcept {
  const auto end = std::chrono::steady_clock::now() + kLookOut;
  do {
    for (int i = 0; i < 32; ++i) {
      if (value.load(std::memory_order_acquire) != old) return;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(std::size_t threads) : threads_(threads), process_(getpid()) {
  if (threads < 1 || threads > kMaxThreads) {
    throw std::invalid_argument("threads is " + std::to_string(threads) + "; expected 1 to " +
                                std::to_string(kMaxThreads));
  }
  workers_.reserve(threads - 1);
  for (std::size_t thread = 1; thread < threads; ++thread) {
    workers_.emplace_back([this, thread] { work(thread); });
  }
}

ThreadPool::~ThreadPool() {
  if (is_in_a_fork()) {
    // They are not there to be joined, and a std::thread that was not must not be destroyed.
    new std::vector<std::thread>(std::move(workers_));
    return;
  }
  closing_.store(true, std::memory_order_relaxed);
  jobs_.fetch_add(1, std::memory_order_release);
  jobs_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

bool ThreadPool::is_in_a_fork() const noexcept { return getpid() != process_; }

void ThreadPool::run(std::size_t items, Function function, const void* context) {
  if (items == 0) return;
  if (is_in_a_fork()) {
    for (std::size_t item = 0; item < items; ++item) function(context, item, 0);
    return;
  }
  const std::lock_guard lock(callers_);
  if (items == 1 || threads_ == 1) {
    for (std::size_t item = 0; item < items; ++item) function(context, item, 0);
    return;
  }
  const auto count = static_cast<std::uint32_t>(items);
  function_.store(function, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  items_.store(count, std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  const std::uint32_t job = jobs_.load(std::memory_order_relaxed) + 1;
  left_.store(std::uint64_t{job} << 32 | count, std::memory_order_release);
  jobs_.store(job, std::memory_order_release);
  jobs_.notify_all();
  take_items(job, 0);
  for (std::uint32_t done; (done = done_.load(std::memory_order_acquire)) != count;) {
    wait_for_change(done_, done);
  }
}

void ThreadPool::alert() noexcept {
  if (threads_ == 1 || is_in_a_fork()) return;
  const std::lock_guard lock(callers_);
  look_out();
}

void ThreadPool::look_out() noexcept {
  jobs_.fetch_add(1, std::memory_order_release);  // a job of no items
  jobs_.notify_all();
}

bool ThreadPool::start(void (*task)(void* context), void* context) {
  TaskState state = TaskState::kNone;
  if (!task_state_.compare_exchange_strong(state, TaskState::kWritten, std::memory_order_acquire,
                                           std::memory_order_relaxed)) {
    return false;
  }
  task_ = task;
  task_context_ = context;
  task_thread_.store(0, std::memory_order_relaxed);
  task_state_.store(TaskState::kWaits, std::memory_order_release);
  alert();
  return true;
}

bool ThreadPool::do_task(std::size_t thread) {
  TaskState state = TaskState::kWaits;
  if (!task_state_.compare_exchange_strong(state, TaskState::kRuns, std::memory_order_acq_rel,
                                           std::memory_order_relaxed)) {
    return false;
  }
  task_thread_.store(thread, std::memory_order_relaxed);
  task_(task_context_);
  task_state_.store(TaskState::kDone, std::memory_order_release);
  return true;
}

void ThreadPool::join() {
  // Where nobody has begun, the caller is as good as any; and so it is where there is nobody else.
  if (!do_task(0) && !is_in_a_fork()) {
    std::uint32_t job = jobs_.load(std::memory_order_acquire);
    while (task_state_.load(std::memory_order_acquire) != TaskState::kDone) {
      // In place of the thread that does the task, which takes items as a caller does.
      if (const std::size_t thread = task_thread_.load(std::memory_order_relaxed); thread != 0) {
        take_items(job, thread);
      }
      wait_for_change(jobs_, job);
      job = jobs_.load(std::memory_order_acquire);
    }
  }
  task_state_.store(TaskState::kNone, std::memory_order_release);
}

void ThreadPool::work(std::size_t thread) {
  std::uint32_t job = 0;
  while (true) {
    wait_for_change(jobs_, job);
    job = jobs_.load(std::memory_order_acquire);
    if (closing_.load(std::memory_order_relaxed)) return;
    if (do_task(thread)) {
      const std::lock_guard lock(callers_);
      look_out();  // for whoever waits for the task
    } else {
      take_items(job, thread);
    }
  }
}

void ThreadPool::take_items(std::uint32_t job, std::size_t thread) {
  std::uint64_t left = left_.load(std::memory_order_acquire);
  while (left >> 32 == job && static_cast<std::uint32_t>(left) != 0) {
    const Function function = function_.load(std::memory_order_relaxed);
    const void* context = context_.load(std::memory_order_relaxed);
    const std::uint32_t items = items_.load(std::memory_order_relaxed);
    // Succeeds only while the job has that item left, so that what was read above is the job's.
    if (!left_.compare_exchange_weak(left, left - 1, std::memory_order_acq_rel,
                                     std::memory_order_acquire)) {
      continue;
    }
    function(context, items - static_cast<std::uint32_t>(left), thread);
    if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == items) done_.notify_all();
    left = left_.load(std::memory_order_acquire);
  }
}

}  // namespace fastdqn
