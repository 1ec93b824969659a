#include "fastdqn/frame_stack.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>

#if defined(__GNUC__) || defined(_MSC_VER)
#define FASTDQN_RESTRICT __restrict
#else
#define FASTDQN_RESTRICT
#endif

namespace fastdqn {

namespace {

using Planes = std::array<const std::byte*, static_cast<std::size_t>(kMaxStack) + 1>;

/// out[i * 4 + k] = planes[k][i] for four frames. Written so that compilers turn it into the
/// baseline's byte interleaving instructions.
template <typename Element>
void interleave_four(const Element* FASTDQN_RESTRICT a, const Element* FASTDQN_RESTRICT b,
                     const Element* FASTDQN_RESTRICT c, const Element* FASTDQN_RESTRICT d,
                     Element* FASTDQN_RESTRICT out, std::size_t elements) noexcept {
  for (std::size_t i = 0; i < elements; ++i) {
    out[4 * i + 0] = a[i];
    out[4 * i + 1] = b[i];
    out[4 * i + 2] = c[i];
    out[4 * i + 3] = d[i];
  }
}

template <typename Element>
void interleave(const std::byte* const* planes, std::size_t count, std::byte* target,
                std::size_t begin, std::size_t end) noexcept {
  const auto plane = [&](std::size_t k) {
    return reinterpret_cast<const Element*>(planes[k]) + begin;
  };
  Element* out = reinterpret_cast<Element*>(target) + begin * count;
  if (count == 4) {
    interleave_four(plane(0), plane(1), plane(2), plane(3), out, end - begin);
    return;
  }
  for (std::size_t k = 0; k < count; ++k) {
    const Element* in = plane(k);
    for (std::size_t i = 0; i < end - begin; ++i) out[i * count + k] = in[i];
  }
}

/// Interleaves `count` of the frames for each of the `rows`, the later rows one frame on.
/// In blocks, so that what one row read is still in the cache for the next; small ones, so that
/// all frames are asked for from the start.
template <typename Element>
void interleave_rows(const std::byte* const* planes, std::size_t count,
                     std::span<std::byte* const> rows, std::size_t elements) noexcept {
  constexpr std::size_t kBlock = 256;
  for (std::size_t begin = 0; begin < elements; begin += kBlock) {
    const std::size_t end = std::min(begin + kBlock, elements);
    for (std::size_t row = 0; row < rows.size(); ++row) {
      interleave<Element>(planes + row, count, rows[row], begin, end);
    }
  }
}

void write_channels_last(const FrameStore& store, const FrameGeometry& frame, const Slot* slots,
                         std::size_t count, std::span<std::byte* const> rows,
                         std::byte* scratch) noexcept {
  Planes planes;
  store.find(slots, count + rows.size() - 1, scratch, planes.data());
  const std::size_t elements = frame.elements();
  switch (info(frame.dtype).size) {
    case 1: return interleave_rows<std::uint8_t>(planes.data(), count, rows, elements);
    case 2: return interleave_rows<std::uint16_t>(planes.data(), count, rows, elements);
    case 4: return interleave_rows<std::uint32_t>(planes.data(), count, rows, elements);
    default: return interleave_rows<std::uint64_t>(planes.data(), count, rows, elements);
  }
}

/// Whether `shape` with `strides` is C-contiguous where neighbouring elements are `step` apart.
bool is_contiguous(std::span<const std::int64_t> shape, std::span<const std::int64_t> strides,
                   std::int64_t step) noexcept {
  for (std::size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && strides[i] != step) return false;
    step *= shape[i];
  }
  return true;
}

/// Whether blocks of `nbytes` at all combinations of two strides keep clear of each other.
bool keep_apart(std::int64_t count_a, std::int64_t stride_a, std::int64_t count_b,
                std::int64_t stride_b, std::int64_t nbytes) noexcept {
  stride_a = count_a > 1 ? std::abs(stride_a) : 0;
  stride_b = count_b > 1 ? std::abs(stride_b) : 0;
  if (stride_a > stride_b) {
    std::swap(stride_a, stride_b);
    std::swap(count_a, count_b);
  }
  const std::int64_t inner = nbytes + (count_a - 1) * stride_a;
  return (count_a <= 1 || stride_a >= nbytes) && (count_b <= 1 || stride_b >= inner);
}

/// The pieces that a target is made of: `nbytes` at every combination of two strides.
struct Pieces {
  std::ptrdiff_t rows;
  std::ptrdiff_t frames;
  std::ptrdiff_t frame_stride;
  std::ptrdiff_t nbytes;
};

Pieces pieces(const StackTarget& target, std::size_t rows, std::size_t stack,
              const FrameGeometry& frame) noexcept {
  const auto nbytes = static_cast<std::ptrdiff_t>(frame.nbytes());
  const auto frames = static_cast<std::ptrdiff_t>(stack);
  if (target.layout == StackLayout::kPlanar) {
    return {static_cast<std::ptrdiff_t>(rows), frames, target.frame_stride, nbytes};
  }
  return {static_cast<std::ptrdiff_t>(rows), 1, 0, frames * nbytes};
}

/// The offsets from its data at which a target begins and ends.
std::pair<std::ptrdiff_t, std::ptrdiff_t> range(const StackTarget& target,
                                                const Pieces& parts) noexcept {
  const std::ptrdiff_t to_last_row = (parts.rows - 1) * target.row_stride;
  const std::ptrdiff_t to_last_frame = (parts.frames - 1) * parts.frame_stride;
  const std::ptrdiff_t none = 0;
  return {std::min(none, to_last_row) + std::min(none, to_last_frame),
          std::max(none, to_last_row) + std::max(none, to_last_frame) + parts.nbytes};
}

}  // namespace

