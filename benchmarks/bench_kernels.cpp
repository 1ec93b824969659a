// Runs one kernel of the core a given number of times, for bench_kernels.py to count its
// instructions:
//
//     bench_kernels KERNEL TIMES
//
// Everything but the calls is the same for any number of times, so that the difference of two runs
// is the calls alone. Without arguments it lists the kernels, each with
// what one call is.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "fastdqn/preprocess.hpp"
#include "fastdqn/replay_memory.hpp"

namespace {

using namespace fastdqn;

constexpr std::size_t kScreenHeight = 210;
constexpr std::size_t kScreenWidth = 160;
constexpr std::size_t kSide = 84;
constexpr std::int64_t kCapacity = 2000;  // frames: small, so that filling it is quick
constexpr std::size_t kBatch = 32;
constexpr std::size_t kStack = 4;

/// Bytes that are never all the same; the contents decide no kernel's path but the palette's.
std::vector<std::uint8_t> bytes(std::size_t count) {
  std::vector<std::uint8_t> values(count);
  std::uint32_t state = 1;
  for (std::uint8_t& value : values) {
    state = state * 1664525U + 1013904223U;
    value = static_cast<std::uint8_t>(state >> 24);
  }
  return values;
}

struct Screens {
  std::vector<std::uint8_t> a = bytes(kScreenHeight * kScreenWidth);
  std::vector<std::uint8_t> b = bytes(kScreenHeight * kScreenWidth + 1);
  std::vector<std::uint8_t> out = bytes(kScreenHeight * kScreenWidth);
  AreaResize resize{{kScreenHeight, kScreenWidth, kSide, kSide}};
};

void run_resize(int times) {
  Screens screens;
  for (int i = 0; i < times; ++i) {
    screens.resize.apply_max(screens.a.data(), screens.b.data() + 1, screens.out.data());
  }
}

/// A memory of one environment, filled beyond its capacity by games of 200 steps. From step to step
/// two blocks of 8 by 8 pixels change, about what moves in a game.
class Filled {
 public:
  explicit Filled(Storage storage = Storage::kRaw) : memory_(config(storage)) {
    begin();
    for (std::int64_t step = 1; step < kCapacity + kCapacity / 2; ++step) {
      append(step % 200 == 0);
      if (step % 200 == 0) begin();
    }
  }

  ReplayMemory& memory() { return memory_; }

  void append(bool ends) {
    for (const std::size_t start : {place_, kSide * kSide - 8 * kSide - place_}) {
      for (std::size_t row = 0; row < 8; ++row) {
        for (std::size_t column = 0; column < 8; ++column) {
          frame_[start + row * kSide + column] ^= 0x55;
        }
      }
    }
    place_ = (place_ + 89) % (kSide * kSide / 2);
    const std::uint8_t terminated = ends;
    const std::uint8_t no = 0;
    const float reward = 1.0F;
    const FrameRows frame{reinterpret_cast<const std::byte*>(frame_.data()), 0};
    memory_.append({.envs = {&env_, 1},
                    .actions = {&env_, 1},
                    .rewards = {&reward, 1},
                    .frames = frame,
                    .terminated = {&terminated, 1},
                    .truncated = {&no, 1},
                    .life_lost = {&no, 1}});
  }

 private:
  void begin() {
    memory_.begin({&env_, 1}, {reinterpret_cast<const std::byte*>(frame_.data()), 0});
  }

  static ReplayConfig config(Storage storage) {
    return {.capacity = kCapacity,
            .frame = {{kSide, kSide}, DType::kUint8},
            .num_envs = 1,
            .stack = kStack,
            .n_step = 1,
            .discount = 0.99,
            .padding = Padding::kZero,
            .reward_clip = RewardClip::kSign,
            .storage = storage,
            .eviction = Eviction::kFifo,
            .seed = 1};
  }

  ReplayMemory memory_;
  std::vector<std::uint8_t> frame_ = bytes(kSide * kSide);
  const std::int64_t env_ = 0;
  std::size_t place_ = 0;  // where the first block changes next
};

void run_append(Storage storage, int times) {
  Filled filled(storage);
  for (int i = 0; i < times; ++i) filled.append(false);
}

void run_sample(StackLayout layout, int times) {
  Filled filled;
  for (int i = 0; i < times; ++i) {
    const Batch batch = filled.memory().sample(kBatch, layout);
  }
}

/// The indices of one batch, spread over what can be drawn.
std::vector<std::int64_t> spread_indices(const ReplayMemory& memory) {
  const std::vector<std::int64_t> valid = memory.valid_indices();
  std::vector<std::int64_t> indices(kBatch);
  for (std::size_t i = 0; i < kBatch; ++i) indices[i] = valid[i * valid.size() / kBatch];
  return indices;
}

void run_gather(Storage storage, StackLayout layout, int times) {
  Filled filled(storage);
  const std::vector<std::int64_t> indices = spread_indices(filled.memory());
  for (int i = 0; i < times; ++i) {
    const Batch batch = filled.memory().gather(indices, layout);
  }
}

struct Kernel {
  const char* name;
  const char* call;
  std::function<void(int)> run;
};

const std::vector<Kernel> kKernels{
    {"apply_max", "the maximum of two screens, averaged to 84 x 84", run_resize},
    {"append", "one step of one environment into a full memory",
     [](int times) { run_append(Storage::kRaw, times); }},
    {"append_compressed", "the same into a compressed one",
     [](int times) { run_append(Storage::kCompressed, times); }},
    {"gather_planar", "32 given transitions, stacks of 4",
     [](int times) { run_gather(Storage::kRaw, StackLayout::kPlanar, times); }},
    {"gather_planar_compressed", "the same from a compressed memory",
     [](int times) { run_gather(Storage::kCompressed, StackLayout::kPlanar, times); }},
    {"gather_channels_last", "the same, channels last, as the trainer reads them",
     [](int times) { run_gather(Storage::kRaw, StackLayout::kChannelsLast, times); }},
    {"gather_channels_last_compressed", "the same from a compressed memory",
     [](int times) { run_gather(Storage::kCompressed, StackLayout::kChannelsLast, times); }},
    {"sample_planar", "the same planar, and drawing them",
     [](int times) { run_sample(StackLayout::kPlanar, times); }},
    {"sample_channels_last", "the same channels last, and drawing them",
     [](int times) { run_sample(StackLayout::kChannelsLast, times); }},
};

}  // namespace

int main(int count, char** arguments) {
  if (count == 1) {
    for (const Kernel& kernel : kKernels) std::cout << kernel.name << ": " << kernel.call << '\n';
    return EXIT_SUCCESS;
  }
  const auto kernel = std::find_if(kKernels.begin(), kKernels.end(), [&](const Kernel& candidate) {
    return count == 3 && std::string_view(arguments[1]) == candidate.name;
  });
  if (kernel == kKernels.end()) {
    std::cerr << "usage: bench_kernels [KERNEL TIMES]\n";
    return EXIT_FAILURE;
  }
  kernel->run(std::stoi(arguments[2]));
  return EXIT_SUCCESS;
}
