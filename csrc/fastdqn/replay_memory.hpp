#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

#include "fastdqn/batch.hpp"
#include "fastdqn/chunk_folder.hpp"
#include "fastdqn/frame_stack.hpp"
#include "fastdqn/frame_store.hpp"
#include "fastdqn/geometry.hpp"
#include "fastdqn/reward.hpp"
#include "fastdqn/rng.hpp"
#include "fastdqn/turnstile_mutex.hpp"
#include "fastdqn/write_order.hpp"

namespace fastdqn {

class SnapshotReader;
class SnapshotWriter;

/// What a replay memory is made with. Defaults are the Python side's.
struct ReplayConfig {
  std::int64_t capacity;  // frames, over all environments
  FrameGeometry frame;
  std::int64_t num_envs;
  std::int64_t stack;   // frames in a state
  std::int64_t n_step;  // steps in a window
  double discount;      // a step
  Padding padding;
  RewardClip reward_clip;
  Storage storage;
  std::string directory;  // for files that hold the frames; empty: they are in memory
  Eviction eviction;
  std::uint64_t seed;
};

/// The settings, once each was found to be in its range; else std::invalid_argument says which is
/// not and what was expected.
ReplayConfig checked_config(ReplayConfig config);

/// Rows of C-contiguous frames, `row_stride` bytes apart.
struct FrameRows {
  const std::byte* data;
  std::ptrdiff_t row_stride;

  const std::byte* row(std::size_t number) const noexcept {
    return data + static_cast<std::ptrdiff_t>(number) * row_stride;
  }
};

/// What one action in each of several environments led to. All spans have one length.
struct StepRows {
  std::span<const std::int64_t> envs;
  std::span<const std::int64_t> actions;
  std::span<const float> rewards;
  FrameRows frames;  // the frames reached
  std::span<const std::uint8_t> terminated;
  std::span<const std::uint8_t> truncated;
  std::span<const std::uint8_t> life_lost;  // terminal for learning; the episode goes on
};

/// `capacity` frames of all environments in one ring, and the transitions between them: the last
/// ones, or with Eviction::kRandom a random choice of blocks of older ones among them.
///
/// One slot is one frame; stacks are built when they are read. The transition that starts at a
/// frame can be drawn exactly when
///   1. an action was taken there,
///   2. every frame of its stack that belongs to its episode is still stored (with
///      Padding::kReject also: none of the stack lies before the episode),
///   3. its window is complete: n_step steps on is stored, or one of those steps ended the window
///      (terminated, truncated or a lost life).
/// These are listed at every moment in an array that drawing picks from: one pick a draw, no
/// retries, exactly uniform, whatever the memory holds.
///
/// Thread-safe: any call from any thread. begin and append exclude all else; everything else runs
/// side by side. A call that throws has changed nothing. Arguments that are wrong throw
/// std::invalid_argument; environments and indices that do not exist std::out_of_range.
class ReplayMemory {
 public:
  /// Throws std::invalid_argument for a setting out of its range, OutOfMemory for too much.
  explicit ReplayMemory(ReplayConfig config);
  ~ReplayMemory();

  const ReplayConfig& config() const noexcept { return config_; }

  /// Stores the first frame of a new episode in each of `envs`. An episode that is still open
  /// there is closed as interrupted: its windows that are not complete never will be.
  void begin(std::span<const std::int64_t> envs, FrameRows frames);

  /// Stores what an action in each of `envs` led to, in the order of the rows.
  void append(const StepRows& steps);

  /// The current stack of each of `envs` into the rows of `target`. Throws where no episode was
  /// begun or where frames of the stack were overwritten.
  void stacks_into(std::span<const std::int64_t> envs, const StackTarget& target) const;

  /// Whether the current stack of each of `envs` reaches back before its episode: 0 or 1.
  void needs_padding_into(std::span<const std::int64_t> envs, std::uint8_t* target) const;

  /// Draws `target.rows` transitions, uniformly and with replacement, into the caller's memory.
  /// Throws std::invalid_argument with the reason where none can be drawn.
  void sample_into(const BatchTarget& target);

  /// Transitions that were drawn and are still to be copied. While one lives they stay stored:
  /// begin and append wait for its end. It may be moved to, used and destroyed by any thread, but
  /// not by one that writes to the memory before, which would wait for itself.
  class Drawn {
   public:
    std::size_t rows() const noexcept { return slots_.size(); }

