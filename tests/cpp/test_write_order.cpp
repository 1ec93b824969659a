// The order in which slots are written, against a list of what each slot holds.

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "fastdqn/write_order.hpp"

namespace {

using namespace fastdqn;

/// Writes numbers into slots as an order says, and answers from the list of them.
class Writer {
 public:
  Writer(Eviction eviction, WriteOrder::Sizes sizes, std::uint64_t seed = 3)
      : order(eviction, sizes, seed), held_(sizes.capacity, kNothing) {}

  void write(int times = 1) {
    for (int i = 0; i < times; ++i) {
      CHECK(order.head() < held_.size());
      held_[order.head()] = written_++;
      order.advance();
      order.check();
    }
  }

  std::vector<std::uint64_t> stored() const {
    std::vector<std::uint64_t> numbers;
    std::copy_if(held_.begin(), held_.end(), std::back_inserter(numbers),
                 [](std::uint64_t number) { return number != kNothing; });
    std::sort(numbers.begin(), numbers.end());
    return numbers;
  }

  void agrees() const {
    const auto numbers = stored();
    CHECK(order.num_stored() == numbers.size());
    for (std::size_t slot = 0; slot < held_.size(); ++slot) {
      CHECK((held_[slot] != kNothing) == (slot < numbers.size()));
    }
    if (numbers.empty()) return;
    std::vector<double> fractions;
    std::vector<std::uint64_t> expected;
    for (double q = 0; q <= 1; q += 0.0625) {
      const double share = std::ceil(q * static_cast<double>(numbers.size()));
      const auto rank = std::max<std::size_t>(1, static_cast<std::size_t>(share));
      fractions.push_back(q);
      expected.push_back(written_ - 1 - numbers[numbers.size() - rank]);
    }
    std::vector<std::uint64_t> ages(fractions.size());
    order.age_quantiles_into(fractions, ages.data());
    CHECK(ages == expected);
  }

  WriteOrder order;

