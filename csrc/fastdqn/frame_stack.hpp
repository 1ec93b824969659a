#pragma once
// Stacks: which of the last k frames belong to an episode, what stands in for the ones before its
// first, and how they are laid out. Acting and sampling both come through here, so that the
// network is trained on byte for byte what it saw when it acted.

#include <cstddef>
#include <cstdint>
#include <span>

#include "fastdqn/frame_store.hpp"
#include "fastdqn/geometry.hpp"

namespace fastdqn {

/// What stands for the frames before an episode's first. The values are written to snapshots.
enum class Padding : std::uint8_t {
  kZero = 0,    // zeros
  kRepeat = 1,  // the first frame
  kReject = 2,  // never drawn; zeros where the policy still asks for the stack
};

/// What is known of one stored frame and of the step that was taken from it.
struct SlotRecord {
  static constexpr std::uint8_t kHasAction = 1;
  static constexpr std::uint8_t kTerminated = 2;
  static constexpr std::uint8_t kTruncated = 4;
  static constexpr std::uint8_t kLifeLost = 8;

  Slot previous = kNoSlot;  // the frame before in the episode; none at its start or once evicted
  Slot next = kNoSlot;      // the frame that the step led to
  std::int32_t action = 0;
  float reward = 0.0F;       // as it was given: clipped when it is read
  Slot position = kNoSlot;   // in the list of what can be drawn; none if it cannot be
  std::uint32_t env = 0;
  std::uint16_t age = 0;     // frames before it in its episode, evicted ones included; saturates
  std::uint8_t flags = 0;
  std::uint8_t unused = 0;

  bool has_action() const noexcept { return (flags & kHasAction) != 0; }
  bool ends_episode() const noexcept { return (flags & (kTerminated | kTruncated)) != 0; }
  bool is_terminal() const noexcept { return (flags & (kTerminated | kLifeLost)) != 0; }
  bool ends_window() const noexcept { return ends_episode() || is_terminal(); }
};
static_assert(sizeof(SlotRecord) == 28);

/// The slots of the `stack` frames up to `newest`, oldest first, into `slots`; kNoSlot is a frame
/// of zeros. False, with `slots` undefined, where a frame of the episode was evicted: that is not
/// the same as absent and is never padded.
bool resolve_stack(const SlotRecord* records, Slot newest, std::size_t stack, Padding padding,
                   Slot* slots) noexcept;

enum class StackLayout : std::uint8_t {
  kPlanar,        // frame by frame
  kChannelsLast,  // element by element, the stack's frames side by side
};

/// The caller's memory for rows of stacks. Strides are in bytes.
struct StackTarget {
  std::byte* data;
  std::ptrdiff_t row_stride;
  std::ptrdiff_t frame_stride;  // planar only
  StackLayout layout;

  std::byte* row(std::size_t number) const noexcept {
    return data + static_cast<std::ptrdiff_t>(number) * row_stride;
  }
  StackTarget from_row(std::size_t number) const noexcept {
    return {row(number), row_stride, frame_stride, layout};
  }
};

/// Rows of stacks of `frames` frames without a gap in either layout.
StackTarget contiguous_target(std::byte* data, const FrameGeometry& frame, std::size_t frames,
                              StackLayout layout) noexcept;

/// Reads the layout of an array [rows, stack, *frame.shape] off its strides (bytes): planar where
/// each frame is C-contiguous and none overlap, else channels-last where each row is C-contiguous
/// as [*frame.shape, stack]. std::invalid_argument names the array `name` and what is wrong.
StackTarget stack_target(std::byte* data, std::span<const std::int64_t> shape,
                         std::span<const std::int64_t> strides, const FrameGeometry& frame,
                         std::size_t stack, std::size_t rows, const char* name);

/// Whether the two are the views [:, :-1] and [:, 1:] of one planar array [rows, stack + 1, ...]
/// without overlaps, so that each row is one run of stack + 1 frames.
bool is_window(const StackTarget& states, const StackTarget& next_states, std::size_t rows,
               std::size_t stack, const FrameGeometry& frame) noexcept;

/// Whether any byte belongs to both targets of `rows` stacks. Exact where both have one layout and
/// strides; others share memory if their address ranges do.
bool share_memory(const StackTarget& a, const StackTarget& b, std::size_t rows, std::size_t stack,
                  const FrameGeometry& frame) noexcept;

/// Copies the frames of one stack of `count` frames into a row of `target`. For channels-last rows
/// of a store that needs it, `scratch` has room for as many frames as there are slots. `next` is as
/// for FrameStore::read.
void write_stack(const FrameStore& store, const FrameGeometry& frame, const Slot* slots,
                 std::size_t count, const StackTarget& target, std::size_t row, std::byte* scratch,
                 Slot next = kNoSlot) noexcept;

/// The same for two channels-last stacks of `count` frames that are one frame apart: `slots` are
/// count + 1, and each frame is read once for both.
void write_adjoining_stacks(const FrameStore& store, const FrameGeometry& frame,
                            const Slot* slots, std::size_t count, const StackTarget& first,
                            const StackTarget& second, std::size_t row,
                            std::byte* scratch) noexcept;

}  // namespace fastdqn
