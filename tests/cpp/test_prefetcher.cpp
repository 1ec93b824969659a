// Batches that threads copy while their memory is written to, and how that ends.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.hpp"
#include "fastdqn/prefetcher.hpp"

namespace fastdqn {

struct PrefetcherTest {
  static void enqueue(Prefetcher& prefetcher, std::size_t rows, std::size_t parts,
                      std::function<void(std::size_t, std::size_t)> copy,
                      std::shared_ptr<void> owner = nullptr) {
    prefetcher.enqueue(rows, parts, std::move(copy), std::move(owner));
  }
};

}  // namespace fastdqn

namespace {

using namespace fastdqn;
using namespace std::chrono_literals;

constexpr std::size_t kStack = 3;
constexpr std::int64_t kSide = 64;  // 4 KiB a frame: 128 rows are shared out between threads
constexpr std::size_t kFrameNbytes = kSide * kSide;

ReplayConfig config(std::int64_t capacity = 50) {
  return {.capacity = capacity,
          .frame = {{kSide, kSide}, DType::kUint8},
          .num_envs = 1,
          .stack = kStack,
          .n_step = 1,
          .discount = 0.5,
          .padding = Padding::kZero,
          .reward_clip = RewardClip::kNone,
          .seed = 1};
}

/// A memory whose frame number n is filled with n % 251 + 1 and where action n is taken.
class Numbered {
 public:
  explicit Numbered(ReplayConfig settings) : memory(settings), frame_(kFrameNbytes) {
    fill();
    memory.begin(envs_, rows());
  }

  void step() {
    ++number_;
    fill();
    const std::vector<std::int64_t> actions{number_ - 1};
    const std::vector<float> rewards{0.0F};
    const std::vector<std::uint8_t> no{0};
    memory.append({envs_, actions, rewards, rows(), no, no, no});
  }

  void steps(int count) {
    while (count-- > 0) step();
  }

  static std::uint8_t pixel(std::int64_t number) {
    return static_cast<std::uint8_t>(number % 251 + 1);
  }

  ReplayMemory memory;

 private:
  void fill() { std::fill(frame_.begin(), frame_.end(), std::byte{pixel(number_)}); }
  FrameRows rows() const { return {frame_.data(), static_cast<std::ptrdiff_t>(kFrameNbytes)}; }

  const std::vector<std::int64_t> envs_{0};
  std::vector<std::byte> frame_;
  std::int64_t number_ = 0;
};

/// The caller's memory for a batch.
struct Arrays {
  explicit Arrays(std::size_t count)
      : rows(count), states(count * kStack * kFrameNbytes), next_states(states.size()),
        actions(count), indices(count), rewards(count), discounts(count) {}

  BatchTarget target() {
    const FrameGeometry frame = config().frame;
    return {rows,
            contiguous_target(states.data(), frame, kStack, StackLayout::kChannelsLast),
            contiguous_target(next_states.data(), frame, kStack, StackLayout::kChannelsLast),
            actions.data(), rewards.data(), discounts.data(), indices.data()};
  }

  /// Every pixel is that of the frame that the row's action says.
  void check() const {
    for (std::size_t row = 0; row < rows; ++row) {
      for (std::size_t k = 0; k < kStack; ++k) {
        check_frame(states, row, k, actions[row] - static_cast<std::int64_t>(kStack - 1 - k));
        check_frame(next_states, row, k, actions[row] - static_cast<std::int64_t>(kStack - 2 - k));
      }
    }
  }

  bool operator==(const Arrays&) const = default;

  std::size_t rows;
  std::vector<std::byte> states, next_states;
  std::vector<std::int64_t> actions, indices;
  std::vector<float> rewards, discounts;

