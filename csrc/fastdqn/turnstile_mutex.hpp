#pragma once

#include <mutex>
#include <shared_mutex>

namespace fastdqn {

/// A shared mutex on which a writer waits for the readers that are inside and for no later ones.
/// A std::shared_mutex may let readers in for ever, as glibc's does: two threads that sample
/// without a pause would keep a third from ever appending.
class TurnstileMutex {
 public:
  void lock() {
    const std::lock_guard turn(turnstile_);
    mutex_.lock();
  }
  void unlock() { mutex_.unlock(); }

  void lock_shared() {
    const std::lock_guard turn(turnstile_);
    mutex_.lock_shared();
  }
  void unlock_shared() { mutex_.unlock_shared(); }

 private:
  std::mutex turnstile_;  // held on the way in only
  std::shared_mutex mutex_;
};

}  // namespace fastdqn