    /// Copies some of the rows to the same rows of the target. Threads may share the rows out.
    void gather(std::size_t first, std::size_t count) const;

   private:
    friend class ReplayMemory;
    explicit Drawn(const ReplayMemory& memory, const BatchTarget& target)
        : memory_(&memory), target_(target), slots_(target.rows), lock_(memory.mutex_) {}

    const ReplayMemory* memory_;
    BatchTarget target_;
    std::vector<Slot> slots_;
    std::shared_lock<TurnstileMutex> lock_;
  };

  /// The first half of sample_into, to be finished by Drawn::gather. Throws as sample_into does.
  Drawn draw(const BatchTarget& target);

  /// The transitions at `indices`, into the caller's memory.
  void gather_into(std::span<const std::int64_t> indices, const BatchTarget& target) const;

  /// The same into a batch of their own.
  Batch sample(std::int64_t batch_size, StackLayout layout);
  Batch gather(std::span<const std::int64_t> indices, StackLayout layout) const;

  /// Draws as sample_into does, from the same generator, but copies no frames: for whoever keeps
  /// frames elsewhere as well.
  void sample_slots_into(const SlotBatchTarget& target);

  /// The slot of the newest frame of each of `envs`, -1 where it was overwritten.
  void newest_slots_into(std::span<const std::int64_t> envs, std::int64_t* target) const;

  /// The frames in `slots`, as stacks of one, into the rows of `target`.
  void frames_into(std::span<const std::int64_t> slots, const StackTarget& target) const;

  /// Every index that can be drawn, ascending.
  std::vector<std::int64_t> valid_indices() const;

  std::size_t num_drawable() const;
  std::size_t num_frames() const;

  /// Ages of the stored frames; see WriteOrder. Throws std::invalid_argument for a fraction that is
  /// none, or where nothing is stored.
  std::vector<std::uint64_t> age_quantiles(std::span<const double> fractions) const;

  /// What the full memory takes, in bytes, whatever the frames are.
  std::size_t nbytes() const;

  /// What the frames that are stored now take, and what is known of them.
  std::size_t nbytes_now() const;

  /// What one of them takes by itself, in bytes; 0 where none is stored.
  double frame_nbytes_mean() const;

  /// Compares the incremental structures with what the rules give from scratch, and all links
  /// with each other; std::logic_error names the first slot that is wrong. O(capacity).
  void check_invariants() const;

  /// Writes everything to a file, the generator and open episodes included, so that the loaded
  /// memory continues exactly as this one would have. Appending waits until it is done, and so
  /// does every call that comes behind a waiting append. The file is complete or not there at
  /// every moment; see SnapshotWriter for what is thrown.
  void save(const std::string& path) const;

  /// The same with all but the small parts in the folder of chunks `folder`, where what the
  /// snapshot `previous`, if it can be read, has in common with this one is not written again,
  /// but for the chunks named in `damaged`. Returns the names of the chunks that were written.
  /// Nothing is synced.
  std::vector<std::string> save_in_chunks(const std::string& path, const std::string& folder,
                                          const std::string& previous,
                                          std::span<const std::string> damaged = {}) const;

  /// The settings of a saved memory, to look at before one is made with them. Throws SnapshotError.
  static ReplayConfig config_of(const std::string& path);

  /// The chunks of a snapshot. Throws SnapshotError where it is damaged.
  static std::vector<Chunk> chunks_of(const std::string& path);

  /// The names of those that are not in the folder as they were, each once. Contents are looked at
  /// for one of `turns` shares of the chunks: each has its turn. Throws as chunks_of does.
  static std::vector<std::string> damaged_chunks(const std::string& path,
                                                 const std::string& folder, std::uint64_t turn,
                                                 std::uint64_t turns);

  /// How a saved memory is to hold its frames, where not as it did.
  struct Place {
    std::optional<Storage> storage;
    std::string directory;
  };

  /// Reads such a file, with its chunks, if it has any, from `chunks`; in the directory it replaces
  /// what another memory may have left. Throws SnapshotError where it is damaged in any way,
  /// OutOfMemory where its capacity is too much for this machine.
  static std::unique_ptr<ReplayMemory> load(const std::string& path, const Place& place,
                                            const std::string& chunks = "");

  /// Leaves a memory in a directory so that open finds it, through a power cut too, until it next
  /// changes; one without does nothing. Throws std::system_error.
  void flush();

