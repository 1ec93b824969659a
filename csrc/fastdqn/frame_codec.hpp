#pragma once
// What changed from one frame to another, in few bytes, for stores that keep changes.
//
// A change is the exclusive or of two frames, of which nearly all bytes are zero. It is written as
// a tree of bitmaps: which pieces of 512 bytes hold anything, which blocks of 64 bytes of those,
// which words of 8 bytes, which bytes; then the bytes themselves. A block that is a few runs of
// equal bytes (a background that changes its colour) is written as the exclusive or of neighbours.
//
//   change   nothing, where the frames are equal; else
//            kind u8: 0 a tree, 1 a tree with runs, 2 the bytes as they are
//   tree     a bit for each 512 bytes: not all zero             (whole bytes)
//            a byte of bits for each such piece: its blocks     that are not all zero
//            with runs, another byte each: which of the blocks are exclusive ors of neighbours
//            a byte of bits for each such block: its words
//            a byte of bits for each such word: its bytes
//            the bytes
//
// A whole frame, a key, is its change from zeros; 16 is added to the kind where each row is first
// replaced by its exclusive or with the row above.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "fastdqn/geometry.hpp"

namespace fastdqn {

/// Codes frames of one size. All instruction sets give and take the same bytes.
///
/// Thread-safe. Wherever codes are read, kCodeSlack more bytes are readable behind them, whatever
/// they hold.
class FrameCodec {
 public:
  enum class InstructionSet : std::uint8_t { kPortable, kBmi2, kAvx512 };
  static InstructionSet best_instruction_set() noexcept;

  static constexpr std::size_t kCodeSlack = 64;

  /// The instruction set has to be one that the processor has.
  FrameCodec(const FrameGeometry& frame, InstructionSet instruction_set);

  std::size_t frame_nbytes() const noexcept { return frame_nbytes_; }

  /// The longest code. Writing one takes kCodeSlack more bytes behind it.
  std::size_t code_nbytes() const noexcept { return frame_nbytes_ + 1; }

  /// Memory to write codes with, for one thread at a time.
  using Workspace = std::vector<std::byte>;
  Workspace new_workspace() const { return Workspace(workspace_nbytes_); }

  /// The change from `before` to `after` into `code`; returns how many bytes that took.
  std::size_t encode(const std::byte* before, const std::byte* after, std::byte* code,
                     Workspace& workspace) const noexcept;

  /// Makes `before` of `after`, or `after` of `before`, in place.
  void apply(const std::byte* code, std::size_t nbytes, std::byte* frame) const noexcept;

  /// The same for a key and a frame from nothing.
  std::size_t encode_key(const std::byte* frame, std::byte* code,
                         Workspace& workspace) const noexcept;
  void decode_key(const std::byte* code, std::size_t nbytes, std::byte* frame) const noexcept;

  /// Whether the code keeps to its own length and to that of a frame, and so can be read.
  bool is_valid(const std::byte* code, std::size_t nbytes) const noexcept;

 private:
  const std::size_t frame_nbytes_;
  const std::size_t row_nbytes_;  // 0 where a frame has no rows
  const std::size_t num_blocks_;
  const std::size_t num_pieces_;
  const std::size_t workspace_nbytes_;
  const InstructionSet instruction_set_;
};

}  // namespace fastdqn
