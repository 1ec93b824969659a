// Damaged and forged snapshots: each is refused, or is a memory that keeps its own rules.
//
// With clang, -DFASTDQN_LIBFUZZER=ON makes a libFuzzer target of it. Elsewhere it brings a small
// fuzzer of its own, guided by the same coverage: an input that reaches code which none before it
// reached is mutated further. Half of the mutants get right checksums, so that what lies behind
// these is reached, and some get parts of others; the rest must be refused, whatever was changed.
//
//   fuzz_snapshot [number of inputs [seed [files...]]]

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <set>
#include <vector>

#include "fastdqn/snapshot.hpp"
#include "replay_support.hpp"
#include "snapshot_support.hpp"

namespace {

using namespace fastdqn;
using Bytes = std::string;

// What a test may take; a header that claims more is refused by who knows what to expect.
constexpr std::int64_t kLargestCapacity = 4096;
constexpr unsigned kSecondsAtMost = 30;
constexpr long kResidentKilobytesAtMost = 1 << 20;  // of the whole process, the sanitizers included

const TemporaryFolder& chunks_folder() {
  static const TemporaryFolder folder;
  return folder;
}

/// Uses a memory in every way that follows what was loaded.
void use(ReplayMemory& memory) {
  memory.check_invariants();
  const ReplayConfig& config = memory.config();
  const std::vector<std::byte> frame(config.frame.nbytes());
  const FrameRows rows{frame.data(), static_cast<std::ptrdiff_t>(frame.size())};
  const std::vector<float> rewards{1.0F};
  const std::vector<std::int64_t> actions{1};
  const std::vector<std::uint8_t> no{0};
  for (std::int64_t env = 0; env < std::min<std::int64_t>(config.num_envs, 3); ++env) {
    const std::vector<std::int64_t> envs{env};
    try {
      memory.append({envs, actions, rewards, rows, no, no, no});
    } catch (const std::invalid_argument&) {  // no episode is open there
      memory.begin(envs, rows);
    }
  }
  if (memory.num_drawable() > 0) (void)memory.sample(4, StackLayout::kPlanar);
  memory.check_invariants();
}

/// Whether the bytes are a snapshot.
bool accepted(const char* data, std::size_t size) {
  const File file(memfd_create("snapshot", MFD_CLOEXEC));
  CHECK(file.descriptor() >= 0);
  const std::string path = "/proc/self/fd/" + std::to_string(file.descriptor());
  write_all(file.descriptor(), data, size, path);
  alarm(kSecondsAtMost);
  try {
    const ReplayConfig config = ReplayMemory::config_of(path);
    if (config.capacity > kLargestCapacity || config.num_envs > kLargestCapacity ||
        config.frame.nbytes() > std::size_t{1} << 16) {
      return false;
    }
    use(*ReplayMemory::load(path, {}, chunks_folder() / ""));
  } catch (const SnapshotError&) {
    return false;
  } catch (const OutOfMemory&) {
    return false;
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  (void)accepted(reinterpret_cast<const char*>(data), size);
  return 0;
}

#ifndef FASTDQN_LIBFUZZER

namespace {

std::array<bool, 1 << 16> reached;
bool reached_more = false;

}  // namespace

/// Called by instrumented code at the beginning of each of its blocks.
extern "C" void __sanitizer_cov_trace_pc() {
  const auto place = reinterpret_cast<std::uintptr_t>(__builtin_return_address(0));
  bool& seen = reached[(place ^ place >> 16) % reached.size()];
  if (!seen) reached_more = seen = true;
}

namespace {

struct Input {
  Bytes bytes;
  bool is_whole;  // accepted as it is
};

class Fuzzer {
 public:
  explicit Fuzzer(std::uint64_t seed) : random_(seed) {}

  void add(Bytes bytes) {
    const bool is_whole = accepted(bytes.data(), bytes.size());
    if (is_whole) whole_.insert(bytes);
    corpus_.push_back({std::move(bytes), is_whole});
  }

  void run(std::size_t count) {
    std::size_t num_accepted = 0;
    for (std::size_t number = 0; number < count; ++number) {
      const Input& parent = corpus_[below(corpus_.size())];
      Bytes bytes = parent.bytes;
      bool forged = below(2) == 0;
      for (std::size_t times = 1 + below(4); times > 0; --times) forged |= mutate(bytes);
      if (forged) repair(bytes);
      reached_more = false;
      const bool is_whole = accepted(bytes.data(), bytes.size());
      num_accepted += is_whole;
      if (is_whole && !forged && whole_.count(bytes) == 0) {
        std::ofstream("accepted.snapshot", std::ios::binary) << bytes;
        std::fprintf(stderr, "input %zu was changed and is accepted: accepted.snapshot\n", number);
        std::abort();
      }
      if (is_whole) whole_.insert(bytes);
      if (reached_more) corpus_.push_back({std::move(bytes), is_whole});
    }
    std::printf("%zu inputs, %zu kept, %zu accepted with their checksums mended, %zu blocks\n",
                count, corpus_.size(), num_accepted,
                static_cast<std::size_t>(std::count(reached.begin(), reached.end(), true)));
  }

 private:
  std::size_t below(std::size_t bound) { return random_.below(static_cast<std::uint32_t>(bound)); }

  /// Whether it took something from another input, which may be a whole section.
  bool mutate(Bytes& bytes) {
    if (bytes.empty()) bytes.push_back(0);
    const std::size_t place = below(bytes.size());
    const std::size_t length = 1 + below(std::min<std::size_t>(bytes.size() - place, 64));
    switch (below(7)) {
      case 0:
        bytes[place] = static_cast<char>(bytes[place] ^ (1 << below(8)));
        break;
      case 1:
        bytes[place] = static_cast<char>(below(256));
        break;
      case 2:
        bytes.resize(place);
        break;
      case 3:
        bytes.erase(place, length);
        break;
      case 4:
        bytes.insert(place, bytes.substr(place, length));
        break;
      case 5: {  // a number at the edge of a type, or close to what was there
        constexpr std::array<std::uint64_t, 8> kEdges{
            0, 1, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF, ~std::uint64_t{0}};
        std::uint64_t value = 0;
        const std::size_t width = std::min(bytes.size() - place, std::size_t{1} << below(4));
        std::memcpy(&value, bytes.data() + place, width);
        value = below(2) == 0 ? kEdges[below(kEdges.size())] : value + below(5) - 2;
        std::memcpy(bytes.data() + place, &value, width);
        break;
      }
      default: {
        const Bytes& other = corpus_[below(corpus_.size())].bytes;
        if (place < other.size()) bytes.replace(place, length, other.substr(place, length));
        return true;
      }
    }
    return false;
  }

  /// Gives every header and section of a file that still has its form the right checksum.
  static void repair(Bytes& bytes) {
    const auto put_sum = [&](std::size_t from, std::size_t nbytes, std::size_t place) {
      const std::uint32_t sum = checksum(bytes.data() + from, nbytes);
      std::memcpy(bytes.data() + place, &sum, sizeof(sum));
    };
    if (bytes.size() < 16) return;
    put_sum(0, 12, 12);
    for (std::size_t place = 16; place + 20 <= bytes.size();) {
      put_sum(place, 16, place + 16);
      std::uint64_t nbytes = 0;
      std::memcpy(&nbytes, bytes.data() + place + 8, sizeof(nbytes));
      place += 20;
      if (nbytes > bytes.size() - place || bytes.size() - place - nbytes < 4) return;
      put_sum(place, static_cast<std::size_t>(nbytes), place + static_cast<std::size_t>(nbytes));
      place += static_cast<std::size_t>(nbytes) + 4;
    }
  }

  CounterRng random_;
  std::vector<Input> corpus_;
  std::set<Bytes> whole_;
};

/// Small memories of every kind, and one whose frames are in chunks.
std::vector<Bytes> whole_snapshots() {
  const TemporaryFolder folder;
  std::vector<Bytes> snapshots;
  const auto add = [&](ReplayConfig config, int steps, bool in_chunks) {
    ReplayMemory memory(config);
    std::vector<std::byte> frame(config.frame.nbytes());
    const FrameRows rows{frame.data(), static_cast<std::ptrdiff_t>(frame.size())};
    std::vector<bool> open(static_cast<std::size_t>(config.num_envs));
    for (int step = 0; step < steps; ++step) {
      for (std::size_t k = 0; k < frame.size(); k += 3) frame[k] = static_cast<std::byte>(step + 1);
      const std::vector<std::int64_t> envs{step % config.num_envs};
      const auto env = static_cast<std::size_t>(envs[0]);
      if (!open[env]) {
        memory.begin(envs, rows);
        open[env] = true;
        continue;
      }
      const std::vector<std::int64_t> actions{step % 5};
      const std::vector<float> rewards{1.5F};
      const std::vector<std::uint8_t> truncated{step % 11 == 10};
      const std::vector<std::uint8_t> life_lost{step % 7 == 0};
      const std::vector<std::uint8_t> no{0};
      memory.append({envs, actions, rewards, rows, no, truncated, life_lost});
      open[env] = truncated[0] == 0;
    }
    if (in_chunks) {
      (void)memory.save_in_chunks(folder / "memory", chunks_folder() / "", "");
    } else {
      memory.save(folder / "memory");
    }
    snapshots.push_back(read_file(folder / "memory"));
  };
  for (const Storage storage : {Storage::kRaw, Storage::kCompressed}) {
    ReplayConfig config = small_config();
    config.storage = storage;
    add(config, 0, false);
    add(config, 9, false);
    add(config, 50, false);
    config.frame = {{8, 9}, DType::kUint8};
    config.capacity = 80;
    config.n_step = 3;
    config.padding = Padding::kReject;
    add(config, 150, false);
    config.num_envs = 3;
    config.padding = Padding::kRepeat;
    config.eviction = Eviction::kRandom;
    add(config, 300, false);
    config.frame = {{64, 64}, DType::kUint8};
    add(config, 300, true);
  }
  return snapshots;
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t count = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 10'000;
  Fuzzer fuzzer(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1);
  for (Bytes& bytes : whole_snapshots()) {
    CHECK(accepted(bytes.data(), bytes.size()));
    fuzzer.add(std::move(bytes));
  }
  for (int number = 3; number < argc; ++number) fuzzer.add(read_file(argv[number]));
  fuzzer.run(count);
  struct rusage usage {};
  CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
  CHECK(usage.ru_maxrss < kResidentKilobytesAtMost);
}

#endif
