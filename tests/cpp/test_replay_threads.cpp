// Appending while others sample, act, look and save: never a torn row, whatever meets whatever.
// Meant for the thread sanitizer, which sees a race even where nothing comes of it.

#include <atomic>
#include <cstring>
#include <thread>

#include "fastdqn/snapshot.hpp"
#include "replay_support.hpp"
#include "snapshot_support.hpp"

namespace {

using namespace fastdqn;

constexpr int kSteps = 3'000;
constexpr std::size_t kFrame = 64;

/// Frames are filled with one number, so that a torn one shows.
void append_while_others_read(Storage storage, Eviction eviction) {
  ReplayConfig config = small_config();
  config.storage = storage;
  config.eviction = eviction;
  config.capacity = 200;
  config.num_envs = 2;
  config.frame = {{8, 8}, DType::kUint8};
  ReplayMemory memory(config);
  std::atomic<bool> done = false;

  const auto both = std::vector<std::int64_t>{0, 1};
  std::vector<std::byte> frames(2 * kFrame);
  const auto rows = [&](int step) {
    std::fill_n(frames.begin(), kFrame, static_cast<std::byte>(step % 200 + 1));
    std::fill_n(frames.begin() + kFrame, kFrame, static_cast<std::byte>(step % 50 + 200));
    return FrameRows{frames.data(), kFrame};
  };
  memory.begin(both, rows(0));

  std::thread writer([&] {
    const std::vector<std::int64_t> actions{1, 2};
    const std::vector<float> rewards{0.5F, -0.5F};
    const std::vector<std::uint8_t> no{0, 0};
    for (int step = 1; step <= kSteps; ++step) {
      const std::vector<std::uint8_t> ends{step % 17 == 0, step % 17 == 0};
      memory.append({both, actions, rewards, rows(step), no, ends, no});
      if (ends[0] != 0) memory.begin(both, rows(step));
    }
    done = true;
  });
  const auto whole = [](const StackTarget& stacks, std::size_t frames_of_all) {
    for (std::size_t k = 0; k < frames_of_all; ++k) {
      const std::byte* frame = stacks.data + k * kFrame;
      CHECK(std::memcmp(frame, frame + 1, kFrame - 1) == 0);
    }
  };
  std::vector<std::thread> readers;
  for (int reader = 0; reader < 3; ++reader) {
    readers.emplace_back([&] {
      while (!done) {
        if (memory.num_drawable() == 0) continue;
        const Batch batch = memory.sample(8, StackLayout::kPlanar);
        for (std::size_t row = 0; row < 8; ++row) {
          const BatchTarget& target = batch.target();
          whole(target.states.from_row(row), batch.stack());
          whole(target.next_states.from_row(row), batch.stack());
        }
      }
    });
  }
  readers.emplace_back([&] {
    const TemporaryFolder folder;
    std::string before;
    while (!done) {
      (void)memory.save_in_chunks(folder / "memory", folder / "", before);
      memory.check_invariants();
      CHECK(ReplayMemory::load(folder / "memory", {}, folder / "")->num_frames() <= 200);
      before = folder / "memory";
    }
  });
  writer.join();
  for (std::thread& reader : readers) reader.join();
  memory.check_invariants();
}

}  // namespace

int main() {
  for (const Storage storage : {Storage::kRaw, Storage::kCompressed}) {
    for (const Eviction eviction : {Eviction::kFifo, Eviction::kRandom}) {
      append_while_others_read(storage, eviction);
    }
  }
}
