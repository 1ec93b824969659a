// The generator against the published answers of Philox-4x32-10, and its bounded integers.

#include "check.hpp"
#include "fastdqn/rng.hpp"

#include <array>
#include <vector>

namespace {

using fastdqn::CounterRng;
using Block = CounterRng::Block;

/// The known answers that its authors published with the function.
void known_answers() {
  CHECK((CounterRng::philox({0, 0, 0, 0}, 0) ==
         Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint32_t kOnes = 0xffffffff;
  CHECK((CounterRng::philox({kOnes, kOnes, kOnes, kOnes}, 0xffffffffffffffff) ==
         Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  CHECK((CounterRng::philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                            0x299f31d0a4093822) ==
         Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

void continues_from_any_position() {
  CounterRng whole(17);
  for (std::uint64_t drawn = 0; drawn < 40; ++drawn) {
    CounterRng resumed(17, drawn);
    CHECK(whole.position() == drawn);
    CHECK(resumed.next() == whole.next());
    CHECK(resumed.next() == CounterRng(17, drawn + 1).next());
  }
}

void seeds_differ() {
  for (std::uint64_t seed = 1; seed < 100; ++seed) {
    CHECK(CounterRng(seed).next() != CounterRng(0).next());
    CHECK(CounterRng(seed << 32).next() != CounterRng(0).next());
  }
}

/// With a bound of 3 * 2^30 a quarter of all products are drawn again; without that, every third
/// result would come up twice as often as the two next to it.
void bounded_integers_are_unbiased() {
  constexpr std::uint32_t kBound = 3U << 30;
  constexpr int kDraws = 90'000;
  std::array<int, 3> counts{};
  CounterRng rng(5);
  for (int i = 0; i < kDraws; ++i) {
    const std::uint32_t value = rng.below(kBound);
    CHECK(value < kBound);
    ++counts[value % 3];
  }
  CHECK(rng.position() > kDraws + kDraws / 4);  // a third again on average
  for (const int count : counts) CHECK(count > 29'300 && count < 30'700);  // 5 sigma
}

void covers_small_ranges() {
  CounterRng rng(9);
  std::array<int, 7> counts{};
  for (int i = 0; i < 7'000; ++i) ++counts[rng.below(7)];
  for (const int count : counts) CHECK(count > 850 && count < 1'150);  // 5 sigma
  for (int i = 0; i < 100; ++i) CHECK(rng.below(1) == 0);
}

}  // namespace

int main() {
  known_answers();
  continues_from_any_position();
  seeds_differ();
  bounded_integers_are_unbiased();
  covers_small_ranges();
}
