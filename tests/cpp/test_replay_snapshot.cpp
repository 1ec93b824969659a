// A loaded memory continues exactly as the saved one, and contents that contradict each other are
// refused however well their checksums fit.

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>

#include "fastdqn/snapshot.hpp"
#include "replay_support.hpp"
#include "snapshot_support.hpp"

namespace {

using namespace fastdqn;

/// Steps that are the same for the same numbers, with every kind of end among them.
void play(ReplayMemory& memory, std::uint32_t from, std::uint32_t to) {
  for (std::uint32_t number = from; number < to; ++number) {
    const std::vector<std::int64_t> envs{number % 3};
    const std::uint32_t frame = number + 1;
    const FrameRows rows{reinterpret_cast<const std::byte*>(&frame), 4};
    if (number < 3 || number % 13 == 0) {
      memory.begin(envs, rows);
      continue;
    }
    const std::vector<std::int64_t> actions{number % 5};
    const std::vector<float> rewards{static_cast<float>(number) / 8.0F};
    const std::vector<std::uint8_t> life_lost{number % 7 == 0};
    const std::vector<std::uint8_t> no{0};
    memory.append({envs, actions, rewards, rows, no, no, life_lost});
    memory.check_invariants();
  }
}

ReplayConfig three_envs(std::int64_t capacity) {
  ReplayConfig config = small_config();
  config.capacity = capacity;
  config.num_envs = 3;
  config.n_step = 2;
  return config;
}

std::vector<Row> sampled(ReplayMemory& memory) {
  std::vector<Row> rows;
  for (int i = 0; i < 20; ++i) {
    rows.push_back(Player::first_row(memory.sample(1, StackLayout::kPlanar)));
  }
  return rows;
}

void a_loaded_memory_continues() {
  const TemporaryFolder folder;
  const std::string path = folder / "memory";
  for (const auto& [capacity, eviction] :
       {std::pair{15, Eviction::kFifo}, std::pair{29, Eviction::kFifo},
        std::pair{500, Eviction::kFifo}, std::pair{15, Eviction::kRandom},
        std::pair{61, Eviction::kRandom}, std::pair{90, Eviction::kRandom}}) {
    ReplayConfig config = three_envs(capacity);
    config.stack = 1;
    config.eviction = eviction;
    ReplayMemory memory(config);
    play(memory, 0, 100);
    (void)sampled(memory);
    memory.save(path);
    const auto loaded = ReplayMemory::load(path, {});
    CHECK(folder.num_files() == 1);
    CHECK(loaded->nbytes() == memory.nbytes());
    CHECK(loaded->num_frames() == memory.num_frames());
    CHECK(loaded->valid_indices() == memory.valid_indices());
    CHECK(sampled(*loaded) == sampled(memory));
    play(*loaded, 100, 200);
    play(memory, 100, 200);
    CHECK(sampled(*loaded) == sampled(memory));
  }
}

void all_settings_come_back() {
  const TemporaryFolder folder;
  for (const Padding padding : {Padding::kZero, Padding::kRepeat, Padding::kReject}) {
    for (const RewardClip clip : {RewardClip::kNone, RewardClip::kSign, RewardClip::kClip}) {
      const ReplayConfig config{.capacity = 40,
                                .frame = {{2, 3, 4}, DType::kFloat16},
                                .num_envs = 4,
                                .stack = 5,
                                .n_step = 3,
                                .discount = 0.97,
                                .padding = padding,
                                .reward_clip = clip,
                                .storage = storage_under_test,
                                .directory = {},
                                .eviction = Eviction::kRandom,
                                .seed = ~std::uint64_t{0}};
      const ReplayMemory memory(config);
      memory.save(folder / "memory");
      const ReplayConfig loaded = ReplayMemory::load(folder / "memory", {})->config();
      CHECK(loaded.capacity == config.capacity && loaded.frame.shape == config.frame.shape);
      CHECK(loaded.frame.dtype == config.frame.dtype && loaded.num_envs == config.num_envs);
      CHECK(loaded.stack == config.stack && loaded.n_step == config.n_step);
      CHECK(loaded.discount == config.discount && loaded.padding == config.padding);
      CHECK(loaded.reward_clip == config.reward_clip && loaded.seed == config.seed);
      CHECK(loaded.eviction == config.eviction);
    }
  }
}

/// A saved memory whose sections can be changed and written again with fitting checksums.
class Forgery {
 public:
  explicit Forgery(const TemporaryFolder& folder) : path_(folder / "memory") {
    ReplayMemory memory(three_envs(40));
    play(memory, 0, 60);
    memory.save(path_);
    SnapshotReader reader(path_);
    for (const char* name : names_) {
      std::string bytes(reader.section_nbytes(name), '\0');
      reader.read_section(name, bytes.data(), bytes.size());
      sections_[name] = bytes;
    }
  }