 private:
  static constexpr std::uint64_t kNothing = ~std::uint64_t{0};
  std::vector<std::uint64_t> held_;
  std::uint64_t written_ = 0;
};

const std::vector<WriteOrder::Sizes> kSizes{
    {1, 1, 1},  {2, 1, 1},     {7, 10, 3},   {8, 4, 4},       {23, 4, 9},
    {61, 4, 3}, {100, 6, 100}, {333, 1, 20}, {1'000, 30, 40},
};

void fifo_is_a_ring() {
  for (const WriteOrder::Sizes& sizes : kSizes) {
    Writer writer(Eviction::kFifo, sizes);
    for (std::size_t number = 0; number < 3 * sizes.capacity + 5; ++number) {
      CHECK(writer.order.head() == number % sizes.capacity);
      writer.write();
      writer.agrees();
    }
  }
}

void random_keeps_the_newest_and_fills_block_by_block() {
  for (const WriteOrder::Sizes& sizes : kSizes) {
    Writer writer(Eviction::kRandom, sizes);
    const std::size_t kept = std::min(sizes.capacity, sizes.least_block);
    bool in_order = true;
    for (std::size_t number = 0; number < 5 * sizes.capacity + 7; ++number) {
      in_order = in_order && writer.order.head() == number % sizes.capacity;
      CHECK(in_order || number >= sizes.capacity);
      writer.write();
      writer.agrees();
      const auto stored = writer.stored();
      CHECK(stored[stored.size() - std::min(stored.size(), kept)] + kept >= number + 1);
    }
    // With two blocks or one there is no choice.
    CHECK(in_order == (writer.order.num_blocks() <= 2));
  }
}

void every_other_block_is_as_likely() {
  WriteOrder order(Eviction::kRandom, {.capacity = 16, .least_block = 1, .usual_block = 1}, 11);
  CHECK(order.num_blocks() == 16);
  for (int i = 0; i < 15; ++i) order.advance();
  std::map<std::uint32_t, int> steps;
  for (int i = 0; i < 15'000; ++i) {
    const Slot before = order.head();
    order.advance();
    ++steps[(order.head() - before + 16) % 16];
  }
  CHECK(steps.size() == 15 && !steps.contains(0));
  for (const auto& [step, count] : steps) CHECK(count > 850 && count < 1'150);  // 5 sigma
}

/// A share of about exp(-age / capacity) outlives an age: a third is older than the ring's oldest.
void ages_survive_geometrically() {
  Writer writer(Eviction::kRandom,
                {.capacity = 20'000, .least_block = 10, .usual_block = 10}, 5);
  CHECK(writer.order.num_blocks() == 2'000);
  for (int i = 0; i < 200'000; ++i) writer.order.advance();
  const std::vector<double> fractions{1 - std::exp(-0.5), 1 - std::exp(-1.0), 1 - std::exp(-2.0)};
  std::vector<std::uint64_t> ages(3);
  writer.order.age_quantiles_into(fractions, ages.data());
  // Of 2,000 blocks the share that is older has a deviation of at most 0.011; 4 of those.
  CHECK(std::abs(std::exp(-static_cast<double>(ages[0]) / 20'000) - std::exp(-0.5)) < 0.045);
  CHECK(std::abs(std::exp(-static_cast<double>(ages[1]) / 20'000) - std::exp(-1.0)) < 0.045);
  CHECK(std::abs(std::exp(-static_cast<double>(ages[2]) / 20'000) - std::exp(-2.0)) < 0.045);
}

void a_restored_order_goes_on() {
  for (const Eviction eviction : {Eviction::kFifo, Eviction::kRandom}) {
    for (const WriteOrder::Sizes& sizes : kSizes) {
      WriteOrder order(eviction, sizes, 8);
      for (std::size_t number = 0; number < 4 * sizes.capacity; ++number) {
        if (number % 5 == 0) {
          WriteOrder restored(eviction, sizes, 8);
          restored.restore(order.state(), order.starts());
          WriteOrder original = order;
          for (int i = 0; i < 50; ++i) {
            CHECK(restored.head() == original.head());
            restored.advance();
            original.advance();
          }
          CHECK(std::ranges::equal(restored.starts(), original.starts()));
        }
        order.advance();
      }
    }
  }
}

void what_contradicts_itself_is_refused() {
  const auto refuse = [](std::size_t written, auto change, const char* part) {
    for (const Eviction eviction : {Eviction::kFifo, Eviction::kRandom}) {
      WriteOrder order(eviction, {.capacity = 61, .least_block = 4, .usual_block = 4}, 8);
      for (std::size_t i = 0; i < written; ++i) order.advance();
      WriteOrder::State state = order.state();
      std::vector<std::uint64_t> starts(order.starts().begin(), order.starts().end());
      change(state, starts);
      CHECK_THROWS(order.restore(state, starts), std::logic_error, part);
    }
  };
  refuse(200, [](auto& state, auto&) { state.head = 61; }, "does not exist");
  refuse(30, [](auto& state, auto&) { state.head = 31; }, "does not follow");
  refuse(200, [](auto& state, auto&) { state.num_written = ~std::uint64_t{0}; }, "be counted");
  refuse(200, [](auto&, auto& starts) { starts[3] = ~std::uint64_t{0} - 1; }, "one after the");
  refuse(200, [](auto&, auto& starts) { starts[3] = starts[4]; }, "one after the other");
  refuse(200, [](auto&, auto& starts) { starts[3] = ~std::uint64_t{0}; }, "the blocks ");
  refuse(30, [](auto&, auto& starts) { starts.back() = 60; }, "one after the other");
  refuse(30, [](auto& state, auto&) { state.replaced = 0; }, "one after the other");
}

}  // namespace

int main() {
  fifo_is_a_ring();
  random_keeps_the_newest_and_fills_block_by_block();
  every_other_block_is_as_likely();
  ages_survive_geometrically();
  a_restored_order_goes_on();
  what_contradicts_itself_is_refused();
}