bool resolve_stack(const SlotRecord* records, Slot newest, std::size_t stack, Padding padding,
                   Slot* slots) noexcept {
  Slot slot = newest;
  for (std::size_t k = stack; k-- > 0;) {
    slots[k] = slot;
    if (k == 0) break;
    const SlotRecord& record = records[slot];
    if (record.age == 0) {
      std::fill(slots, slots + k, padding == Padding::kRepeat ? slot : kNoSlot);
      break;
    }
    if (record.previous == kNoSlot) return false;
    slot = record.previous;
  }
  return true;
}

StackTarget contiguous_target(std::byte* data, const FrameGeometry& frame, std::size_t frames,
                              StackLayout layout) noexcept {
  const std::size_t nbytes = frame.nbytes();
  return {data, static_cast<std::ptrdiff_t>(frames * nbytes), static_cast<std::ptrdiff_t>(nbytes),
          layout};
}

StackTarget stack_target(std::byte* data, std::span<const std::int64_t> shape,
                         std::span<const std::int64_t> strides, const FrameGeometry& frame,
                         std::size_t stack, std::size_t rows, const char* name) {
  const auto stack_size = static_cast<std::int64_t>(stack);
  std::vector<std::int64_t> expected{static_cast<std::int64_t>(rows), stack_size};
  expected.insert(expected.end(), frame.shape.begin(), frame.shape.end());
  if (!std::equal(shape.begin(), shape.end(), expected.begin(), expected.end())) {
    throw std::invalid_argument(std::string(name) + " has shape " + shape_text(shape) +
                                "; expected [rows, stack, *frame_shape] = " +
                                shape_text(expected));
  }
  const std::span frame_strides = strides.subspan(2);
  const auto element_nbytes = static_cast<std::int64_t>(info(frame.dtype).size);
  const auto frame_nbytes = static_cast<std::int64_t>(frame.nbytes());
  if (is_contiguous(frame.shape, frame_strides, element_nbytes) &&
      keep_apart(shape[0], strides[0], stack_size, strides[1], frame_nbytes)) {
    return {data, strides[0], strides[1], StackLayout::kPlanar};
  }
  if (is_contiguous(frame.shape, frame_strides, element_nbytes * stack_size) &&
      strides[1] == element_nbytes && strides[0] % element_nbytes == 0 &&
      keep_apart(shape[0], strides[0], 1, 0, frame_nbytes * stack_size) &&
      reinterpret_cast<std::uintptr_t>(data) % info(frame.dtype).size == 0) {
    return {data, strides[0], strides[1], StackLayout::kChannelsLast};
  }
  throw std::invalid_argument(
      std::string(name) + " has strides " + shape_text(strides) + " bytes for shape " +
      shape_text(shape) +
      "; expected each frame C-contiguous and apart from the others (planar), or each row "
      "C-contiguous and aligned as [*frame_shape, stack] (channels last)");
}