  /// Puts `value` at byte `offset` of a section.
  template <typename Value>
  Forgery& put(const std::string& name, std::size_t offset, Value value) {
    CHECK(offset + sizeof(value) <= sections_[name].size());
    std::memcpy(sections_[name].data() + offset, &value, sizeof(value));
    return *this;
  }
  Forgery& cut(const std::string& name, std::size_t nbytes) {
    sections_[name].resize(sections_[name].size() - nbytes);
    return *this;
  }
  const SlotRecord* records() { return reinterpret_cast<SlotRecord*>(sections_["records"].data()); }

  std::size_t nbytes(const std::string& name) { return sections_[name].size(); }

  void refused(const char* part) {
    write();
    CHECK_THROWS(ReplayMemory::load(path_, {}), SnapshotError, part);
    CHECK_THROWS(ReplayMemory::load(path_, {}), SnapshotError, path_);
  }

  /// Else every transition of what was loaded can be read.
  bool is_refused() {
    write();
    try {
      const auto memory = ReplayMemory::load(path_, {});
      (void)memory->gather(memory->valid_indices(), StackLayout::kPlanar);
      return false;
    } catch (const SnapshotError&) {
      return true;
    }
  }

 private:
  void write() {
    SnapshotWriter writer(path_);
    for (const char* name : names_) {
      writer.write_section(name, sections_[name].data(), sections_[name].size());
    }
    writer.commit();
  }

