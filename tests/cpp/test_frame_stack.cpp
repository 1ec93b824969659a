// Which frames a stack has, and how they are laid out, against the obvious formulas.

#include "check.hpp"
#include "fastdqn/frame_stack.hpp"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <vector>

namespace {

using namespace fastdqn;

/// Frames 0, 1, 2, ... of one episode in slots of the same numbers.
std::vector<SlotRecord> episode(std::size_t frames) {
  std::vector<SlotRecord> records(frames);
  for (Slot slot = 0; slot < frames; ++slot) {
    records[slot].age = static_cast<std::uint16_t>(slot);
    if (slot > 0) records[slot].previous = slot - 1;
  }
  return records;
}

std::vector<Slot> resolved(const std::vector<SlotRecord>& records, Slot newest, std::size_t stack,
                           Padding padding) {
  std::vector<Slot> slots(stack);
  if (!resolve_stack(records.data(), newest, stack, padding, slots.data())) slots.clear();
  return slots;
}

void stacks_within_an_episode() {
  const auto records = episode(6);
  for (const Padding padding : {Padding::kZero, Padding::kRepeat, Padding::kReject}) {
    CHECK((resolved(records, 5, 4, padding) == std::vector<Slot>{2, 3, 4, 5}));
    CHECK((resolved(records, 3, 4, padding) == std::vector<Slot>{0, 1, 2, 3}));
    CHECK((resolved(records, 0, 1, padding) == std::vector<Slot>{0}));
  }
}

void padding_before_an_episode() {
  const auto records = episode(3);
  CHECK((resolved(records, 1, 4, Padding::kZero) == std::vector<Slot>{kNoSlot, kNoSlot, 0, 1}));
  CHECK((resolved(records, 1, 4, Padding::kReject) == std::vector<Slot>{kNoSlot, kNoSlot, 0, 1}));
  CHECK((resolved(records, 1, 4, Padding::kRepeat) == std::vector<Slot>{0, 0, 0, 1}));
  CHECK((resolved(records, 0, 3, Padding::kRepeat) == std::vector<Slot>{0, 0, 0}));
}

void evicted_is_not_absent() {
  auto records = episode(6);
  records[2].previous = kNoSlot;  // frame 1 was evicted
  for (const Padding padding : {Padding::kZero, Padding::kRepeat, Padding::kReject}) {
    CHECK(resolved(records, 4, 4, padding).empty());
    CHECK(resolved(records, 2, 2, padding).empty());
    CHECK((resolved(records, 4, 3, padding) == std::vector<Slot>{2, 3, 4}));
    CHECK((resolved(records, 2, 1, padding) == std::vector<Slot>{2}));
  }
}

/// The place of element i of frame k of a row, in elements from the row's beginning.
std::size_t place(StackLayout layout, std::size_t stack, std::size_t elements, std::size_t k,
                  std::size_t i) {
  return layout == StackLayout::kPlanar ? k * elements + i : i * stack + k;
}

/// Any bytes; the same for the same arguments.
std::byte noise(std::size_t slot, std::size_t i) {
  return static_cast<std::byte>((slot * 7919 + i * 104729 + (slot * i) % 251) >> 3);
}

void layouts_hold_the_same_elements(Storage storage, DType dtype, std::size_t elements,
                                    std::size_t stack) {
  const FrameGeometry frame{{static_cast<std::int64_t>(elements)}, dtype};
  const std::size_t size = info(dtype).size;
  const std::size_t nbytes = frame.nbytes();
  const auto store = storage == Storage::kRaw
                         ? raw_store(stack + 2, frame, anonymous_backing())
                         : compressed_store(stack + 2, frame, 1, anonymous_backing(),
                                            FrameCodec::best_instruction_set());
  std::vector<std::byte> pixels(nbytes);
  std::vector<std::vector<std::byte>> written;
  for (Slot slot = 0; slot < stack + 2; ++slot) {
    for (std::size_t i = 0; i < nbytes; ++i) pixels[i] = noise(slot, i);
    const std::int64_t env = 0;
    store->reserve({&env, 1});
    store->write(slot, 0, pixels.data());
    written.push_back(pixels);
  }
  std::vector<Slot> slots(stack + 1);
  for (std::size_t k = 0; k <= stack; ++k) slots[k] = static_cast<Slot>((k * 5 + 1) % (stack + 2));
  if (stack > 1) slots[0] = kNoSlot;

  const std::vector<std::byte> zeros(nbytes);
  std::vector<std::byte> scratch((stack + 1) * nbytes);
  const auto check_row = [&](const std::byte* row, const Slot* expected, StackLayout layout) {
    for (std::size_t k = 0; k < stack; ++k) {
      for (std::size_t i = 0; i < elements; ++i) {
        const auto& frame_k = expected[k] == kNoSlot ? zeros : written[expected[k]];
        CHECK(std::memcmp(row + place(layout, stack, elements, k, i) * size,
                          frame_k.data() + i * size, size) == 0);
      }
    }
  };
  constexpr std::size_t kRow = 1;  // and row 0 has to stay as it is
  for (const StackLayout layout : {StackLayout::kPlanar, StackLayout::kChannelsLast}) {
    std::vector<std::byte> one(2 * stack * nbytes, std::byte{77});
    std::vector<std::byte> other = one;
    const StackTarget first = contiguous_target(one.data(), frame, stack, layout);
    const StackTarget second = contiguous_target(other.data(), frame, stack, layout);
    write_stack(*store, frame, slots.data(), stack, first, kRow, scratch.data());
    check_row(first.row(kRow), slots.data(), layout);
    CHECK(std::count(one.begin(), one.begin() + first.row_stride, std::byte{77}) ==
          first.row_stride);
    if (layout == StackLayout::kPlanar) continue;
    one.assign(one.size(), std::byte{77});
    write_adjoining_stacks(*store, frame, slots.data(), stack, first, second, kRow,
                           scratch.data());
    check_row(first.row(kRow), slots.data(), layout);
    check_row(second.row(kRow), slots.data() + 1, layout);
  }
}

void layouts() {
  for (const DType dtype : {DType::kUint8, DType::kInt16, DType::kFloat32, DType::kFloat64}) {
    for (const std::size_t stack : {1U, 2U, 3U, 4U, 5U, 8U}) {
      // Around the widths of vectors and of the blocks that frames are taken apart in.
      for (const std::size_t elements : {1U, 15U, 16U, 17U, 255U, 256U, 257U, 600U}) {
        layouts_hold_the_same_elements(Storage::kRaw, dtype, elements, stack);
        layouts_hold_the_same_elements(Storage::kCompressed, dtype, elements, stack);
      }
    }
  }
  layouts_hold_the_same_elements(Storage::kRaw, DType::kUint8, 84 * 84, 4);
  layouts_hold_the_same_elements(Storage::kCompressed, DType::kUint8, 84 * 84, 4);
}

struct Array {
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
};

StackTarget target_of(const Array& array, const FrameGeometry& frame, std::size_t stack,
                      std::size_t rows) {
  alignas(16) static std::byte memory[16];
  return stack_target(memory, array.shape, array.strides, frame, stack, rows, "out");
}

void layouts_are_read_off_strides() {
  const FrameGeometry frame{{5, 3}, DType::kFloat32};
  const auto layout = [&](std::vector<std::int64_t> strides) {
    return target_of({{2, 4, 5, 3}, std::move(strides)}, frame, 4, 2).layout;
  };
  CHECK(layout({240, 60, 12, 4}) == StackLayout::kPlanar);
  CHECK(layout({300, 60, 12, 4}) == StackLayout::kPlanar);    // rows of a window
  CHECK(layout({60, 120, 12, 4}) == StackLayout::kPlanar);    // frame by frame of all rows
  CHECK(layout({-240, 60, 12, 4}) == StackLayout::kPlanar);   // rows backwards
  CHECK(layout({240, 4, 48, 16}) == StackLayout::kChannelsLast);
  CHECK(layout({960, 4, 48, 16}) == StackLayout::kChannelsLast);

  constexpr const char* kComplaint = "expected each frame C-contiguous";
  CHECK_THROWS(layout({240, 60, 4, 20}), std::invalid_argument, kComplaint);   // transposed
  CHECK_THROWS(layout({240, 60, 24, 8}), std::invalid_argument, kComplaint);   // every other
  CHECK_THROWS(layout({240, 56, 12, 4}), std::invalid_argument, kComplaint);   // overlapping
  CHECK_THROWS(layout({0, 60, 12, 4}), std::invalid_argument, kComplaint);     // one row for all
  CHECK_THROWS(layout({180, 60, 12, 4}), std::invalid_argument, kComplaint);   // rows run over
  CHECK_THROWS(layout({240, 8, 48, 16}), std::invalid_argument, kComplaint);
  CHECK_THROWS(layout({236, 4, 48, 16}), std::invalid_argument, kComplaint);
  CHECK_THROWS(layout({242, 4, 48, 16}), std::invalid_argument, kComplaint);   // unaligned rows

  const auto shape = [&](std::vector<std::int64_t> sizes) {
    return target_of({sizes, std::vector<std::int64_t>(sizes.size(), 4)}, frame, 4, 2);
  };
  constexpr const char* kShape = "expected [rows, stack, *frame_shape] = (2, 4, 5, 3)";
  CHECK_THROWS(shape({3, 4, 5, 3}), std::invalid_argument, kShape);
  CHECK_THROWS(shape({2, 5, 5, 3}), std::invalid_argument, kShape);
  CHECK_THROWS(shape({2, 4, 5}), std::invalid_argument, kShape);
  CHECK_THROWS(shape({2, 4, 5, 3, 1}), std::invalid_argument, kShape);
  CHECK_THROWS(shape({}), std::invalid_argument, "out has shape ()");

  // Strides of axes of length 1 mean nothing.
  CHECK(target_of({{1, 4, 1, 3}, {7, 12, 999, 4}}, {{1, 3}, DType::kFloat32}, 4, 1).layout ==
        StackLayout::kPlanar);
  // Frames that are one number each.
  CHECK(target_of({{2, 4}, {16, 4}}, {{}, DType::kFloat32}, 4, 2).layout == StackLayout::kPlanar);
}

/// Against a walk over all bytes, for targets at every distance in one piece of memory.
void shared_memory_is_found() {
  const FrameGeometry frame{{3}, DType::kUint8};
  constexpr std::size_t kRows = 3;
  constexpr std::size_t kStack = 2;
  static std::byte memory[400];
  const auto bytes = [&](const StackTarget& target) {
    std::vector<bool> used(sizeof(memory));
    for (std::size_t row = 0; row < kRows; ++row) {
      for (std::size_t k = 0; k < kStack; ++k) {
        const std::ptrdiff_t step =
            target.layout == StackLayout::kPlanar ? target.frame_stride : 3;
        const std::byte* piece = target.row(row) + static_cast<std::ptrdiff_t>(k) * step;
        const auto first = static_cast<std::size_t>(piece - memory);
        for (std::size_t i = first; i < first + 3; ++i) used[i] = true;
      }
    }
    return used;
  };
  const auto share = [&](const StackTarget& a, const StackTarget& b) {
    const auto of_a = bytes(a);
    const auto of_b = bytes(b);
    for (std::size_t i = 0; i < of_a.size(); ++i) {
      if (of_a[i] && of_b[i]) return true;
    }
    return false;
  };
  constexpr auto kPlanar = StackLayout::kPlanar;
  constexpr auto kLast = StackLayout::kChannelsLast;
  for (const auto& [row_stride, frame_stride, layout] :
       {std::tuple{6, 3, kPlanar}, std::tuple{20, 4, kPlanar}, std::tuple{3, 9, kPlanar},
        std::tuple{4, 15, kPlanar}, std::tuple{-20, 5, kPlanar}, std::tuple{14, -4, kPlanar},
        std::tuple{6, 1, kLast}, std::tuple{17, 1, kLast}, std::tuple{-9, 1, kLast}}) {
    int shared = 0;
    for (std::ptrdiff_t offset = -70; offset <= 70; ++offset) {
      const StackTarget a{memory + 200, row_stride, frame_stride, layout};
      const StackTarget b{memory + 200 + offset, row_stride, frame_stride, layout};
      CHECK(share_memory(a, b, kRows, kStack, frame) == share(a, b));
      shared += share(a, b) ? 1 : 0;
      const StackTarget other{memory + 200 + offset, 7, 3, kPlanar};
      CHECK(share_memory(a, other, kRows, kStack, frame) || !share(a, other));
      CHECK(!share_memory(a, b, 0, kStack, frame));
    }
    CHECK(shared > 5 && shared < 100);
    const StackTarget far{memory + 350, 7, 3, kPlanar};
    CHECK(!share_memory({memory + 100, row_stride, frame_stride, layout}, far, kRows, kStack,
                        frame));
  }
}

void windows() {
  const FrameGeometry frame{{3}, DType::kUint8};
  static std::byte memory[100];
  const auto window = [&](std::ptrdiff_t row_stride, std::ptrdiff_t frame_stride,
                          std::ptrdiff_t distance, std::size_t rows = 2) {
    const StackTarget states{memory + 50, row_stride, frame_stride, StackLayout::kPlanar};
    const StackTarget next_states{memory + 50 + distance, row_stride, frame_stride,
                                  StackLayout::kPlanar};
    return is_window(states, next_states, rows, 2, frame);
  };
  CHECK(window(9, 3, 3));
  CHECK(window(12, 4, 4));
  CHECK(window(3, 6, 6));   // frame by frame of all rows
  CHECK(window(9, -3, -3));
  CHECK(!window(9, 3, 0));
  CHECK(!window(9, 3, 6));
  CHECK(!window(9, 3, -3));
  CHECK(!window(6, 3, 3));  // no room for the last frame between the rows
  CHECK(window(6, 3, 3, 1));
  CHECK(!window(9, 0, 0));
  const StackTarget last{memory, 9, 3, StackLayout::kChannelsLast};
  CHECK(!is_window(last, {memory + 3, 9, 3, StackLayout::kChannelsLast}, 2, 2, frame));
}

}  // namespace

int main() {
  stacks_within_an_episode();
  padding_before_an_episode();
  evicted_is_not_absent();
  layouts();
  layouts_are_read_off_strides();
  shared_memory_is_found();
  windows();
}