bool is_window(const StackTarget& states, const StackTarget& next_states, std::size_t rows,
               std::size_t stack, const FrameGeometry& frame) noexcept {
  return states.layout == StackLayout::kPlanar && next_states.layout == StackLayout::kPlanar &&
         states.row_stride == next_states.row_stride &&
         states.frame_stride == next_states.frame_stride &&
         next_states.data == states.data + states.frame_stride &&
         keep_apart(static_cast<std::int64_t>(rows), states.row_stride,
                    static_cast<std::int64_t>(stack) + 1, states.frame_stride,
                    static_cast<std::int64_t>(frame.nbytes()));
}

bool share_memory(const StackTarget& a, const StackTarget& b, std::size_t rows, std::size_t stack,
                  const FrameGeometry& frame) noexcept {
  if (rows == 0) return false;
  const Pieces parts = pieces(a, rows, stack, frame);
  const auto [begin_a, end_a] = range(a, parts);
  const auto [begin_b, end_b] = range(b, pieces(b, rows, stack, frame));
  const auto distance = static_cast<std::ptrdiff_t>(reinterpret_cast<std::intptr_t>(b.data) -
                                                    reinterpret_cast<std::intptr_t>(a.data));
  if (end_a <= distance + begin_b || distance + end_b <= begin_a) return false;
  if (a.layout != b.layout || a.row_stride != b.row_stride || a.frame_stride != b.frame_stride) {
    return true;
  }
  // Pieces of both that lie `frames` and `rows` apart in the array meet if that makes up for the
  // distance between the two: for each number of frames only the nearest numbers of rows can.
  for (std::ptrdiff_t frames = 1 - parts.frames; frames < parts.frames; ++frames) {
    const std::ptrdiff_t rest = distance - frames * parts.frame_stride;
    const std::ptrdiff_t nearest = parts.rows == 1 ? 0 : rest / a.row_stride;
    for (std::ptrdiff_t row = nearest - 1; row <= nearest + 1; ++row) {
      if (std::abs(row) < parts.rows && std::abs(rest - row * a.row_stride) < parts.nbytes) {
        return true;
      }
    }
  }
  return false;
}

void write_stack(const FrameStore& store, const FrameGeometry& frame, const Slot* slots,
                 std::size_t count, const StackTarget& target, std::size_t row, std::byte* scratch,
                 Slot next) noexcept {
  std::byte* out = target.row(row);
  if (target.layout == StackLayout::kPlanar) {
    store.read(slots, count, out, target.frame_stride, next);
  } else {
    write_channels_last(store, frame, slots, count, {&out, 1}, scratch);
  }
}

void write_adjoining_stacks(const FrameStore& store, const FrameGeometry& frame,
                            const Slot* slots, std::size_t count, const StackTarget& first,
                            const StackTarget& second, std::size_t row,
                            std::byte* scratch) noexcept {
  const std::array<std::byte*, 2> rows{first.row(row), second.row(row)};
  write_channels_last(store, frame, slots, count, rows, scratch);
}

}  // namespace fastdqn