  const std::array<const char*, 7> names_{
      "config",  "state",    "envs", "starts",
      "records", "drawable", storage_under_test == Storage::kRaw ? "frames" : "groups"};
  std::string path_;
  std::map<std::string, std::string> sections_;
};

constexpr std::size_t kRecord = sizeof(SlotRecord);
constexpr std::size_t kPrevious = offsetof(SlotRecord, previous);
constexpr std::size_t kNext = offsetof(SlotRecord, next);
constexpr std::size_t kPosition = offsetof(SlotRecord, position);
constexpr std::size_t kEnv = offsetof(SlotRecord, env);
constexpr std::size_t kAge = offsetof(SlotRecord, age);
constexpr std::size_t kFlags = offsetof(SlotRecord, flags);

/// Whatever stands in the section, the memory loads and reads without a step out of bounds, which
/// the sanitizers would see, or is refused.
void damaged_groups_are_refused(const TemporaryFolder& folder) {
  Forgery original(folder);
  const std::size_t nbytes = original.nbytes("groups");
  original.put("groups", 0, std::uint32_t{1} << 30).refused("larger than any can be");
  Forgery(folder).put("groups", 4, std::uint32_t{33}).refused("larger than any can be");
  Forgery(folder).put("groups", 4, std::uint32_t{0}).refused("contradicts itself");
  Forgery(folder).put("groups", 8, std::uint32_t{1}).refused("has no room for another frame");
  Forgery(folder).put("groups", 12, Slot{40}).refused("stored twice or nowhere");
  std::size_t refused = 0;
  std::size_t damaged = 0;
  for (std::size_t at = 0; at < nbytes; at += nbytes / 50, ++damaged) {
    refused += Forgery(folder).put("groups", at, std::uint8_t{0xAA}).is_refused() ? 1 : 0;
  }
  CHECK(refused > damaged / 2);
}

void contradictions_are_refused() {
  const TemporaryFolder folder;
  const auto forged = [&] { return Forgery(folder); };
  const std::int64_t huge = std::int64_t{1} << 60;

  forged().put("config", 0, huge).refused("capacity is 1152921504606846976 frames");
  forged().put("config", 8, huge).refused("num_envs is 1152921504606846976");
  forged().put("config", 16, std::int64_t{0}).refused("stack is 0");
  forged().put("config", 24, huge).refused("n_step is 1152921504606846976");
  forged().put("config", 32, -1.0).refused("discount is -1");
  for (const std::size_t byte : {48U, 49U, 50U, 51U, 52U}) {
    forged().put("config", byte, std::uint8_t{200}).refused("settings have values that mean");
  }
  forged().put("config", 51, std::uint8_t{1}).refused("frame_shape is (0,)");
  forged().put("state", 0, std::uint64_t{39}).refused("section \"records\" has 1120 bytes; expected 39");
  forged().put("state", 0, ~std::uint64_t{0}).refused("more was written than can be counted");
  forged().put("state", 0, std::uint64_t{61}).refused("the head of the ring does not follow");
  forged().put("state", 16, std::uint64_t{5}).refused("the blocks ");
  forged().put("state", 24, std::uint64_t{40}).refused("the slot to be written does not exist");
  forged().put("state", 32, huge).refused("section \"drawable\" has");
  forged().put("config", 0, std::int64_t{39}).refused("section \"records\" has 1120 bytes");
  forged().put("config", 0, std::int64_t{41}).refused("section \"records\" has 1120 bytes");
  forged().put("starts", 0, std::uint64_t{41}).refused("the blocks of frames were not written one");
  forged().cut("starts", 8).refused("section \"starts\" has");
  forged().put("config", 8, std::int64_t{2}).refused("section \"envs\" has 24 bytes; expected 2");
  if (storage_under_test == Storage::kRaw) {
    forged().cut("frames", 4).refused("section \"frames\" has 156 bytes; expected 40 times 4");
  } else {
    forged().cut("groups", 4).refused("section \"groups\" is too short for its contents");
    damaged_groups_are_refused(folder);
  }
  forged().cut("records", 1).refused("section \"records\" has 1119 bytes; expected 40 times 28");
  forged().cut("state", 8).refused("section \"state\" has 40 bytes; expected 48");

  forged().put("envs", 6, std::uint8_t{3}).refused("a phase that means nothing");
  forged().put("envs", 6, std::uint8_t{0}).refused("environment 0: it has frames but no episode");
  forged().put("envs", 0, Slot{40}).refused("environment 0: its newest frame is not stored");
  forged().put("envs", 0, Slot{3}).refused("environment 0: its newest frame is not the end");
  forged().put("envs", 4, std::uint16_t{77}).refused("environment 0: its newest frame is not");
  forged().put("envs", 6, std::uint8_t{2}).refused("environment 0: its last step and its phase");

  // Any slot in the middle of an episode, with a step before it and one after it.
  Forgery original(folder);
  std::size_t slot = 0;
  while (original.records()[slot].previous == kNoSlot || original.records()[slot].next == kNoSlot ||
         original.records()[slot].position == kNoSlot) {
    ++slot;
  }
  const SlotRecord record = original.records()[slot];
  const std::size_t at = slot * kRecord;
  const Slot other = record.previous == 5 ? 6 : 5;
  const auto is = [&](const char* what) {
    static std::string text;
    text = "slot " + std::to_string(slot) + ": " + what;
    return text.c_str();
  };
  forged().put("records", at + kPrevious, Slot{40}).refused(is("the frame before does not lead"));
  forged().put("records", at + kPrevious, other).refused("the frame ");
  forged().put("records", at + kNext, Slot{0xFFFFFFF0}).refused("the frame ");
  forged().put("records", at + kEnv, std::uint32_t{7}).refused("does not exist");
  forged().put("records", at + kAge, std::uint16_t{999}).refused("of another time or environment");
  forged().put("records", at + kFlags, std::uint8_t{17}).refused(is("it has flags that nothing"));
  forged().put("records", at + kFlags, std::uint8_t{2}).refused(is("no action led to its end"));
  forged().put("records", at + kFlags, std::uint8_t{0}).refused("a frame follows without an");
  forged().put("records", at + kFlags, std::uint8_t{3}).refused("the episode goes on after its");
  forged().put("records", at + kPosition, kNoSlot).refused("not where the list");
  forged().put("records", at + kPosition, Slot{0xFFFFFFF0}).refused("not where the list");
  forged().put("drawable", 0, Slot{40}).refused("slot 40: it is not where the list");
  forged().put("drawable", 0, Slot{0xFFFFFFF0}).refused("not where the list");

  // Lists that fit the records but not the rules.
  Forgery shorter(folder);
  std::uint64_t listed = 0;
  std::size_t last = 0;
  for (std::size_t i = 0; i < 40; ++i) {
    if (shorter.records()[i].position == kNoSlot) continue;
    ++listed;
    if (shorter.records()[i].position > shorter.records()[last].position ||
        shorter.records()[last].position == kNoSlot) {
      last = i;
    }
  }
  shorter.cut("drawable", 4)
      .put("state", 32, listed - 1)
      .put("records", last * kRecord + kPosition, kNoSlot)
      .refused("it can be drawn but is not listed");
  Forgery wrong(folder);
  std::size_t unlisted = 0;
  while (wrong.records()[unlisted].position != kNoSlot) ++unlisted;
  wrong.put("records", last * kRecord + kPosition, kNoSlot)
      .put("records", unlisted * kRecord + kPosition, static_cast<Slot>(listed - 1))
      .put("drawable", (listed - 1) * sizeof(Slot), static_cast<Slot>(unlisted))
      .refused("it is listed but cannot be drawn");
}

void refusals_name_the_file() {
  const TemporaryFolder folder;
  write_file(folder / "memory", "hello");
  CHECK_THROWS(ReplayMemory::load(folder / "memory", {}), SnapshotError, folder / "memory");
  SnapshotWriter(folder / "memory").commit();
  CHECK_THROWS(ReplayMemory::load(folder / "memory", {}), SnapshotError,
               "section \"config\" is missing");
}

}  // namespace

int main() {
  for (const Storage storage : {Storage::kRaw, Storage::kCompressed}) {
    storage_under_test = storage;
    a_loaded_memory_continues();
    all_settings_come_back();
    contradictions_are_refused();
    refusals_name_the_file();
  }
}
