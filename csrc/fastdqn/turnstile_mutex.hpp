#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>

namespace fastdqn {

/// A shared mutex on which a writer waits for the readers that are inside and for no later ones.
/// A std::shared_mutex may let readers in for ever, as glibc's does: two threads that sample
/// without a pause would keep a third from ever appending.
///
/// The shared side belongs to no thread: what one locked another may unlock, so that work which was
/// drawn here can be finished there. A std::shared_mutex forbids that.
class TurnstileMutex {
 public:
  void lock() {
    turnstile_.lock();
    std::unique_lock lock(count_mutex_);
    no_readers_.wait(lock, [this] { return readers_ == 0; });
  }
  void unlock() { turnstile_.unlock(); }

  void lock_shared() {
    const std::lock_guard turn(turnstile_);
    const std::lock_guard lock(count_mutex_);
    ++readers_;
  }
  void unlock_shared() {
    const std::lock_guard lock(count_mutex_);
    if (--readers_ == 0) no_readers_.notify_one();
  }

 private:
  std::mutex turnstile_;  // held by a reader on its way in only, by a writer until it leaves
  std::mutex count_mutex_;
  std::condition_variable no_readers_;
  std::size_t readers_ = 0;  // guarded by count_mutex_
};

}  // namespace fastdqn
