#pragma once
// A group: consecutive frames of one environment, as one of them and what changed between all.
//
//   lengths   of the parts that follow, one for each frame (u16, u32 for large frames)
//   changes   to frames 1, 2, ... up to the key
//   key       the frame in the middle
//   changes   to the frames behind it
//
// A change is an exclusive or and works in both directions, so that from the key in the middle no
// frame is farther away than half a group.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "fastdqn/frame_codec.hpp"

namespace fastdqn {

/// The most frames of a group. One whose changes take half a frame is full before: there the next
/// key costs little, and every change that need not be undone saves time.
inline constexpr std::size_t kGroupFrames = 32;

/// A group as it lies in somebody's memory, with FrameCodec::kCodeSlack readable bytes behind it.
class FrameGroup {
 public:
  FrameGroup(const FrameCodec& codec, std::size_t frames, const std::byte* data) noexcept
      : codec_(codec), frames_(frames), data_(data) {}

  static std::size_t key_of(std::size_t frames) noexcept { return frames / 2; }
  static std::size_t length_nbytes(const FrameCodec& codec) noexcept {
    return codec.code_nbytes() <= 0xFFFF ? 2 : 4;
  }
  /// The most bytes that a group of so many frames takes where the changes in it have `changes`.
  static std::size_t nbytes_at_most(const FrameCodec& codec, std::size_t frames,
                                    std::size_t changes) noexcept {
    return frames * length_nbytes(codec) + changes + codec.code_nbytes();
  }
  static std::size_t max_nbytes(const FrameCodec& codec) noexcept {
    return nbytes_at_most(codec, kGroupFrames, full_changes(codec) + codec.code_nbytes());
  }
  static std::size_t full_changes(const FrameCodec& codec) noexcept {
    return codec.frame_nbytes() / 2;
  }

  std::size_t frames() const noexcept { return frames_; }
  const std::byte* data() const noexcept { return data_; }

  /// Whether all of it lies in exactly `nbytes` and can be read.
  bool is_valid(std::size_t nbytes) const noexcept;

  /// Frames `first` to `first + count - 1` to places `stride` bytes apart.
  void read(std::size_t first, std::size_t count, std::byte* target,
            std::ptrdiff_t stride) const noexcept;

  /// Asks for what read needs: first the lengths, then, once they are there, the rest.
  void prefetch_lengths() const noexcept;
  void prefetch(std::size_t first, std::size_t count) const noexcept;

 private:
  const FrameCodec& codec_;
  std::size_t frames_;
  const std::byte* data_;
};

/// A group that still grows, held with its newest frame. Not thread-safe while it does.
class OpenGroup {
 public:
  std::size_t frames() const noexcept { return frames_; }
  std::size_t nbytes() const noexcept { return newest_.capacity() + codes_.capacity(); }
  std::size_t used_nbytes() const noexcept { return used_ + (frames_ > 0 ? newest_.size() : 0); }
  bool is_full(const FrameCodec& codec) const noexcept {
    return frames_ == kGroupFrames || used_ >= FrameGroup::full_changes(codec);
  }

  /// Makes room for one more frame; can fail, and then has changed nothing.
  void reserve(const FrameCodec& codec);

  /// The most bytes that the group takes as a FrameGroup with one more frame.
  std::size_t nbytes_at_most(const FrameCodec& codec) const noexcept {
    return FrameGroup::nbytes_at_most(codec, frames_ + 1, used_ + codec.code_nbytes());
  }
  std::size_t nbytes_at_most_now(const FrameCodec& codec) const noexcept {
    return FrameGroup::nbytes_at_most(codec, frames_, used_);
  }
  /// Whether one more frame may fill it.
  bool may_be_full(const FrameCodec& codec) const noexcept {
    return frames_ + 1 == kGroupFrames ||
           used_ + codec.code_nbytes() >= FrameGroup::full_changes(codec);
  }

  void add(const FrameCodec& codec, const std::byte* frame,
           FrameCodec::Workspace& workspace) noexcept;
  void clear() noexcept { frames_ = used_ = 0; }

  void read(const FrameCodec& codec, std::size_t first, std::size_t count, std::byte* target,
            std::ptrdiff_t stride) const noexcept;

  /// Writes it as a FrameGroup, which takes nbytes_at_most and FrameCodec::kCodeSlack bytes of
  /// room; returns how many it took. `frame` is a frame's room for its own use.
  std::size_t write(const FrameCodec& codec, std::byte* target, std::byte* frame,
                    FrameCodec::Workspace& workspace) const noexcept;

 private:
  std::size_t frames_ = 0;
  std::size_t used_ = 0;  // bytes of codes_
  std::array<std::uint32_t, kGroupFrames> lengths_{};
  std::vector<std::byte> codes_;   // the changes to frames 1, 2, ...
  std::vector<std::byte> newest_;  // frame frames_ - 1
};

}  // namespace fastdqn
