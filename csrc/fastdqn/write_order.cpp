#include "fastdqn/write_order.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace fastdqn {

namespace {

std::size_t count_blocks(const WriteOrder::Sizes& sizes) {
  const std::size_t block =
      std::max({std::size_t{1}, sizes.least_block,
                std::min(sizes.usual_block, sizes.capacity / WriteOrder::kLeastBlocks)});
  return std::max<std::size_t>(1, sizes.capacity / block);
}

}  // namespace

WriteOrder::WriteOrder(Eviction eviction, Sizes sizes, std::uint64_t seed)
    : eviction_(eviction),
      capacity_(sizes.capacity),
      starts_(count_blocks(sizes), kNever),
      block_end_(begin_of(1)),
      rng_(seed, 0, kStream) {
  starts_[0] = 0;
  state_.replaced = kNever;
}

void WriteOrder::enter_next_block() noexcept {
  const std::size_t blocks = num_blocks();
  if (eviction_ == Eviction::kFifo || state_.num_written < capacity_ || blocks == 1) {
    block_ = block_ + 1 == blocks ? 0 : block_ + 1;
  } else {
    const std::size_t other = rng_.below(static_cast<std::uint32_t>(blocks - 1));
    block_ = other < block_ ? other : other + 1;
    state_.rng_position = rng_.position();
  }
  state_.head = begin_of(block_);
  block_end_ = begin_of(block_ + 1);
  state_.replaced = starts_[block_];
  starts_[block_] = state_.num_written;
}

/// The stored frames, in the order in which they were written.
std::vector<WriteOrder::Run> WriteOrder::runs() const {
  std::vector<Run> runs;
  runs.reserve(num_blocks() + 1);
  for (std::size_t block = 0; block < num_blocks(); ++block) {
    const std::uint64_t size = begin_of(block + 1) - begin_of(block);
    if (block != block_) {
      if (starts_[block] != kNever) runs.push_back({starts_[block], size});
      continue;
    }
    const std::uint64_t written = state_.head - begin_of(block);
    if (written > 0) runs.push_back({starts_[block], written});
    if (state_.replaced != kNever) runs.push_back({state_.replaced + written, size - written});
  }
  std::sort(runs.begin(), runs.end(),
            [](const Run& a, const Run& b) { return a.start < b.start; });
  return runs;
}

void WriteOrder::age_quantiles_into(std::span<const double> fractions,
                                    std::uint64_t* ages) const {
  const std::vector<Run> oldest_first = runs();
  const std::uint64_t stored = num_stored();
  for (std::size_t i = 0; i < fractions.size(); ++i) {
    const double share = std::ceil(fractions[i] * static_cast<double>(stored));
    std::uint64_t younger =  // frames, up to and with the one that is asked for
        std::clamp<std::uint64_t>(static_cast<std::uint64_t>(share), 1, stored);
    auto run = oldest_first.rbegin();
    for (; younger > run->count; ++run) younger -= run->count;
    ages[i] = state_.num_written - run->start - run->count + younger - 1;
  }
}

void WriteOrder::restore(const State& state, std::span<const std::uint64_t> starts) {
  if (state.head >= capacity_) throw std::logic_error("the slot to be written does not exist");
  state_ = state;
  std::copy(starts.begin(), starts.end(), starts_.begin());
  block_ = block_of(static_cast<std::size_t>(state.head));
  block_end_ = begin_of(block_ + 1);
  rng_ = CounterRng(rng_.seed(), state.rng_position, kStream);
  check();
}

void WriteOrder::check() const {
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw std::logic_error(what);
  };
  require(state_.num_written <= std::uint64_t{1} << 63, "more was written than can be counted");
  const bool in_turn = eviction_ == Eviction::kFifo || state_.num_written < capacity_;
  require(!in_turn || state_.head == state_.num_written % capacity_,
          "the head of the ring does not follow the frames stored");
  std::uint64_t stored = 0;
  std::uint64_t end = 0;  // of the run before
  for (const Run& run : runs()) {
    require(run.start >= end && run.start <= state_.num_written &&
                run.count <= state_.num_written - run.start,
            "the blocks of frames were not written one after the other");
    end = run.start + run.count;
    stored += run.count;
  }
  require(stored == num_stored() && end == state_.num_written,
          "the blocks do not hold what was written last");
  require(starts_[block_] == state_.num_written - (state_.head - begin_of(block_)),
          "the block being written was not entered when it says");
}

}  // namespace fastdqn
