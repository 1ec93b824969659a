#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "fastdqn/backing.hpp"
#include "fastdqn/frame_codec.hpp"
#include "fastdqn/frame_group.hpp"
#include "fastdqn/geometry.hpp"

namespace fastdqn {

class SnapshotReader;
class SnapshotWriter;

/// How frames are held. The values are written to snapshots.
enum class Storage : std::uint8_t {
  kRaw = 0,         // one behind the other, as they are
  kCompressed = 1,  // as what changed from frame to frame, without loss
};

/// The section of a snapshot that holds frames as they are, in the order of their slots.
inline constexpr const char* kRawFramesSection = "frames";

/// The section that holds them as groups: of each this, the slots of its frames (kNoSlot for one
/// that was forgotten), and the group itself.
inline constexpr const char* kGroupsSection = "groups";
struct SavedGroup {
  std::uint32_t nbytes;
  std::uint32_t frames;
  std::uint32_t is_open;  // its environment's next frame joins it
};

/// Where frames live. A slot is a place for one frame; which slots hold one is the owner's to know.
///
/// reserve, write and release exclude all other calls; those run side by side.
class FrameStore {
 public:
  virtual ~FrameStore() = default;
  FrameStore(const FrameStore&) = delete;
  FrameStore& operator=(const FrameStore&) = delete;

  std::size_t capacity() const noexcept { return capacity_; }
  std::size_t frame_nbytes() const noexcept { return frame_nbytes_; }

  /// What the store takes with every slot in use, whatever the frames are.
  virtual std::size_t nbytes() const noexcept = 0;

  /// What it takes now, with frames in `num_frames` slots, and how much of that is the frames' own.
  virtual std::size_t nbytes_now(std::size_t num_frames) const noexcept = 0;
  virtual std::size_t frames_nbytes(std::size_t num_frames) const noexcept = 0;

  /// Makes sure that one frame of each of `envs` can be written: everything that can fail fails
  /// here, with OutOfMemory or std::system_error, and nothing has changed.
  virtual void reserve(std::span<const std::int64_t> envs) = 0;

  /// Stores the next frame of an environment in a slot that holds none.
  virtual void write(Slot slot, std::uint32_t env, const std::byte* source) noexcept = 0;

  /// Forgets the frame of a slot, if it holds one.
  virtual void release(Slot slot) noexcept = 0;

  /// Copies frames to places `stride` bytes apart; kNoSlot is a frame of zeros. Fastest where they
  /// follow each other in their episode. `next` is the frame that will be read after these, if that
  /// is known, else kNoSlot.
  virtual void read(const Slot* slots, std::size_t count, std::byte* target, std::ptrdiff_t stride,
                    Slot next) const noexcept = 0;

  /// Where to find frames, for readers that take several apart at once: in place, or in `scratch`,
  /// which has room for `count` frames. Valid until the store or the scratch changes.
  virtual void find(const Slot* slots, std::size_t count, std::byte* scratch,
                    const std::byte** frames) const noexcept = 0;

  /// Whether find needs its scratch.
  virtual bool needs_scratch() const noexcept = 0;

  /// Three steps that take the waiting out of reading frames soon, each of which builds on what the
  /// one before has asked for: when a slot is drawn, and two rows and one row before its turn.
  virtual void prefetch_slot(Slot slot) const noexcept = 0;
  virtual void prefetch_early(const Slot* slots, std::size_t count) const noexcept = 0;
  virtual void prefetch(const Slot* slots, std::size_t count) const noexcept = 0;

  /// Writes the frames of slots 0 to num_frames - 1 to sections of a snapshot, in the store's own
  /// form.
  virtual void save(SnapshotWriter& writer, std::size_t num_frames) const = 0;

  /// Leaves everything in the backing, safe from a power cut, and writes to a snapshot how to find
  /// it there. Excludes all other calls. Throws std::system_error.
  virtual void save_index(SnapshotWriter& writer) = 0;

  /// The opposite, for a new store on a backing that has kept its bytes. Throws SnapshotError where
  /// they cannot be what was saved.
  virtual void load_index(SnapshotReader& reader, std::size_t num_frames) = 0;

  /// Asks for frames of a backing that is far, and does not wait for them.
  virtual void read_ahead(const Slot* slots, std::size_t count) const noexcept = 0;
  bool is_far() const noexcept { return backing_->is_far(); }

  /// Puts the frames of a valid group into slots that hold none (kNoSlot: is not wanted). A group
  /// of an environment whose next frame is to join it is `open_in` that one, which has no other.
  /// Throws as reserve does.
  virtual void adopt(const FrameGroup& group, std::size_t nbytes, const Slot* slots,
                     std::optional<std::uint32_t> open_in) = 0;

  /// What groups are coded with.
  virtual const FrameCodec& codec() const noexcept = 0;

  /// Compares what the store keeps about its frames with itself; std::logic_error says what is
  /// wrong. O(capacity).
  virtual void check_invariants(std::size_t num_frames) const = 0;

 protected:
  FrameStore(std::size_t capacity, std::size_t frame_nbytes,
             std::unique_ptr<Backing> backing) noexcept
      : capacity_(capacity), frame_nbytes_(frame_nbytes), backing_(std::move(backing)) {}

  Backing& backing() const noexcept { return *backing_; }

 private:
  const std::size_t capacity_;
  const std::size_t frame_nbytes_;
  const std::unique_ptr<Backing> backing_;
};

/// Throws OutOfMemory or std::system_error where the backing does.
std::unique_ptr<FrameStore> raw_store(std::size_t capacity, const FrameGeometry& frame,
                                      std::unique_ptr<Backing> backing);

/// Throws std::invalid_argument for more or larger frames than it can tell apart.
std::unique_ptr<FrameStore> compressed_store(std::size_t capacity, const FrameGeometry& frame,
                                             std::size_t num_envs,
                                             std::unique_ptr<Backing> backing,
                                             FrameCodec::InstructionSet instruction_set);

}  // namespace fastdqn
