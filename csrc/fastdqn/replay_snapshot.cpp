// How a ReplayMemory is written to a snapshot and read back. The records, the list of what can be
// drawn and the frames are written as they lie in memory, for the slots in use.

#include <algorithm>
#include <array>
#include <type_traits>

#include "fastdqn/replay_memory.hpp"
#include "fastdqn/snapshot.hpp"

namespace fastdqn {

namespace {

constexpr const char* kConfigName = "config";
constexpr const char* kStateName = "state";
constexpr const char* kEnvsName = "envs";
constexpr const char* kStartsName = "starts";
constexpr const char* kRecordsName = "records";
constexpr const char* kDrawableName = "drawable";

constexpr std::size_t kPieceNbytes = std::size_t{1} << 20;

struct SavedConfig {
  std::int64_t capacity;
  std::int64_t num_envs;
  std::int64_t stack;
  std::int64_t n_step;
  double discount;
  std::uint64_t seed;
  std::uint8_t dtype;
  std::uint8_t padding;
  std::uint8_t reward_clip;  // its place in kSavedRewardClips
  std::uint8_t dimensions;
  std::uint8_t storage;
  std::uint8_t eviction;
  std::array<std::uint8_t, 2> unused;
  std::array<std::int64_t, kMaxFrameDimensions> shape;
};
static_assert(sizeof(SavedConfig) == 120);

struct SavedState {
  WriteOrder::State order;
  std::uint64_t num_drawable;
  std::uint64_t rng_position;  // of the sampling
};
static_assert(sizeof(SavedState) == 48);
static_assert(std::is_trivially_copyable_v<SavedState>);

struct SavedEnv {
  Slot newest;
  std::uint16_t age;
  std::uint8_t phase;
  std::uint8_t unused;
};
static_assert(sizeof(SavedEnv) == 8);
static_assert(std::is_trivially_copyable_v<SlotRecord>);

constexpr std::array kSavedRewardClips{RewardClip::kNone, RewardClip::kSign, RewardClip::kClip};

SavedConfig saved(const ReplayConfig& config) {
  SavedConfig out{};
  out.capacity = config.capacity;
  out.num_envs = config.num_envs;
  out.stack = config.stack;
  out.n_step = config.n_step;
  out.discount = config.discount;
  out.seed = config.seed;
  out.dtype = static_cast<std::uint8_t>(config.frame.dtype);
  out.padding = static_cast<std::uint8_t>(config.padding);
  const auto clip = std::find(kSavedRewardClips.begin(), kSavedRewardClips.end(),
                              config.reward_clip);
  out.reward_clip = static_cast<std::uint8_t>(clip - kSavedRewardClips.begin());
  out.storage = static_cast<std::uint8_t>(config.storage);
  out.eviction = static_cast<std::uint8_t>(config.eviction);
  out.dimensions = static_cast<std::uint8_t>(config.frame.shape.size());
  std::copy(config.frame.shape.begin(), config.frame.shape.end(), out.shape.begin());
  return out;
}

ReplayConfig restored(const SavedConfig& config, const std::string& path) {
  if (config.dtype >= kDTypes.size() ||
      config.padding > static_cast<std::uint8_t>(Padding::kReject) ||
      config.reward_clip >= kSavedRewardClips.size() ||
      config.storage > static_cast<std::uint8_t>(Storage::kCompressed) ||
      config.eviction > static_cast<std::uint8_t>(Eviction::kRandom) ||
      config.dimensions > kMaxFrameDimensions) {
    throw SnapshotError(path, "the settings have values that mean nothing");
  }
  return {
      .capacity = config.capacity,
      .frame = {{config.shape.begin(), config.shape.begin() + config.dimensions},
                static_cast<DType>(config.dtype)},
      .num_envs = config.num_envs,
      .stack = config.stack,
      .n_step = config.n_step,
      .discount = config.discount,
      .padding = static_cast<Padding>(config.padding),
      .reward_clip = kSavedRewardClips[config.reward_clip],
      .storage = static_cast<Storage>(config.storage),
      .directory = {},
      .eviction = static_cast<Eviction>(config.eviction),
      .seed = config.seed,
  };
}

/// Before anything is allocated for `count` items: the section has to hold them.
void require_items(const SnapshotReader& reader, const char* name, std::uint64_t count,
                   std::size_t item_nbytes) {
  const std::size_t nbytes = reader.section_nbytes(name);
  if (nbytes % item_nbytes == 0 && nbytes / item_nbytes == count) return;
  throw SnapshotError(reader.path(), "section \"" + std::string(name) + "\" has " +
                                         std::to_string(nbytes) + " bytes; expected " +
                                         std::to_string(count) + " times " +
                                         std::to_string(item_nbytes));
}

/// The same for all sections whose lengths follow from the settings and the state.
void require_sections(SnapshotReader& reader, const ReplayConfig& config) {
  SavedState state{};
  reader.read_section(kStateName, &state, sizeof(state));
  const std::uint64_t num_frames =
      std::min(state.order.num_written, static_cast<std::uint64_t>(config.capacity));
  require_items(reader, kEnvsName, static_cast<std::uint64_t>(config.num_envs), sizeof(SavedEnv));
  require_items(reader, kRecordsName, num_frames, sizeof(SlotRecord));
  require_items(reader, kDrawableName, state.num_drawable, sizeof(Slot));
  if (state.num_drawable > num_frames) {
    throw SnapshotError(reader.path(), "more can be drawn than is stored");
  }
}

/// The chunks of a snapshot but for the damaged ones; none where it cannot be read any more, as
/// nothing but time is lost then.
std::vector<Chunk> chunks_to_share(const std::string& snapshot,
                                   std::span<const std::string> damaged) {
  std::vector<Chunk> chunks;
  if (snapshot.empty()) return chunks;
  try {
    chunks = ReplayMemory::chunks_of(snapshot);
  } catch (const std::runtime_error&) {
    return chunks;
  }
  std::erase_if(chunks, [&](const Chunk& chunk) {
    return std::find(damaged.begin(), damaged.end(), name_of(chunk)) != damaged.end();
  });
  return chunks;
}

[[noreturn]] void fail(const char* noun, std::size_t number, const char* what) {
  throw std::logic_error(std::string(noun) + " " + std::to_string(number) + ": " + what);
}

}  // namespace

void ReplayMemory::save(const std::string& path) const {
  SnapshotWriter writer(path);
  save_to(writer);
}

void ReplayMemory::save_to(SnapshotWriter& writer) const {
  const std::shared_lock lock(mutex_);
  check_open();
  write_all_but_frames(writer);
  store_->save(writer, stored());
  writer.commit();
}

std::vector<std::string> ReplayMemory::save_in_chunks(const std::string& path,
                                                      const std::string& folder,
                                                      const std::string& previous,
                                                      std::span<const std::string> damaged) const {
  ChunkFolder chunks(folder, chunks_to_share(previous, damaged));
  SnapshotWriter writer(path, chunks);
  save_to(writer);
  return chunks.written();
}

ReplayConfig ReplayMemory::config_of(const std::string& path) {
  SnapshotReader reader(path);
  try {
    return read_config(reader);
  } catch (const std::logic_error& error) {
    throw SnapshotError(path, error.what());
  }
}

std::vector<Chunk> ReplayMemory::chunks_of(const std::string& path) {
  const SnapshotReader reader(path);
  return {reader.chunks().begin(), reader.chunks().end()};
}

std::vector<std::string> ReplayMemory::damaged_chunks(const std::string& path,
                                                      const std::string& folder,
                                                      std::uint64_t turn, std::uint64_t turns) {
  if (turns == 0) throw std::invalid_argument("expected 1 turn or more");
  std::vector<Chunk> chunks = chunks_of(path);
  std::sort(chunks.begin(), chunks.end());
  chunks.erase(std::unique(chunks.begin(), chunks.end()), chunks.end());
  const ChunkFolder where(folder);
  std::vector<std::string> damaged;
  for (const Chunk& chunk : chunks) {
    const bool looked_at = chunk.digest.high % turns == turn % turns;
    if (looked_at ? !where.is_whole(chunk) : !where.has(chunk)) damaged.push_back(name_of(chunk));
  }
  return damaged;
}

void ReplayMemory::write_all_but_frames(SnapshotWriter& writer) const {
  std::vector<SavedEnv> envs;
  for (const Env& env : envs_) {
    envs.push_back({env.newest, env.age, static_cast<std::uint8_t>(env.phase), 0});
  }
  const SavedConfig config = saved(config_);
  SavedState state{order_.state(), drawable_.size(), 0};
  {
    const std::lock_guard rng_lock(rng_mutex_);
    state.rng_position = rng_.position();
  }
  const std::span starts = order_.starts();

  writer.write_section(kConfigName, &config, sizeof(config));
  writer.write_section(kStateName, &state, sizeof(state));
  writer.write_section(kEnvsName, envs.data(), envs.size() * sizeof(SavedEnv));
  writer.write_section(kStartsName, starts.data(), starts.size_bytes());
  writer.write_section(kRecordsName, records_.data(), stored() * sizeof(SlotRecord));
  writer.write_section(kDrawableName, drawable_.data(), drawable_.size() * sizeof(Slot));
}

/// With the lock held.
void ReplayMemory::flush_frames() {
  if (folder_ == nullptr) return;
  SnapshotWriter writer(folder_->index_path());
  write_all_but_frames(writer);
  store_->save_index(writer);
  writer.commit();
  index_is_right_ = true;
}

/// Frames in either form, whichever the store's own is.
void ReplayMemory::load_frames(SnapshotReader& reader) {
  if (reader.has_section(kGroupsSection)) {
    load_groups(reader);
  } else {
    load_raw_frames(reader);
  }
}

/// In pieces that are a small part of what the frames take.
void ReplayMemory::load_raw_frames(SnapshotReader& reader) {
  const std::size_t nbytes = config_.frame.nbytes();
  require_items(reader, kRawFramesSection, stored(), nbytes);
  const std::size_t frames_a_piece = std::max<std::size_t>(1, kPieceNbytes / nbytes);
  std::vector<std::byte> piece(std::min(frames_a_piece, stored()) * nbytes);
  SnapshotReader::Stream stream = reader.stream(kRawFramesSection);
  for (std::size_t slot = 0; slot < stored();) {
    const std::size_t count = std::min(frames_a_piece, stored() - slot);
    stream.read(piece.data(), count * nbytes);
    for (std::size_t k = 0; k < count; ++k, ++slot) {
      const std::int64_t env = records_[slot].env;
      if (env >= config_.num_envs) fail("slot", slot, "its environment does not exist");
      store_->reserve({&env, 1});
      store_->write(static_cast<Slot>(slot), records_[slot].env, piece.data() + k * nbytes);
    }
  }
  stream.finish();
}

/// Nothing of a group is read before it was found to keep to its own bounds.
void ReplayMemory::load_groups(SnapshotReader& reader) {
  const FrameCodec& codec = store_->codec();
  const auto refuse = [&](const char* what) { throw SnapshotError(reader.path(), what); };
  SnapshotReader::Stream stream = reader.stream(kGroupsSection);
  std::vector<bool> filled(stored());
  std::vector<bool> has_open(envs_.size());
  std::vector<std::byte> data(FrameGroup::max_nbytes(codec) + FrameCodec::kCodeSlack);
  for (std::size_t missing = stored(); stream.nbytes_left() > 0 || missing > 0;) {
    SavedGroup saved{};
    stream.read(&saved, sizeof(saved));
    if (saved.frames > kGroupFrames || saved.nbytes > FrameGroup::max_nbytes(codec)) {
      refuse("a group of frames is larger than any can be");
    }
    std::array<Slot, kGroupFrames> slots;
    stream.read(slots.data(), saved.frames * sizeof(Slot));
    stream.read(data.data(), saved.nbytes);
    const FrameGroup group(codec, saved.frames, data.data());
    if (!group.is_valid(saved.nbytes)) refuse("a group of frames contradicts itself");
    std::size_t wanted = 0;
    std::uint32_t env = 0;
    for (std::size_t k = 0; k < saved.frames; ++k) {
      if (slots[k] == kNoSlot) continue;
      if (slots[k] >= stored() || filled[slots[k]]) refuse("a frame is stored twice or nowhere");
      filled[slots[k]] = true;
      env = records_[slots[k]].env;
      ++wanted;
    }
    if (wanted == 0 || wanted > missing) refuse("a group of frames is of none that are stored");
    missing -= wanted;
    std::optional<std::uint32_t> open_in;
    if (saved.is_open != 0) {
      if (env >= envs_.size() || has_open[env]) refuse("an open group is nobody's");
      has_open[env] = true;
      open_in = env;
    }
    store_->adopt(group, saved.nbytes, slots.data(), open_in);
  }
  stream.finish();
}

ReplayConfig ReplayMemory::read_config(SnapshotReader& reader) {
  SavedConfig config{};
  reader.read_section(kConfigName, &config, sizeof(config));
  return checked_config(restored(config, reader.path()));
}

void ReplayMemory::read_all_but_frames(SnapshotReader& reader) {
  SavedState state{};
  reader.read_section(kStateName, &state, sizeof(state));
  std::vector<SavedEnv> envs(envs_.size());
  reader.read_section(kEnvsName, envs.data(), envs.size() * sizeof(SavedEnv));
  for (std::size_t number = 0; number < envs.size(); ++number) {
    const auto& [newest, age, phase, unused] = envs[number];
    if (phase > static_cast<std::uint8_t>(Phase::kEnded)) {
      throw SnapshotError(reader.path(), "an environment is in a phase that means nothing");
    }
    envs_[number] = {newest, age, static_cast<Phase>(phase), 0};
  }
  std::vector<std::uint64_t> starts(order_.num_blocks());
  reader.read_section(kStartsName, starts.data(), starts.size() * sizeof(starts[0]));
  order_.restore(state.order, starts);
  rng_ = CounterRng(config_.seed, state.rng_position);
  drawable_.resize(static_cast<std::size_t>(state.num_drawable));
  reader.read_section(kRecordsName, records_.data(), stored() * sizeof(SlotRecord));
  reader.read_section(kDrawableName, drawable_.data(), drawable_.size() * sizeof(Slot));
}

/// Where filling it fails, nothing of what was read so far is left in a folder.
template <class Fill>
void ReplayMemory::fill(Fill fill) try {
  fill();
  check_invariants();
} catch (...) {
  store_.reset();
  throw;
}

std::unique_ptr<ReplayMemory> ReplayMemory::load(const std::string& path, const Place& place,
                                                 const std::string& chunks) {
  SnapshotReader reader(path, chunks);
  reader.require_chunks();
  try {
    ReplayConfig config = read_config(reader);
    // Before anything is allocated for them.
    require_sections(reader, config);
    config.storage = place.storage.value_or(config.storage);
    config.directory = place.directory;
    auto folder = config.directory.empty() ? nullptr : std::make_unique<Folder>(config.directory);
    if (folder != nullptr) folder->remove_index();
    std::unique_ptr<ReplayMemory> memory(
        new ReplayMemory(std::move(config), std::move(folder), false));
    memory->fill([&] {
      memory->read_all_but_frames(reader);
      memory->load_frames(reader);
    });
    return memory;
  } catch (const std::logic_error& error) {
    throw SnapshotError(path, error.what());
  }
}

std::unique_ptr<ReplayMemory> ReplayMemory::open(const std::string& directory) {
  auto folder = std::make_unique<Folder>(directory);
  if (!folder->has_index()) {
    throw SnapshotError(directory, "no replay memory was closed in this folder, so that nobody "
                                   "knows what its files hold");
  }
  SnapshotReader reader(folder->index_path());
  try {
    ReplayConfig config = read_config(reader);
    require_sections(reader, config);
    config.directory = directory;
    std::unique_ptr<ReplayMemory> memory(
        new ReplayMemory(std::move(config), std::move(folder), true));
    memory->fill([&] {
      memory->read_all_but_frames(reader);
      memory->store_->load_index(reader, memory->stored());
    });
    memory->index_is_right_ = true;
    return memory;
  } catch (const std::logic_error& error) {
    throw SnapshotError(reader.path(), error.what());
  }
}

}  // namespace fastdqn