  /// Flushes and lets go of the frames and of the directory. All that would read or write frames
  /// throws std::invalid_argument from then on. The destructor does the same but cannot complain.
  void close();

  /// The memory that was left in a directory. Throws SnapshotError where none was, or where its
  /// files are damaged, std::system_error where another process is at work there.
  static std::unique_ptr<ReplayMemory> open(const std::string& directory);

 private:
  friend struct ReplayMemoryTest;  // evicts frames anywhere, not just the oldest

  enum class Phase : std::uint8_t { kNotBegun = 0, kOpen = 1, kEnded = 2 };

  struct Env {
    Slot newest = kNoSlot;     // its newest frame; none before begin or once it was evicted
    std::uint16_t age = 0;     // of the newest frame, kept when that is evicted
    Phase phase = Phase::kNotBegun;
    std::uint64_t named_by = 0;  // the last call that named it, to find names given twice
  };

  /// One transition, looked up and ready to be copied.
  struct Window {
    std::int32_t action;
    float reward;
    float discount;
    bool one_step;  // the next state is frames 1 to stack; else it is later_frames
    std::array<Slot, kMaxStack + 1> frames;
    std::array<Slot, kMaxStack> later_frames;
  };

  ReplayMemory(ReplayConfig config, std::unique_ptr<Folder> folder, bool keep);
  void check_open() const;
  void prepare_to_write(std::span<const std::int64_t> envs);
  void flush_frames();

  std::size_t stack() const noexcept { return static_cast<std::size_t>(config_.stack); }
  std::size_t stored() const noexcept { return order_.num_stored(); }  // in the first slots
  std::size_t capacity() const noexcept { return static_cast<std::size_t>(config_.capacity); }
  const Env& env_at(std::int64_t number) const;
  void check_named_once(std::span<const std::int64_t> envs);

  Slot store_frame(std::uint32_t env, std::uint16_t age, const std::byte* frame);
  void append_row(const StepRows& steps, std::size_t row);
  void complete_windows(Slot newest_start);
  void evict(Slot slot);
  void add_drawable(Slot slot);
  void remove_drawable(Slot slot);

  bool stack_can_be_read(Slot slot) const noexcept;
  bool stack_can_be_drawn(Slot slot) const noexcept;
  bool window_is_complete(Slot slot) const noexcept;
  bool can_be_drawn(Slot slot) const noexcept;

  void draw_slots(std::span<Slot> slots);
  bool shares_frames(const BatchTarget& target) const noexcept;
  void check_target(const BatchTarget& target) const;
  std::string why_nothing_can_be_drawn() const;
  void look_up(Slot slot, Window& window) const noexcept;
  void read_ahead(std::span<const Slot> slots) const noexcept;
  BufferPool::Buffer scratch_for(StackLayout layout) const;
  void prefetch_early(const Window& window) const noexcept;
  void prefetch(const Window& window) const noexcept;
  void gather_rows(std::span<const Slot> slots, const BatchTarget& target) const;
  Batch new_batch(std::size_t rows, StackLayout layout) const;
  void save_to(SnapshotWriter& writer) const;
  template <class Fill>
  void fill(Fill fill);
  void write_all_but_frames(SnapshotWriter& writer) const;
  static ReplayConfig read_config(SnapshotReader& reader);
  void read_all_but_frames(SnapshotReader& reader);
  void load_frames(SnapshotReader& reader);
  void load_raw_frames(SnapshotReader& reader);
  void load_groups(SnapshotReader& reader);
  void check_links(Slot slot) const;
  void check_envs() const;

  const ReplayConfig config_;
  const std::shared_ptr<BufferPool> pool_;
  const std::vector<double> discount_powers_;  // discount^0 to discount^n_step

  mutable TurnstileMutex mutex_;  // shared to read what follows, exclusive to change it
  std::unique_ptr<Folder> folder_;      // null where the frames are in memory
  std::unique_ptr<FrameStore> store_;   // null once the memory is closed
  bool index_is_right_ = false;         // of the folder
  std::vector<SlotRecord> records_;  // by slot
  std::vector<Slot> drawable_;       // in no order; each slot's record knows its position
  std::vector<Env> envs_;
  WriteOrder order_;
  std::uint64_t calls_ = 0;  // of begin and append

  mutable std::mutex rng_mutex_;  // guards the generator; taken inside mutex_
  CounterRng rng_;
};

}  // namespace fastdqn