 private:
  void check_frame(const std::vector<std::byte>& stacks, std::size_t row, std::size_t k,
                   std::int64_t number) const {
    const std::byte expected{number < 0 ? std::uint8_t{0} : Numbered::pixel(number)};
    const std::byte* first = stacks.data() + row * kStack * kFrameNbytes + k;
    for (std::size_t i = 0; i < kFrameNbytes; ++i) CHECK(first[i * kStack] == expected);
  }
};

void batches_are_those_of_sampling(std::size_t threads, std::size_t rows) {
  Numbered direct(config());
  Numbered ahead(config());
  direct.steps(80);
  ahead.steps(80);
  Prefetcher prefetcher(ahead.memory, threads);
  std::vector<Arrays> slots(3, Arrays(rows));
  Arrays expected(rows);
  for (int round = 0; round < 10; ++round) {
    for (Arrays& slot : slots) prefetcher.submit(slot.target());
    CHECK(prefetcher.outstanding() == slots.size());
    for (Arrays& slot : slots) {
      prefetcher.wait();
      direct.memory.sample_into(expected.target());
      CHECK(slot == expected);
      slot.check();
    }
    direct.step();
    ahead.step();
  }
}

/// A writer that never asks whether anybody reads, beside one who submits and waits.
void rows_are_never_torn() {
  Numbered numbered(config(20));  // the ring turns round while batches are copied
  numbered.steps(40);
  Prefetcher prefetcher(numbered.memory, 2);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    while (!stop) numbered.step();
  });
  std::vector<Arrays> slots(2, Arrays(140));
  prefetcher.submit(slots[0].target());
  for (std::size_t round = 1; round < 30; ++round) {
    prefetcher.submit(slots[round % 2].target());
    prefetcher.wait();
    slots[(round - 1) % 2].check();
  }
  prefetcher.wait();
  stop = true;
  writer.join();
  numbered.memory.check_invariants();
}

/// Writing goes on once the batch is copied, whether or not anybody waits for it.
void appending_waits_for_the_copy_alone() {
  Numbered numbered(config());
  numbered.steps(80);
  Prefetcher prefetcher(numbered.memory, 1);
  std::atomic<bool> go{false};
  PrefetcherTest::enqueue(prefetcher, 1, 1, [&](std::size_t, std::size_t) {
    while (!go) std::this_thread::sleep_for(1ms);
  });
  Arrays arrays(16);
  prefetcher.submit(arrays.target());  // behind work that hangs
  std::atomic<bool> appended{false};
  std::thread writer([&] {
    numbered.step();
    appended = true;
  });
  std::this_thread::sleep_for(30ms);
  CHECK(!appended);
  go = true;
  writer.join();
  CHECK(prefetcher.outstanding() == 2);
  prefetcher.wait();
  prefetcher.wait();
  arrays.check();
}

void what_copying_throws_surfaces_at_its_wait() {
  Numbered numbered(config());
  numbered.steps(80);
  Prefetcher prefetcher(numbered.memory, 2);
  Arrays before(4);
  Arrays after(4);
  prefetcher.submit(before.target());
  PrefetcherTest::enqueue(prefetcher, 8, 4, [](std::size_t first, std::size_t) {
    if (first == 4) throw std::runtime_error("damaged frame");
  });
  prefetcher.submit(after.target());
  prefetcher.wait();
  CHECK_THROWS(prefetcher.wait(), std::runtime_error, "damaged frame");
  prefetcher.wait();
  before.check();
  after.check();
  CHECK_THROWS(prefetcher.wait(), std::logic_error, "no batch was submitted");
}

void every_row_is_copied_once() {
  Numbered numbered(config());
  Prefetcher prefetcher(numbered.memory, 3);
  for (const std::size_t rows : {1U, 2U, 7U, 100U}) {
    for (std::size_t parts = 1; parts <= std::min<std::size_t>(rows, 5); ++parts) {
      std::vector<std::atomic<int>> copied(rows);
      PrefetcherTest::enqueue(prefetcher, rows, parts, [&](std::size_t first, std::size_t count) {
        CHECK(count > 0);
        for (std::size_t row = first; row < first + count; ++row) ++copied[row];
      });
      prefetcher.wait();
      for (const std::atomic<int>& times : copied) CHECK(times == 1);
    }
  }
}

void closing_gives_up_what_was_not_begun() {
  Numbered numbered(config());
  numbered.steps(80);
  std::weak_ptr<int> watched;
  std::atomic<int> begun{0};
  {
    Prefetcher prefetcher(numbered.memory, 1);
    auto owner = std::make_shared<int>(1);
    watched = owner;
    for (int k = 0; k < 30; ++k) {
      PrefetcherTest::enqueue(
          prefetcher, 1, 1,
          [&](std::size_t, std::size_t) {
            ++begun;
            std::this_thread::sleep_for(30ms);
          },
          owner);
    }
    Arrays gone(16);
    prefetcher.submit(gone.target());
    while (begun == 0) std::this_thread::yield();
  }
  CHECK(begun < 30);
  CHECK(watched.expired());
  numbered.step();  // nothing holds the memory any more
}

