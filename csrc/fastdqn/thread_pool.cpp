#include "fastdqn/thread_pool.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
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
template <class Number>
void wait_for_change(const std::atomic<Number>& value, Number old) noexcept {
  const auto end = std::chrono::steady_clock::now() + kLookOut;
  do {
    for (int i = 0; i < 32; ++i) {
      if (value.load(std::memory_order_acquire) != old) return;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  value.wait(old, std::memory_order_acquire);
}

/// The share of each processor: those that this thread may run on divide them up in their order, in
/// which cores that have a cache in common are neighbours.
std::vector<std::size_t> shares_of_processors(std::size_t shares) {
  std::vector<std::size_t> result;
#if defined(__linux__)
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return result;
  const auto count = static_cast<std::size_t>(CPU_COUNT(&allowed));
  std::size_t before = 0;
  for (std::size_t processor = 0; processor < CPU_SETSIZE; ++processor) {
    result.push_back(part_begin(before, count, shares));
    before += CPU_ISSET(processor, &allowed) != 0 && before + 1 < count;
  }
#endif
  return result;
}

}  // namespace

ThreadPool::ThreadPool(std::size_t threads) : threads_(threads), process_(getpid()) {
  if (threads < 1 || threads > kMaxThreads) {
    throw std::invalid_argument("threads is " + std::to_string(threads) + "; expected 1 to " +
                                std::to_string(kMaxThreads));
  }
  share_of_processor_ = shares_of_processors(threads);
  shares_ = std::vector<Share>(threads);
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
  for (std::size_t first = 0; first < items; first += threads_ * kMaxItems) {
    run_some(first, std::min(items - first, threads_ * kMaxItems), function, context);
  }
}

void ThreadPool::run_some(std::size_t first, std::size_t items, Function function,
                          const void* context) {
  function_.store(function, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  first_.store(first, std::memory_order_relaxed);
  items_.store(items, std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  const std::uint32_t job = jobs_.load(std::memory_order_relaxed) + 1;
  for (std::size_t share = 0; share < threads_; ++share) {
    const std::size_t count =
        part_begin(share + 1, threads_, items) - part_begin(share, threads_, items);
    shares_[share].left.store(std::uint64_t{job} << 32 | count, std::memory_order_release);
  }
  jobs_.store(job, std::memory_order_release);
  jobs_.notify_all();
  take_items(job, 0);
  for (std::size_t done; (done = done_.load(std::memory_order_acquire)) != items;) {
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

std::size_t ThreadPool::share_of_this_processor() const noexcept {
#if defined(__linux__)
  const int processor = sched_getcpu();
  if (processor >= 0 && static_cast<std::size_t>(processor) < share_of_processor_.size()) {
    return share_of_processor_[static_cast<std::size_t>(processor)];
  }
#endif
  return 0;
}

void ThreadPool::take_items(std::uint32_t job, std::size_t thread) {
  std::size_t taken = 0, items = 0;
  const std::size_t home = share_of_this_processor();
  for (std::size_t k = 0; k < threads_; ++k) {
    const std::size_t index = home + k < threads_ ? home + k : home + k - threads_;
    std::atomic<std::uint64_t>& share = shares_[index].left;
    std::uint64_t left = share.load(std::memory_order_acquire);
    while (left >> 32 == job) {
      const std::size_t begin = left >> 16 & kMaxItems, end = left & kMaxItems;
      if (begin == end) break;
      const Function function = function_.load(std::memory_order_relaxed);
      const void* context = context_.load(std::memory_order_relaxed);
      const std::size_t first = first_.load(std::memory_order_relaxed);
      items = items_.load(std::memory_order_relaxed);
      // Succeeds only while the job has that item left, so that what was read above is the job's.
      if (!share.compare_exchange_weak(left, k == 0 ? left + (1 << 16) : left - 1,
                                       std::memory_order_acq_rel, std::memory_order_acquire)) {
        continue;
      }
      function(context, first + part_begin(index, threads_, items) + (k == 0 ? begin : end - 1),
               thread);
      ++taken;
      left = share.load(std::memory_order_acquire);
    }
  }
  // What it has taken has kept the job, and so `items`, as they are.
  if (taken != 0 && done_.fetch_add(taken, std::memory_order_acq_rel) + taken == items) {
    done_.notify_all();
  }
}

}  // namespace fastdqn
