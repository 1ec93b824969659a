#include "fastdqn/prefetcher.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace fastdqn {

namespace {

// What is copied in the time that waking a thread takes, and in several times that time.
constexpr std::size_t kSmallNbytes = std::size_t{64} << 10;
constexpr std::size_t kPartNbytes = std::size_t{512} << 10;

std::size_t checked_threads(std::size_t threads) {
  if (threads >= 1 && threads <= Prefetcher::kMaxThreads) return threads;
  throw std::invalid_argument("threads is " + std::to_string(threads) + "; expected 1 to " +
                              std::to_string(Prefetcher::kMaxThreads));
}

}  // namespace

Prefetcher::Prefetcher(ReplayMemory& memory, std::size_t threads)
    : memory_(memory), num_threads_(checked_threads(threads)) {
  try {
    for (std::size_t k = 0; k < threads; ++k) threads_.emplace_back([this] { work(); });
  } catch (...) {
    close();
    throw;
  }
}

Prefetcher::~Prefetcher() { close(); }

void Prefetcher::submit(const BatchTarget& target, std::shared_ptr<void> owner) {
  const ReplayConfig& config = memory_.config();
  const std::size_t nbytes =
      target.rows * 2 * static_cast<std::size_t>(config.stack) * config.frame.nbytes();
  const std::size_t most = std::max<std::size_t>(std::min(num_threads_, target.rows), 1);
  const std::size_t parts = std::clamp<std::size_t>(nbytes / kPartNbytes, 1, most);
  const auto drawn = std::make_shared<const ReplayMemory::Drawn>(memory_.draw(target));
  enqueue(
      target.rows, parts,
      [drawn](std::size_t first, std::size_t count) { drawn->gather(first, count); },
      std::move(owner), nbytes <= kSmallNbytes);
}

void Prefetcher::enqueue(std::size_t rows, std::size_t parts, Copy copy,
                         std::shared_ptr<void> owner, bool at_once) {
  auto job = std::make_unique<Job>(Job{.rows = rows,
                                       .parts = parts,
                                       .copy = std::move(copy),
                                       .owner = std::move(owner),
                                       .error = nullptr});
  std::unique_lock lock(mutex_);
  if (closing_) throw std::logic_error("the prefetcher is closed");
  jobs_.push_back(std::move(job));
  // Not while others wait to be copied before it: their turn comes first.
  if (at_once && first_open_ + 1 == jobs_.size()) return copy_part(*jobs_.back(), lock);
  lock.unlock();
  if (parts == 1) {
    work_comes_.notify_one();
  } else {
    work_comes_.notify_all();
  }
}

void Prefetcher::wait() {
  std::unique_ptr<Job> job;
  {
    std::unique_lock lock(mutex_);
    while (!closing_ && !jobs_.empty() && first_open_ == 0) copy_part(*jobs_.front(), lock);
    job_finished_.wait(lock, [this] {
      return closing_ || jobs_.empty() || jobs_.front()->finished;
    });
    if (closing_) throw std::logic_error("the prefetcher is closed");
    if (jobs_.empty()) throw std::logic_error("no batch was submitted that could be waited for");
    job = std::move(jobs_.front());
    jobs_.pop_front();
    --first_open_;
  }
  if (job->error) std::rethrow_exception(job->error);
}

std::size_t Prefetcher::outstanding() const {
  const std::lock_guard lock(mutex_);
  return jobs_.size();
}

void Prefetcher::close() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  work_comes_.notify_all();
  job_finished_.notify_all();
  {
    const std::lock_guard lock(threads_mutex_);
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  std::deque<std::unique_ptr<Job>> given_up;  // destroyed behind the lock: owners may take others
  std::unique_lock lock(mutex_);
  job_finished_.wait(lock, [this] { return copying_ == 0; });  // callers copy too
  given_up.swap(jobs_);
}

/// Takes and copies a part of the first job that has any left, which is `job`. The lock is held but
/// while copying. With the last part the job is finished.
void Prefetcher::copy_part(Job& job, std::unique_lock<std::mutex>& lock) {
  const std::size_t part = job.taken++;
  if (job.taken == job.parts) ++first_open_;
  ++copying_;
  lock.unlock();
  const std::size_t first = part * job.rows / job.parts;
  const std::size_t end = (part + 1) * job.rows / job.parts;
  std::exception_ptr error;
  try {
    job.copy(first, end - first);
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  if (error && !job.error) job.error = error;
  if (++job.done == job.parts) {
    // The memory may be written to before anybody waits for the batch.
    Copy copied = std::exchange(job.copy, nullptr);
    lock.unlock();
    copied = nullptr;
    lock.lock();
    job.finished = true;
    job_finished_.notify_all();
  }
  if (--copying_ == 0 && closing_) job_finished_.notify_all();
}

void Prefetcher::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_comes_.wait(lock, [this] { return closing_ || first_open_ < jobs_.size(); });
    if (closing_) return;
    copy_part(*jobs_[first_open_], lock);
  }
}

}  // namespace fastdqn
