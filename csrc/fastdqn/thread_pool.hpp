#pragma once
// Threads that share out the parts of one computation after another, with little time in between.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace fastdqn {

/// Where one of `parts` of `count` things begins, which are as equal as can be.
inline std::size_t part_begin(std::size_t part, std::size_t parts, std::size_t count) noexcept {
  return part * count / parts;
}

/// Runs the items of a job on the caller's thread and on `threads - 1` of its own.
///
/// A job's items are cut into one share a thread, each of them neighbours. A thread begins with the
/// share of the processor that it is on, so that what the same share of the job before has left in
/// that processor's caches is found there; who has finished takes from the others' ends, so that a
/// thread that is held up holds up nobody else. Results therefore depend on neither the number of
/// threads nor their timing as long as no item's do on which thread it runs on. Idle threads look out
/// for the next job for a tenth of a millisecond, and sleep after that.
///
/// Thread-safe: jobs of several callers run one after another. In a process forked from the one
/// that made the pool, which has none of its threads, jobs run on the caller's thread.
class ThreadPool {
 public:
  static constexpr std::size_t kMaxThreads = 1024;

  /// Threads of any job, the caller's included: 1 to kMaxThreads, else std::invalid_argument.
  explicit ThreadPool(std::size_t threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  std::size_t threads() const noexcept { return threads_; }

  /// Calls body(item, thread) for each item below `items` and returns when all are done. No two calls that run at the same time have the same `thread`, which is below
  /// threads(). The body must not throw, nor call run.
  template <class Body>
  void run(std::size_t items, const Body& body) {
    run(items, [](const void* context, std::size_t item,
                  std::size_t thread) { (*static_cast<const Body*>(context))(item, thread); },
        &body);
  }

  /// Has one of the pool's own threads call task(context) beside the caller, until `join`. The task
  /// may call run, but must not throw. Without threads of its own, or in a fork, `join` calls it.
  /// False where there is a task already, which has not been joined.
  bool start(void (*task)(void* context), void* context);

  /// Returns when the task is done, taking items of its jobs until then. In a fork of the process
  /// that has begun it, at once: nobody does it there.
  void join();

  /// Has sleeping threads look out, where the caller has something to do by itself before a job.
  void alert() noexcept;

 private:
  using Function = void (*)(const void* context, std::size_t item, std::size_t thread);

  void run(std::size_t items, Function function, const void* context);
  void run_some(std::size_t first, std::size_t items, Function function, const void* context);
  void work(std::size_t thread);
  void take_items(std::uint32_t job, std::size_t thread);
  std::size_t share_of_this_processor() const noexcept;
  void look_out() noexcept;
  bool do_task(std::size_t thread);
  bool is_in_a_fork() const noexcept;

  const std::size_t threads_;
  const std::int64_t process_;
  std::mutex callers_;  // held by whoever runs a job, but in a fork: its holder may be missing there

  /// Of a job, what nobody has taken yet: the job's number << 32 | first item << 16 | item after the
  /// last, counted from the share's own first.
  struct alignas(64) Share {
    std::atomic<std::uint64_t> left{0};
  };
  static constexpr std::size_t kMaxItems = 0xffff;  // of a share

  std::vector<std::size_t> share_of_processor_;
  std::vector<Share> shares_;

  // The job: written while no item is left of the one before. Atomic, as a thread that comes late
  // may read them then; it finds no item.
  alignas(64) std::atomic<Function> function_{nullptr};
  std::atomic<const void*> context_{nullptr};
  std::atomic<std::size_t> first_{0}, items_{0};

  alignas(64) std::atomic<std::size_t> done_{0};  // items of the job that are done
  alignas(64) std::atomic<std::uint32_t> jobs_{0};  // the newest job's number; what sleepers wait on
  std::atomic<bool> closing_{false};

  enum class TaskState : std::uint8_t { kNone, kWritten, kWaits, kRuns, kDone };
  std::atomic<TaskState> task_state_{TaskState::kNone};
  void (*task_)(void* context) = nullptr;
  void* task_context_ = nullptr;
  std::atomic<std::size_t> task_thread_{0};  // whose it is; 0 as long as it is nobody's
  std::vector<std::thread> workers_;
};

}  // namespace fastdqn