/// With the only thread hung up, batches that come behind are there all the same.
void who_waits_copies_what_no_thread_has_begun() {
  Numbered numbered(config());
  numbered.steps(80);
  Prefetcher prefetcher(numbered.memory, 1);
  std::atomic<bool> go{false};
  std::atomic<int> copies{0};
  const std::thread::id here = std::this_thread::get_id();
  PrefetcherTest::enqueue(prefetcher, 4, 4, [&](std::size_t, std::size_t) {
    ++copies;
    if (std::this_thread::get_id() == here) {
      go = copies == 4;  // three parts are this thread's: the other is held up in its first
    } else {
      while (!go) std::this_thread::sleep_for(1ms);
    }
  });
  while (copies == 0) std::this_thread::yield();
  prefetcher.wait();
  CHECK(copies == 4);
}

/// Nobody has to wake for a batch of few bytes, not even for the memory to be free again.
void small_batches_are_copied_at_once() {
  Numbered numbered(config());
  numbered.steps(80);
  Prefetcher prefetcher(numbered.memory, 1);
  std::atomic<bool> go{false};
  std::atomic<bool> hangs{false};
  PrefetcherTest::enqueue(prefetcher, 1, 1, [&](std::size_t, std::size_t) {
    hangs = true;
    while (!go) std::this_thread::sleep_for(1ms);
  });
  while (!hangs) std::this_thread::yield();
  Arrays arrays(1);
  prefetcher.submit(arrays.target());
  arrays.check();
  numbered.step();
  go = true;
  prefetcher.wait();
  prefetcher.wait();
}

void closing_waits_for_callers_that_copy() {
  Numbered numbered(config());
  Prefetcher prefetcher(numbered.memory, 1);
  std::atomic<int> copies{0};
  std::atomic<bool> closed{false};
  PrefetcherTest::enqueue(prefetcher, 2, 2, [&](std::size_t, std::size_t) {
    ++copies;
    while (copies < 2) std::this_thread::yield();
    std::this_thread::sleep_for(20ms);
    CHECK(!closed);
  });
  std::thread caller([&] {
    try {
      prefetcher.wait();
    } catch (const std::logic_error&) {
    }
  });
  while (copies < 2) std::this_thread::yield();
  prefetcher.close();
  closed = true;
  caller.join();
}

void owners_are_kept_until_their_batch_was_waited_for() {
  Numbered numbered(config());
  numbered.steps(80);
  Prefetcher prefetcher(numbered.memory, 1);
  auto arrays = std::make_shared<Arrays>(8);
  const std::weak_ptr<Arrays> watched = arrays;
  const BatchTarget target = arrays->target();
  prefetcher.submit(target, std::move(arrays));
  CHECK(!watched.expired());
  prefetcher.wait();
  CHECK(watched.expired());
}

void misuse_is_refused() {
  Numbered numbered(config());
  CHECK_THROWS(Prefetcher(numbered.memory, 0), std::invalid_argument, "threads is 0");
  CHECK_THROWS(Prefetcher(numbered.memory, 65), std::invalid_argument, "expected 1 to 64");
  Prefetcher prefetcher(numbered.memory, 1);
  Arrays arrays(4);
  CHECK_THROWS(prefetcher.submit(arrays.target()), std::invalid_argument, "can be drawn");
  numbered.step();
  BatchTarget overlapping = arrays.target();
  overlapping.next_states = overlapping.states;
  CHECK_THROWS(prefetcher.submit(overlapping), std::invalid_argument, "share memory");
  prefetcher.close();
  CHECK_THROWS(prefetcher.submit(arrays.target()), std::logic_error, "closed");
  CHECK_THROWS(prefetcher.wait(), std::logic_error, "closed");
  prefetcher.close();
  numbered.step();
}

}  // namespace

int main() {
  for (const std::size_t threads : {1U, 2U, 4U}) {
    batches_are_those_of_sampling(threads, 8);
    batches_are_those_of_sampling(threads, 140);
  }
  rows_are_never_torn();
  appending_waits_for_the_copy_alone();
  what_copying_throws_surfaces_at_its_wait();
  every_row_is_copied_once();
  closing_gives_up_what_was_not_begun();
  who_waits_copies_what_no_thread_has_begun();
  small_batches_are_copied_at_once();
  closing_waits_for_callers_that_copy();
  owners_are_kept_until_their_batch_was_waited_for();
  misuse_is_refused();
}
