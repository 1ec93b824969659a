#pragma once
// Which slot is written next, and so which stored frame has to go for it.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "fastdqn/geometry.hpp"
#include "fastdqn/rng.hpp"

namespace fastdqn {

/// Which frames of a full memory go. The values are written to snapshots and never change.
enum class Eviction : std::uint8_t {
  kFifo = 0,    // the oldest
  kRandom = 1,  // those of a block drawn at random
};

/// The slots are divided into blocks of consecutive ones, and a block is written from its first
/// slot to its last. While there are blocks that were never written, the next of them follows.
/// After that Eviction::kFifo goes on in that order, over and over, and Eviction::kRandom goes to
/// any block but the one just written, each as likely as the others.
///
/// A block has room for `least_block` frames, so that as many of the newest are always stored. It
/// has up to `usual_block`, and there are at least kLeastBlocks of them, where the capacity
/// allows: long runs of frames keep most stacks and windows whole, and many blocks let ages differ.
///
/// Not thread-safe.
class WriteOrder {
 public:
  static constexpr std::size_t kLeastBlocks = 16;

  struct Sizes {
    std::size_t capacity;  // at least 1
    std::size_t least_block;
    std::size_t usual_block;
  };

  /// What changes, apart from `starts`, as snapshots keep it.
  struct State {
    std::uint64_t num_written = 0;   // frames, ever
    std::uint64_t rng_position = 0;  // of the generator that draws blocks
    std::uint64_t replaced = 0;      // what `starts` had for the block being written
    std::uint64_t head = 0;          // the slot that is written next
  };

  /// The generator that draws blocks is another stream of `seed` than the one that samples.
  WriteOrder(Eviction eviction, Sizes sizes, std::uint64_t seed);

  Eviction eviction() const noexcept { return eviction_; }

  /// The slot that is written next.
  Slot head() const noexcept { return static_cast<Slot>(state_.head); }

  /// How many slots hold a frame. They are the first ones.
  std::size_t num_stored() const noexcept {
    return state_.num_written < capacity_ ? static_cast<std::size_t>(state_.num_written)
                                          : capacity_;
  }

  std::size_t num_blocks() const noexcept { return starts_.size(); }

  /// The head was written: on to the next slot.
  void advance() noexcept {
    ++state_.num_written;
    if (++state_.head == block_end_) enter_next_block();
  }

  /// Ages of the stored frames, in frames written after each: for every fraction q (0 to 1) the
  /// least age that at least a share q of them does not exceed, into `ages`. Exact, in time that
  /// grows with the number of blocks. At least one frame is stored.
  void age_quantiles_into(std::span<const double> fractions, std::uint64_t* ages) const;

  const State& state() const noexcept { return state_; }

  /// For each block the number of frames that were written before its first, when it was last
  /// entered; kNever if it was not.
  std::span<const std::uint64_t> starts() const noexcept { return starts_; }

  /// Goes on from what another order with the same settings came to; `starts` has num_blocks()
  /// values. std::logic_error where no order comes to that.
  void restore(const State& state, std::span<const std::uint64_t> starts);

  /// std::logic_error names what contradicts the rules.
  void check() const;

  std::size_t nbytes() const noexcept { return starts_.size() * sizeof(starts_[0]); }

 private:
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};
  static constexpr std::uint32_t kStream = 1;  // of the seed; sampling draws from stream 0

  /// Stored frames that were written one after the other.
  struct Run {
    std::uint64_t start;  // frames that were written before the first of them
    std::uint64_t count;
  };

  std::size_t begin_of(std::size_t block) const noexcept {
    return static_cast<std::size_t>(std::uint64_t{block} * capacity_ / num_blocks());
  }
  std::size_t block_of(std::size_t slot) const noexcept {
    return static_cast<std::size_t>(((std::uint64_t{slot} + 1) * num_blocks() - 1) / capacity_);
  }
  void enter_next_block() noexcept;
  std::vector<Run> runs() const;

  Eviction eviction_;
  std::size_t capacity_;
  std::vector<std::uint64_t> starts_;
  State state_;
  std::size_t block_ = 0;  // that the head is in
  std::size_t block_end_;  // the slot behind its last
  CounterRng rng_;
};

}  // namespace fastdqn
