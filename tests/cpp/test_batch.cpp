// Batches and the pool that their memory comes from.

#include "check.hpp"
#include "fastdqn/batch.hpp"

#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

namespace {

using namespace fastdqn;

void memory_is_used_again_once_it_is_free() {
  const auto pool = std::make_shared<BufferPool>(1000);
  auto first = pool->acquire(400);
  const auto second = pool->acquire(400);
  CHECK(first.get() != second.get());
  const std::byte* data = first.get();
  CHECK(reinterpret_cast<std::uintptr_t>(data) % 64 == 0);
  first.reset();
  const auto other_size = pool->acquire(300);
  CHECK(other_size.get() != data);
  const auto third = pool->acquire(400);
  CHECK(third.get() == data);
}

/// Under the address sanitizer this also shows that nothing leaks or is freed twice.
void the_pool_keeps_no_more_than_it_may() {
  const auto pool = std::make_shared<BufferPool>(1000);
  auto small = pool->acquire(400);
  auto large = pool->acquire(1001);
  auto medium = pool->acquire(700);
  const std::byte* small_data = small.get();
  const std::byte* medium_data = medium.get();
  small.reset();
  large.reset();  // more than all that may be kept: it goes, and nothing has to make room
  small = pool->acquire(400);
  CHECK(small.get() == small_data);
  small.reset();
  medium.reset();  // and the older one of 400 has to go
  CHECK(pool->acquire(700).get() == medium_data);
  CHECK(pool->acquire(0).get() != nullptr);
}

void buffers_outlive_whoever_held_the_pool() {
  auto pool = std::make_shared<BufferPool>(1000);
  const auto buffer = pool->acquire(100);
  pool.reset();
  std::memset(buffer.get(), 1, 100);
}

void parts_of_a_batch_are_apart() {
  const FrameGeometry frame{{3, 2}, DType::kInt16};
  const auto pool = std::make_shared<BufferPool>(1 << 20);
  for (const bool window : {false, true}) {
    for (const std::size_t rows : {0U, 1U, 5U}) {
      Batch made(*pool, rows, frame, 4, StackLayout::kPlanar, window);
      const Batch batch = std::move(made);
      const BatchTarget& target = batch.target();
      CHECK(is_window(target.states, target.next_states, rows, 4, frame) == window);
      CHECK(batch.rows() == rows);
      if (rows == 0) continue;
      // Every part filled with its own value, written last first, and all still there.
      std::memset(target.discounts, 6, rows * sizeof(float));
      std::memset(target.rewards, 5, rows * sizeof(float));
      std::memset(target.indices, 4, rows * sizeof(std::int64_t));
      std::memset(target.actions, 3, rows * sizeof(std::int64_t));
      const std::size_t row_nbytes = 4 * frame.nbytes();
      for (std::size_t row = rows; row-- > 0;) {
        std::memset(target.next_states.row(row), 2, row_nbytes);
        std::memset(target.states.row(row), 1, row_nbytes);
      }
      for (std::size_t row = 0; row < rows; ++row) {
        CHECK(target.states.row(row)[row_nbytes - 1] == std::byte{1});
        CHECK(target.next_states.row(row)[row_nbytes - 1] == std::byte{2});
        CHECK(target.next_states.row(row)[0] == (window ? std::byte{1} : std::byte{2}));
        CHECK(target.actions[row] == 0x0303030303030303);
        CHECK(target.indices[row] == 0x0404040404040404);
        CHECK(std::memcmp(&target.rewards[row], "\5\5\5\5", 4) == 0);
        CHECK(std::memcmp(&target.discounts[row], "\6\6\6\6", 4) == 0);
      }
    }
  }
}

}  // namespace

int main() {
  memory_is_used_again_once_it_is_free();
  the_pool_keeps_no_more_than_it_may();
  buffers_outlive_whoever_held_the_pool();
  parts_of_a_batch_are_apart();
}
