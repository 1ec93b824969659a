#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace fastdqn {

/// A counter-based generator: Philox-4x32 with ten rounds (Salmon et al., "Parallel random
/// numbers: as easy as 1, 2, 3", SC 2011). Its whole state is a seed, a stream of that seed (each
/// independent of the others) and how many words were drawn, so that it is saved and restored
/// exactly. Not thread-safe.
class CounterRng {
 public:
  using Block = std::array<std::uint32_t, 4>;

  explicit CounterRng(std::uint64_t seed, std::uint64_t position = 0,
                      std::uint32_t stream = 0) noexcept
      : seed_(seed), position_(position), stream_(stream), block_(philox(counter(), seed)) {}

  std::uint64_t seed() const noexcept { return seed_; }

  /// How many 32-bit words were drawn since the seed.
  std::uint64_t position() const noexcept { return position_; }

  std::uint32_t next() noexcept {
    const std::uint32_t word = block_[position_ % 4];
    if (++position_ % 4 == 0) block_ = philox(counter(), seed_);
    return word;
  }

  /// Uniform over 0 to bound - 1, exactly: multiply and shift, and the few products that would
  /// make some results likelier are drawn again (Lemire, "Fast random integer generation in an
  /// interval", 2019). `bound` is at least 1.
  std::uint32_t below(std::uint32_t bound) noexcept {
    std::uint64_t product = std::uint64_t{next()} * bound;
    if (static_cast<std::uint32_t>(product) < bound) {
      const std::uint32_t surplus = (0U - bound) % bound;  // 2^32 mod bound
      while (static_cast<std::uint32_t>(product) < surplus) {
        product = std::uint64_t{next()} * bound;
      }
    }
    return static_cast<std::uint32_t>(product >> 32);
  }

  /// The function under the generator: `counter` encrypted under `key`.
  static Block philox(Block counter, std::uint64_t key) noexcept {
    auto key_0 = static_cast<std::uint32_t>(key);
    auto key_1 = static_cast<std::uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t product_0 = std::uint64_t{0xD2511F53} * counter[0];
      const std::uint64_t product_1 = std::uint64_t{0xCD9E8D57} * counter[2];
      counter = {static_cast<std::uint32_t>(product_1 >> 32) ^ counter[1] ^ key_0,
                 static_cast<std::uint32_t>(product_1),
                 static_cast<std::uint32_t>(product_0 >> 32) ^ counter[3] ^ key_1,
                 static_cast<std::uint32_t>(product_0)};
      key_0 += 0x9E3779B9;
      key_1 += 0xBB67AE85;
    }
    return counter;
  }

 private:
  Block counter() const noexcept {
    const std::uint64_t number = position_ / 4;
    return {static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(number >> 32), stream_,
            0};
  }

  std::uint64_t seed_;
  std::uint64_t position_;
  std::uint32_t stream_;
  Block block_;  // the words from position_ rounded down to a multiple of 4
};

}  // namespace fastdqn
