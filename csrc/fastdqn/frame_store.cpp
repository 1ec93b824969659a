#include "fastdqn/frame_store.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "fastdqn/far_copy.hpp"
#include "fastdqn/snapshot.hpp"

namespace fastdqn {

namespace {

constexpr std::size_t kCacheLine = 64;
constexpr std::size_t kPrefetchedLines = 8;
constexpr std::size_t kStretch = std::size_t{2} << 20;  // bytes that go to a file together

constexpr const char* kRawPlacesSection = "inplace";

std::size_t total_nbytes(std::size_t capacity, std::size_t frame_nbytes) {
  if (capacity >= std::numeric_limits<std::ptrdiff_t>::max() / frame_nbytes) {
    throw OutOfMemory(std::to_string(capacity) + " frames of " + std::to_string(frame_nbytes) +
                      " bytes are more than this machine can address");
  }
  return capacity * frame_nbytes;
}

/// Frames as they are, one behind the other, no padding.
class RawStore final : public FrameStore {
 public:
  RawStore(std::size_t capacity, const FrameGeometry& frame, std::unique_ptr<Backing> backing)
      : FrameStore(capacity, frame.nbytes(), std::move(backing)),
        codec_(frame, FrameCodec::best_instruction_set()),
        data_(this->backing().extend(total_nbytes(capacity, frame.nbytes()))),
        zeros_(frame.nbytes()) {}

  std::size_t nbytes() const noexcept override { return capacity() * frame_nbytes(); }
  std::size_t nbytes_now(std::size_t num_frames) const noexcept override {
    return num_frames * frame_nbytes();
  }
  std::size_t frames_nbytes(std::size_t num_frames) const noexcept override {
    return num_frames * frame_nbytes();
  }

  void reserve(std::span<const std::int64_t>) override {}

  void write(Slot slot, std::uint32_t, const std::byte* source) noexcept override {
    std::memcpy(place(slot), source, frame_nbytes());
    const std::size_t begin = slot * frame_nbytes() / kStretch;
    const std::size_t end = (slot + std::size_t{1}) * frame_nbytes() / kStretch;
    if (begin != end) leave_stretch(begin, end);
  }

  void release(Slot) noexcept override {}

  void read(const Slot* slots, std::size_t count, std::byte* target, std::ptrdiff_t stride,
            Slot next) const noexcept override {
    // Frames that adjoin on both sides are one piece.
    const bool adjoining = stride == static_cast<std::ptrdiff_t>(frame_nbytes());
    for (std::size_t k = 0; k < count;) {
      const std::size_t run = run_from(slots + k, count - k);
      const std::size_t piece = adjoining ? run : 1;
      const std::byte* from = frame(slots[k]);
      const std::byte* const end = from + run * frame_nbytes();
      k += run;
      const Slot after = k < count ? slots[k] : next;
      for (; from != end; from += piece * frame_nbytes()) {
        copy_from_far(target, from, piece * frame_nbytes(), end,
                      after == kNoSlot ? nullptr : place(after));
        target += static_cast<std::ptrdiff_t>(piece) * stride;
      }
    }
  }

  void find(const Slot* slots, std::size_t count, std::byte*,
            const std::byte** frames) const noexcept override {
    for (std::size_t k = 0; k < count; ++k) frames[k] = frame(slots[k]);
  }
  bool needs_scratch() const noexcept override { return false; }

  void prefetch_slot(Slot) const noexcept override {}
  void prefetch_early(const Slot*, std::size_t) const noexcept override {}

  /// The beginning of the first frame: the processor then runs ahead by itself.
  void prefetch(const Slot* slots, std::size_t) const noexcept override {
#if defined(__GNUC__)
    const std::byte* data = frame(slots[0]);
    const std::size_t nbytes = std::min(frame_nbytes(), kPrefetchedLines * kCacheLine);
    for (std::size_t offset = 0; offset < nbytes; offset += kCacheLine) {
      __builtin_prefetch(data + offset);
    }
#else
    (void)slots;
#endif
  }

  void read_ahead(const Slot* slots, std::size_t count) const noexcept override {
    for (std::size_t k = 0; k < count;) {
      const std::size_t run = run_from(slots + k, count - k);
      if (slots[k] != kNoSlot) backing().read_ahead(place(slots[k]), run * frame_nbytes());
      k += run;
    }
  }

  void save_index(SnapshotWriter& writer) override {
    backing().sync();
    writer.write_section(kRawPlacesSection, nullptr, 0);
  }
  void load_index(SnapshotReader& reader, std::size_t) override {
    reader.read_section(kRawPlacesSection, nullptr, 0);
  }

  void save(SnapshotWriter& writer, std::size_t num_frames) const override {
    writer.write_section(kRawFramesSection, data_, num_frames * frame_nbytes());
  }

  void adopt(const FrameGroup& group, std::size_t, const Slot* slots,
             std::optional<std::uint32_t>) override {
    for (std::size_t k = 0; k < group.frames(); ++k) {
      if (slots[k] != kNoSlot) group.read(k, 1, place(slots[k]), 0);
    }
  }
  const FrameCodec& codec() const noexcept override { return codec_; }

  void check_invariants(std::size_t) const override {}

 private:
  /// What was written may go to its file, and what is overwritten next is fetched: half a page can
  /// only be written to once the page is there.
  void leave_stretch(std::size_t begin, std::size_t end) noexcept {
    backing().written(data_ + begin * kStretch, (end - begin) * kStretch);
    const std::size_t next = std::min((end + 1) * kStretch, nbytes());
    backing().read_ahead(data_ + next, std::min(kStretch, nbytes() - next));
  }

  /// How many of the slots from the first on lie one behind the other.
  static std::size_t run_from(const Slot* slots, std::size_t count) noexcept {
    std::size_t run = 1;
    while (run < count && slots[0] != kNoSlot && slots[run] == slots[0] + run) ++run;
    return run;
  }

  std::byte* place(Slot slot) const noexcept { return data_ + slot * frame_nbytes(); }
  const std::byte* frame(Slot slot) const noexcept {
    return slot == kNoSlot ? zeros_.data() : place(slot);
  }

  const FrameCodec codec_;
  std::byte* const data_;
  const std::vector<std::byte> zeros_;
};

}  // namespace

std::unique_ptr<FrameStore> raw_store(std::size_t capacity, const FrameGeometry& frame,
                                      std::unique_ptr<Backing> backing) {
  return std::make_unique<RawStore>(capacity, frame, std::move(backing));
}

}  // namespace fastdqn
