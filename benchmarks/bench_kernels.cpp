// Runs one kernel of the core a given number of times, for bench_kernels.py to count its
// instructions:
//
//     bench_kernels KERNEL TIMES
//
// Everything but the calls is the same for any number of times, so that the difference of two runs
// is the calls alone. Without arguments it lists the kernels.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <string>
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

/// A memory of one environment, filled beyond its capacity by games of 200 steps.
class Filled {
 public:
  Filled() {
    begin();
    for (std::int64_t step = 1; step < kCapacity + kCapacity / 2; ++step) {
      append(step % 200 == 0);
      if (step % 200 == 0) begin();
    }
  }

  ReplayMemory& memory() { return memory_; }

  void append(bool ends) {
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

  ReplayMemory memory_{{.capacity = kCapacity,
                        .frame = {{kSide, kSide}, DType::kUint8},
                        .num_envs = 1,
                        .stack = kStack,
                        .n_step = 1,
                        .discount = 0.99,
                        .padding = Padding::kZero,
                        .reward_clip = RewardClip::kSign,
                        .seed = 1}};
  std::vector<std::uint8_t> frame_ = bytes(kSide * kSide);
  const std::int64_t env_ = 0;
};

void run_append(int times) {
  Filled filled;
  for (int i = 0; i < times; ++i) filled.append(false);
}

void run_sample(StackLayout layout, int times) {
  Filled filled;
  for (int i = 0; i < times; ++i) {
    const Batch batch = filled.memory().sample(kBatch, layout);
  }
}

const std::map<std::string, std::function<void(int)>> kKernels{
    {"apply_max", run_resize},
    {"append", run_append},
    {"sample_planar", [](int times) { run_sample(StackLayout::kPlanar, times); }},
    {"sample_channels_last", [](int times) { run_sample(StackLayout::kChannelsLast, times); }},
};

}  // namespace

int main(int count, char** arguments) {
  if (count == 1) {
    for (const auto& [name, run] : kKernels) std::cout << name << '\n';
    return EXIT_SUCCESS;
  }
  const auto kernel = count == 3 ? kKernels.find(arguments[1]) : kKernels.end();
  if (kernel == kKernels.end()) {
    std::cerr << "usage: bench_kernels [KERNEL TIMES]\n";
    return EXIT_FAILURE;
  }
  kernel->second(std::stoi(arguments[2]));
  return EXIT_SUCCESS;
}
