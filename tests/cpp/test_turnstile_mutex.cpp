// A waiting writer is not overtaken by readers that come later.

#include <atomic>
#include <chrono>
#include <mutex>
#include <shared_mutex>
#include <thread>

#include "check.hpp"
#include "fastdqn/turnstile_mutex.hpp"

namespace {

using fastdqn::TurnstileMutex;
using namespace std::chrono_literals;

/// One reader inside, a writer that comes next and a second reader last: whether the writer was
/// let in before the second reader.
bool writer_came_first() {
  TurnstileMutex mutex;
  std::atomic<int> turn{0};
  int writer_turn = -1;
  int reader_turn = -1;
  std::atomic<bool> writer_comes{false};
  mutex.lock_shared();
  std::thread writer([&] {
    writer_comes = true;
    const std::lock_guard lock(mutex);
    writer_turn = turn++;
  });
  while (!writer_comes) std::this_thread::yield();
  std::this_thread::sleep_for(20ms);
  std::thread reader([&] {
    const std::shared_lock lock(mutex);
    reader_turn = turn++;
  });
  std::this_thread::sleep_for(20ms);
  mutex.unlock_shared();
  writer.join();
  reader.join();
  return writer_turn < reader_turn;
}

void readers_do_not_overtake() {
  // A busy machine may hold the writer up before it gets to the mutex, but not every time.
  bool first = false;
  for (int attempt = 0; attempt < 20 && !first; ++attempt) first = writer_came_first();
  CHECK(first);
}

void readers_share() {
  TurnstileMutex mutex;
  const std::shared_lock lock(mutex);
  std::thread([&] { const std::shared_lock other(mutex); }).join();
}

void what_one_thread_shares_another_may_let_go() {
  TurnstileMutex mutex;
  std::shared_lock lock(mutex);
  std::atomic<bool> written{false};
  std::thread writer([&] {
    const std::lock_guard exclusive(mutex);
    written = true;
  });
  std::this_thread::sleep_for(5ms);
  std::thread([held = std::move(lock), &written] { CHECK(!written); }).join();
  writer.join();
  CHECK(written);
}

}  // namespace

int main() {
  readers_do_not_overtake();
  readers_share();
  what_one_thread_shares_another_may_let_go();
}
