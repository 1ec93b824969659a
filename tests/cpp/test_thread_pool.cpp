#include "fastdqn/thread_pool.hpp"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.hpp"

using namespace fastdqn;

namespace {

/// Every item once, and never two at a time on one thread.
void check_jobs(ThreadPool& pool, std::size_t jobs) {
  std::vector<std::atomic<int>> busy(pool.threads());
  for (std::size_t job = 0; job < jobs; ++job) {
    const std::size_t items = job % 7;
    std::vector<int> seen(items);  // each item's own: a race here is one that tsan finds
    pool.run(items, [&](std::size_t item, std::size_t thread) {
      CHECK(busy[thread].fetch_add(1) == 0);
      seen[item] += static_cast<int>(job + item);
      busy[thread].fetch_sub(1);
    });
    for (std::size_t item = 0; item < items; ++item) {
      CHECK(seen[item] == static_cast<int>(job + item));
    }
  }
}

void test_several_callers_take_turns() {
  ThreadPool pool(3);
  std::vector<std::thread> callers;
  std::atomic<int> inside{0};
  std::atomic<int> total{0};
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      for (int job = 0; job < 300; ++job) {
        pool.run(4, [&](std::size_t, std::size_t thread) {
          CHECK(thread < 3);
          CHECK(inside.fetch_add(1) < 3);
          inside.fetch_sub(1);
          total.fetch_add(1);
        });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(total == 3 * 300 * 4);
}

void test_more_items_than_a_share_can_count() {
  for (const std::size_t threads : {1U, 2U, 3U}) {
    ThreadPool pool(threads);
    std::vector<int> seen(200'001);
    pool.run(seen.size(), [&](std::size_t item, std::size_t) { seen[item] += 1; });
    for (const int times : seen) CHECK(times == 1);
  }
}

void test_a_thread_that_is_held_up_holds_up_no_item() {
  ThreadPool pool(2);
  std::atomic<std::size_t> others{0};
  pool.run(8, [&](std::size_t item, std::size_t) {
    if (item == 0) {
      while (others < 7) std::this_thread::yield();
    } else {
      others.fetch_add(1);
    }
  });
  CHECK(others == 7);
}

double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void test_idle_threads_sleep() {
  ThreadPool pool(4);
  check_jobs(pool, 10);
  const double before = processor_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  CHECK(processor_seconds() - before < 0.1);
  check_jobs(pool, 10);  // and wake up
}

void test_a_fork_computes_alone() {
  auto pool = std::make_unique<ThreadPool>(3);
  check_jobs(*pool, 10);
  const pid_t child = fork();
  if (child == 0) {
    std::size_t items = 0;
    pool->run(5, [&](std::size_t, std::size_t thread) { items += thread == 0; });
    pool.reset();
    _exit(items == 5 ? 0 : 1);
  }
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  check_jobs(*pool, 10);
}

/// Jobs of a task, and of its starter meanwhile; and the starter helps when it has nothing else to do.
void test_a_task_runs_beside_its_starter(std::size_t threads) {
  struct Task {
    ThreadPool& pool;
    std::size_t jobs;
    bool done = false;
    static void run(void* task) {
      auto& self = *static_cast<Task*>(task);
      check_jobs(self.pool, self.jobs);
      self.done = true;
    }
  };
  ThreadPool pool(threads);
  ThreadPool own(1);
  for (std::size_t round = 0; round < 60; ++round) {
    Task task{pool, round};
    Task other{pool, 1};
    CHECK(pool.start(&Task::run, &task));
    CHECK(!pool.start(&Task::run, &other));
    if (round % 3 == 1) check_jobs(own, 5);
    if (round % 3 == 2) {
      std::atomic<int> total{0};
      pool.run(9, [&](std::size_t, std::size_t) { total.fetch_add(1); });
      CHECK(total == 9);
    }
    pool.join();
    CHECK(task.done && !other.done);
  }
}

void test_whoever_waits_for_a_task_takes_its_items() {
  ThreadPool pool(2);
  static std::atomic<int> at_once{0};
  at_once = 0;
  CHECK(pool.start(
      [](void* context) {
        static_cast<ThreadPool*>(context)->run(2, [](std::size_t, std::size_t) {
          at_once.fetch_add(1);
          while (at_once < 2) std::this_thread::yield();  // by two threads, or never
        });
      },
      &pool));
  pool.join();
  CHECK(at_once == 2);
}

void test_a_fork_has_no_task_of_its_parents() {
  ThreadPool pool(2);
  static std::atomic<bool> goes_on{false};
  CHECK(pool.start([](void*) { while (!goes_on) std::this_thread::yield(); }, nullptr));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const pid_t child = fork();
  if (child == 0) {
    pool.join();
    _exit(0);
  }
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  goes_on = true;
  pool.join();
}

}  // namespace

int main() {
  for (const std::size_t threads : {1U, 2U, 5U}) {
    ThreadPool pool(threads);
    CHECK(pool.threads() == threads);
    check_jobs(pool, 2000);
  }
  for (int i = 0; i < 20; ++i) ThreadPool(3);  // ended before they have begun
  test_several_callers_take_turns();
  test_a_thread_that_is_held_up_holds_up_no_item();
  test_more_items_than_a_share_can_count();
  test_idle_threads_sleep();
  test_a_fork_computes_alone();
  for (const std::size_t threads : {1U, 2U, 4U}) test_a_task_runs_beside_its_starter(threads);
  test_whoever_waits_for_a_task_takes_its_items();
  test_a_fork_has_no_task_of_its_parents();
  CHECK_THROWS(ThreadPool(0), std::invalid_argument, "threads is 0");
  CHECK_THROWS(ThreadPool(1025), std::invalid_argument, "threads is 1025");
  return 0;
}
