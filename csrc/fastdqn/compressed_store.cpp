// Frames as groups of changes. Full groups lie one behind the other in segments, which are filled
// in turn; a segment is used again once the last frame of its last group was forgotten. Where
// groups die in another order than they were written, the emptiest segments are emptied into new
// ones, so that what is held stays in proportion to what lives.

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "fastdqn/frame_codec.hpp"
#include "fastdqn/frame_group.hpp"
#include "fastdqn/frame_store.hpp"
#include "fastdqn/snapshot.hpp"

namespace fastdqn {

namespace {

constexpr std::uint32_t kNone = 0xFFFFFFFF;
constexpr std::uint32_t kOpen = 0xFFFFFFFE;  // in the place of a segment's number

// A reference to a frame is its group and its place in that.
using Reference = std::uint32_t;
constexpr std::size_t kMaxFrames = std::size_t{kNone} / kGroupFrames;  // each may be a group

constexpr std::size_t kLeastSegment = std::size_t{4} << 10;
constexpr std::size_t kUsualSegment = std::size_t{2} << 20;  // a huge page
constexpr std::size_t kMostSegments = 64;                    // added at once
constexpr std::size_t kMostFrame = std::size_t{1} << 28;     // bytes

// Segments are emptied where more than these would be left over, in parts of what lives.
constexpr std::size_t kSpareSegments = 4;
constexpr std::size_t kSparePart = 4;

// Sections of an index.
constexpr const char* kSegmentsSection = "segments";
constexpr const char* kPlacesSection = "places";
constexpr const char* kReferencesSection = "slots";
constexpr std::uint64_t kFree = ~std::uint64_t{0};  // in the place of a segment's bytes

struct Group {
  std::uint32_t segment = kNone;  // or kOpen
  std::uint32_t place = 0;        // in the segment, in bytes; of an open one, its environment
  std::uint32_t nbytes = 0;
  std::uint8_t frames = 0;
  std::uint8_t live = 0;  // those that were not forgotten
  std::uint16_t unused = 0;
};
static_assert(sizeof(Group) == 16);

/// Before each group in a segment.
struct GroupHeader {
  std::uint32_t group;
  std::uint32_t nbytes;
};

struct Segment {
  std::byte* data = nullptr;
  std::size_t used = 0;     // bytes of groups and their headers
  std::size_t live = 0;     // those of groups that live
  std::size_t touched = 0;  // the most that was ever used
  bool in_use = false;
};

constexpr std::size_t ceil_divide(std::size_t a, std::size_t b) noexcept { return (a + b - 1) / b; }

std::size_t segment_nbytes_for(const FrameCodec& codec, std::size_t capacity) {
  const std::size_t all = capacity > kUsualSegment / codec.frame_nbytes() * kMostSegments
                              ? kUsualSegment
                              : std::bit_floor(capacity * codec.frame_nbytes() / kMostSegments + 1);
  const std::size_t group =
      sizeof(GroupHeader) + FrameGroup::max_nbytes(codec) + FrameCodec::kCodeSlack;
  return std::max({std::min(all, kUsualSegment), kLeastSegment, std::bit_ceil(4 * group)});
}

class CompressedStore final : public FrameStore {
 public:
  CompressedStore(std::size_t capacity, const FrameGeometry& frame, std::size_t num_envs,
                  std::unique_ptr<Backing> backing, FrameCodec::InstructionSet instruction_set)
      : FrameStore(capacity, frame.nbytes(), std::move(backing)),
        codec_(frame, instruction_set),
        segment_nbytes_(segment_nbytes_for(codec_, capacity)),
        references_(capacity, kNone),
        open_(num_envs),
        open_group_(num_envs, kNone),
        workspace_(codec_.new_workspace()),
        frame_(frame.nbytes()),
        zeros_(frame.nbytes()) {}

  /// As noise: all codes are of the greatest length, and two frames make a full group.
  std::size_t nbytes() const noexcept override {
    const std::size_t group = sizeof(GroupHeader) + FrameGroup::nbytes_at_most(codec_, 2,
                                                                               codec_.code_nbytes());
    const std::size_t segments =
        ceil_divide(ceil_divide(capacity(), 2), room() / group) + kSpareSegments;
    return segments * segment_nbytes_ + capacity() * (sizeof(Reference) + sizeof(Group) / 2) +
           open_.size() * 4 * frame_nbytes();
  }

  std::size_t nbytes_now(std::size_t) const noexcept override {
    std::size_t nbytes = references_.size() * sizeof(Reference) + groups_.size() * sizeof(Group);
    for (const Segment& segment : segments_) nbytes += segment.touched;
    for (const OpenGroup& open : open_) nbytes += sizeof(open) + open.nbytes();
    return nbytes;
  }

  std::size_t frames_nbytes(std::size_t num_frames) const noexcept override {
    std::size_t nbytes = num_frames * sizeof(Reference) +
                         (groups_.size() - unused_groups_.size()) * sizeof(Group);
    nbytes += live_nbytes_;
    for (const OpenGroup& open : open_) nbytes += open.used_nbytes();
    return nbytes;
  }

  void reserve(std::span<const std::int64_t> envs) override {
    std::size_t needed = 0;
    for (const std::int64_t env : envs) {
      OpenGroup& open = open_[static_cast<std::size_t>(env)];
      open.reserve(codec_);
      if (open.may_be_full(codec_)) needed += sizeof(GroupHeader) + open.nbytes_at_most(codec_);
    }
    reserve_groups(envs.size());
    reserve_segments(needed);
    while (too_much_is_spare()) {
      empty_segment();
      reserve_segments(needed);
    }
  }

  void write(Slot slot, std::uint32_t env, const std::byte* source) noexcept override {
    OpenGroup& open = open_[env];
    if (open.frames() == 0) {
      open_group_[env] = take_group();
      groups_[open_group_[env]] = {.segment = kOpen, .place = env};
    }
    Group& group = groups_[open_group_[env]];
    references_[slot] = reference(open_group_[env], open.frames());
    open.add(codec_, source, workspace_);
    ++group.frames;
    ++group.live;
    if (open.is_full(codec_)) close_group(env);
  }

  void release(Slot slot) noexcept override {
    if (references_[slot] == kNone) return;
    const std::uint32_t number = group_of(std::exchange(references_[slot], kNone));
    Group& group = groups_[number];
    if (--group.live > 0) return;
    if (group.segment == kOpen) {
      open_[group.place].clear();
    } else {
      Segment& segment = segments_[group.segment];
      segment.live -= sizeof(GroupHeader) + group.nbytes;
      live_nbytes_ -= sizeof(GroupHeader) + group.nbytes;
      if (segment.live == 0 && group.segment != current_) free_segment(group.segment);
    }
    group = Group{};
    unused_groups_.push_back(number);  // its room was reserved with the group
  }

  void read(const Slot* slots, std::size_t count, std::byte* target, std::ptrdiff_t stride,
            Slot) const noexcept override {
    for (std::size_t k = 0; k < count;) {
      std::byte* place = target + static_cast<std::ptrdiff_t>(k) * stride;
      if (slots[k] == kNoSlot) {
        std::memset(place, 0, frame_nbytes());
        ++k;
      } else if (k > 0 && slots[k] == slots[k - 1]) {
        std::memcpy(place, place - stride, frame_nbytes());
        ++k;
      } else {
        k += read_run(slots + k, count - k, place, stride);
      }
    }
  }

  void find(const Slot* slots, std::size_t count, std::byte* scratch,
            const std::byte** frames) const noexcept override {
    const auto nbytes = static_cast<std::ptrdiff_t>(frame_nbytes());
    for (std::size_t k = 0; k < count;) {
      if (slots[k] == kNoSlot) {
        frames[k++] = zeros_.data();
      } else if (k > 0 && slots[k] == slots[k - 1]) {
        frames[k] = frames[k - 1];
        ++k;
      } else {
        std::byte* place = scratch + static_cast<std::ptrdiff_t>(k) * nbytes;
        for (std::size_t run = read_run(slots + k, count - k, place, nbytes); run > 0; --run) {
          frames[k++] = place;
          place += nbytes;
        }
      }
    }
  }
  bool needs_scratch() const noexcept override { return true; }

  void prefetch_slot(Slot slot) const noexcept override {
#if defined(__GNUC__)
    __builtin_prefetch(&references_[slot]);
#else
    (void)slot;
#endif
  }

  void prefetch_early(const Slot* slots, std::size_t count) const noexcept override {
    for_each_group(slots, count, [&](const Group& group, std::size_t, std::size_t) {
      closed(group).prefetch_lengths();
    });
  }

  void prefetch(const Slot* slots, std::size_t count) const noexcept override {
    for_each_group(slots, count, [&](const Group& group, std::size_t first, std::size_t run) {
      closed(group).prefetch(first, run);
    });
  }

  void read_ahead(const Slot* slots, std::size_t count) const noexcept override {
    for_each_group(slots, count, [&](const Group& group, std::size_t, std::size_t) {
      backing().read_ahead(closed(group).data(), group.nbytes);
    });
  }

  void save(SnapshotWriter& writer, std::size_t num_frames) const override;
  void save_index(SnapshotWriter& writer) override;
  void load_index(SnapshotReader& reader, std::size_t num_frames) override;
  void adopt(const FrameGroup& group, std::size_t nbytes, const Slot* slots,
             std::optional<std::uint32_t> open_in) override;
  const FrameCodec& codec() const noexcept override { return codec_; }
  void check_invariants(std::size_t num_frames) const override;

 private:
  static Reference reference(std::uint32_t group, std::size_t place) noexcept {
    return group * static_cast<Reference>(kGroupFrames) + static_cast<Reference>(place);
  }
  static std::uint32_t group_of(Reference reference) noexcept {
    return reference / static_cast<Reference>(kGroupFrames);
  }
  static std::size_t place_of(Reference reference) noexcept { return reference % kGroupFrames; }

  FrameGroup closed(const Group& group) const noexcept {
    return {codec_, group.frames,
            segments_[group.segment].data + group.place + sizeof(GroupHeader)};
  }

  /// How many of the frames, from the first on, follow each other in one group.
  std::size_t run_length(const Slot* slots, std::size_t count) const noexcept {
    const Reference first = references_[slots[0]];
    std::size_t run = 1;
    while (run < count && place_of(first) + run < kGroupFrames && slots[run] != kNoSlot &&
           references_[slots[run]] == first + run) {
      ++run;
    }
    return run;
  }

  std::size_t read_run(const Slot* slots, std::size_t count, std::byte* target,
                       std::ptrdiff_t stride) const noexcept {
    const Reference first = references_[slots[0]];
    const Group& group = groups_[group_of(first)];
    const std::size_t run = run_length(slots, count);
    if (group.segment == kOpen) {
      open_[group.place].read(codec_, place_of(first), run, target, stride);
    } else {
      closed(group).read(place_of(first), run, target, stride);
    }
    return run;
  }

  template <class Visit>
  void for_each_group(const Slot* slots, std::size_t count, Visit visit) const noexcept {
    for (std::size_t k = 0; k < count;) {
      if (slots[k] == kNoSlot || (k > 0 && slots[k] == slots[k - 1])) {
        ++k;
        continue;
      }
      const Reference first = references_[slots[k]];
      const Group& group = groups_[group_of(first)];
      const std::size_t run = run_length(slots + k, count - k);
      if (group.segment != kOpen) visit(group, place_of(first), run);
      k += run;
    }
  }

  // -- groups ---------------------------------------------------------------------------------

  void reserve_groups(std::size_t count) {
    if (unused_groups_.size() >= count) return;
    const std::size_t total = groups_.size() + count;
    if (total > groups_.capacity()) groups_.reserve(std::max(total, 2 * groups_.capacity()));
    // Also room for all to become unused.
    if (unused_groups_.capacity() < groups_.capacity()) unused_groups_.reserve(groups_.capacity());
  }

  std::uint32_t take_group() noexcept {
    if (unused_groups_.empty()) {
      groups_.emplace_back();
      return static_cast<std::uint32_t>(groups_.size() - 1);
    }
    const std::uint32_t number = unused_groups_.back();
    unused_groups_.pop_back();
    return number;
  }

  void close_group(std::uint32_t env) noexcept {
    OpenGroup& open = open_[env];
    const std::uint32_t number = open_group_[env];
    std::byte* place = make_room(sizeof(GroupHeader) + open.nbytes_at_most_now(codec_));
    const std::size_t nbytes =
        open.write(codec_, place + sizeof(GroupHeader), frame_.data(), workspace_);
    put_group(number, nbytes);
    open.clear();
  }

  /// The group was written to the end of the current segment.
  void put_group(std::uint32_t number, std::size_t nbytes) noexcept {
    Segment& segment = segments_[current_];
    const GroupHeader header{number, static_cast<std::uint32_t>(nbytes)};
    std::memcpy(segment.data + segment.used, &header, sizeof(header));
    Group& group = groups_[number];
    group.segment = current_;
    group.place = static_cast<std::uint32_t>(segment.used);
    group.nbytes = header.nbytes;
    segment.used += sizeof(header) + nbytes;
    segment.live += sizeof(header) + nbytes;
    live_nbytes_ += sizeof(header) + nbytes;
    segment.touched = std::max(segment.touched, segment.used);
  }

  // -- segments -------------------------------------------------------------------------------

  std::size_t room() const noexcept { return segment_nbytes_ - FrameCodec::kCodeSlack; }

  /// Free segments for `needed` bytes of groups and to empty one.
  void reserve_segments(std::size_t needed) {
    const std::size_t most = sizeof(GroupHeader) + FrameGroup::max_nbytes(codec_);
    const std::size_t wanted = needed / (room() - most) + 2 + 1;
    if (free_.size() >= wanted) return;
    add_segments(
        std::clamp(segments_.size() / 8, wanted - free_.size(), std::max(wanted, kMostSegments)));
  }

  void add_segments(std::size_t count) {
    segments_.reserve(segments_.size() + count);
    free_.reserve(segments_.size() + count);
    std::byte* data = backing().extend(count * segment_nbytes_);
    for (std::size_t k = count; k-- > 0;) {
      free_.push_back(static_cast<std::uint32_t>(segments_.size() + k));
    }
    for (std::size_t k = 0; k < count; ++k) {
      segments_.push_back({.data = data + k * segment_nbytes_});
    }
  }

  /// The end of the current segment, or a new one if that has too little room.
  std::byte* make_room(std::size_t nbytes) noexcept {
    if (current_ == kNone || segments_[current_].used + nbytes > room()) {
      if (current_ != kNone) {
        const std::uint32_t full = std::exchange(current_, kNone);
        backing().written(segments_[full].data, segment_nbytes_);
        if (segments_[full].live == 0) free_segment(full);
      }
      current_ = free_.back();
      free_.pop_back();
      segments_[current_].in_use = true;
      ++num_in_use_;
      backing().read_ahead(segments_[current_].data, segment_nbytes_);
    }
    return segments_[current_].data + segments_[current_].used;
  }

  void free_segment(std::uint32_t number) noexcept {
    segments_[number].used = 0;
    segments_[number].in_use = false;
    --num_in_use_;
    free_.push_back(number);
  }

  bool too_much_is_spare() const noexcept {
    if (num_in_use_ <= kSpareSegments) return false;
    return (num_in_use_ - kSpareSegments) * room() > live_nbytes_ + live_nbytes_ / kSparePart;
  }

  /// Moves what lives in the segment in which least does.
  void empty_segment() noexcept {
    std::uint32_t emptiest = kNone;
    for (std::uint32_t number = 0; number < segments_.size(); ++number) {
      if (!segments_[number].in_use || number == current_) continue;
      if (emptiest == kNone || segments_[number].live < segments_[emptiest].live) emptiest = number;
    }
    const Segment& segment = segments_[emptiest];
    const std::size_t used = segment.used;
    for (std::size_t place = 0; place < used;) {
      GroupHeader header;
      std::memcpy(&header, segment.data + place, sizeof(header));
      const Group& group = groups_[header.group];
      if (group.segment == emptiest && group.place == place) {
        std::byte* target = make_room(sizeof(header) + header.nbytes);
        std::memcpy(target + sizeof(header), segment.data + place + sizeof(header), header.nbytes);
        put_group(header.group, header.nbytes);
      }
      place += sizeof(header) + header.nbytes;
    }
    live_nbytes_ -= std::exchange(segments_[emptiest].live, 0);
    free_segment(emptiest);
  }

  const FrameCodec codec_;
  const std::size_t segment_nbytes_;
  std::vector<Reference> references_;  // by slot
  std::vector<Group> groups_;
  std::vector<std::uint32_t> unused_groups_;
  std::vector<OpenGroup> open_;             // by environment
  std::vector<std::uint32_t> open_group_;   // its number, where it has frames
  std::vector<Segment> segments_;
  std::vector<std::uint32_t> free_;  // segments; the one to use next is last
  std::uint32_t current_ = kNone;    // the segment that is being filled
  std::size_t num_in_use_ = 0;
  std::size_t live_nbytes_ = 0;  // of groups, in all segments
  FrameCodec::Workspace workspace_;  // of the calls that exclude others
  std::vector<std::byte> frame_;     // the same
  const std::vector<std::byte> zeros_;
};

// -- snapshots --------------------------------------------------------------------------------

void CompressedStore::save(SnapshotWriter& writer, std::size_t num_frames) const {
  // The slots in the order of their groups, and in those of their places.
  std::vector<std::pair<Reference, Slot>> order;
  order.reserve(num_frames);
  for (Slot slot = 0; slot < num_frames; ++slot) {
    if (references_[slot] != kNone) order.emplace_back(references_[slot], slot);
  }
  std::sort(order.begin(), order.end());

  FrameCodec::Workspace workspace = codec_.new_workspace();
  std::vector<std::byte> frame(frame_nbytes());
  std::vector<std::byte> copy(FrameGroup::max_nbytes(codec_) + FrameCodec::kCodeSlack);
  const auto for_each = [&](auto visit) {
    for (std::size_t k = 0; k < order.size();) {
      const std::uint32_t number = group_of(order[k].first);
      const Group& group = groups_[number];
      std::array<Slot, kGroupFrames> slots;
      slots.fill(kNoSlot);
      for (; k < order.size() && group_of(order[k].first) == number; ++k) {
        slots[place_of(order[k].first)] = order[k].second;
      }
      const std::byte* data = copy.data();
      std::size_t nbytes = group.nbytes;
      if (group.segment == kOpen) {
        nbytes = open_[group.place].write(codec_, copy.data(), frame.data(), workspace);
      } else {
        data = closed(group).data();
      }
      const std::uint32_t is_open = group.segment == kOpen ? 1 : 0;
      visit(SavedGroup{static_cast<std::uint32_t>(nbytes), group.frames, is_open}, slots.data(),
            data);
    }
  };
  std::size_t total = 0;
  for_each([&](const SavedGroup& saved, const Slot*, const std::byte*) {
    total += sizeof(saved) + saved.frames * sizeof(Slot) + saved.nbytes;
  });
  writer.begin_section(kGroupsSection, total);
  for_each([&](const SavedGroup& saved, const Slot* slots, const std::byte* data) {
    writer.write_piece(&saved, sizeof(saved));
    writer.write_piece(slots, saved.frames * sizeof(Slot));
    writer.write_piece(data, saved.nbytes);
  });
  writer.end_section();
}

void CompressedStore::save_index(SnapshotWriter& writer) {
  for (std::uint32_t env = 0; env < open_.size(); ++env) {
    if (open_[env].frames() == 0) continue;
    reserve_segments(sizeof(GroupHeader) + open_[env].nbytes_at_most(codec_));
    close_group(env);
  }
  if (segments_.empty()) add_segments(1);  // there is a file to open
  backing().sync();
  std::vector<std::uint64_t> used;
  for (const Segment& segment : segments_) used.push_back(segment.in_use ? segment.used : kFree);
  writer.write_section(kSegmentsSection, used.data(), used.size() * sizeof(used[0]));
  writer.write_section(kPlacesSection, groups_.data(), groups_.size() * sizeof(Group));
  writer.write_section(kReferencesSection, references_.data(),
                       references_.size() * sizeof(Reference));
}

/// Believes nothing: what a damaged file leads to has to stay within its bounds.
void CompressedStore::load_index(SnapshotReader& reader, std::size_t num_frames) {
  const auto require = [&](bool holds, const char* what) {
    if (!holds) throw SnapshotError(reader.path(), what);
  };
  const std::size_t num_segments = reader.section_nbytes(kSegmentsSection) / sizeof(std::uint64_t);
  std::vector<std::uint64_t> used(num_segments);
  reader.read_section(kSegmentsSection, used.data(), num_segments * sizeof(used[0]));
  const std::size_t num_groups = reader.section_nbytes(kPlacesSection) / sizeof(Group);
  require(num_groups <= kMaxFrames, "there are more groups of frames than can be");
  groups_.resize(num_groups);
  unused_groups_.reserve(groups_.capacity());
  reader.read_section(kPlacesSection, groups_.data(), num_groups * sizeof(Group));
  reader.read_section(kReferencesSection, references_.data(),
                      references_.size() * sizeof(Reference));
  std::vector<std::size_t> live(num_groups);
  for (std::size_t slot = 0; slot < capacity(); ++slot) {
    require((references_[slot] != kNone) == (slot < num_frames), "a frame is stored nowhere");
    if (references_[slot] == kNone) continue;
    const std::uint32_t number = group_of(references_[slot]);
    require(number < num_groups && place_of(references_[slot]) < groups_[number].frames,
            "a frame's group does not exist");
    ++live[number];
  }
  if (num_segments > 0) add_segments(num_segments);
  free_.clear();
  for (std::uint32_t number = 0; number < num_segments; ++number) {
    Segment& segment = segments_[number];
    if (used[number] == kFree) {
      free_.push_back(number);
      continue;
    }
    require(used[number] <= room(), "a segment is overfull");
    segment.used = segment.touched = static_cast<std::size_t>(used[number]);
    segment.in_use = true;
    ++num_in_use_;
    // What empties segments follows the groups from one to the next.
    std::size_t place = 0;
    while (place < segment.used) {
      GroupHeader header;
      require(segment.used - place >= sizeof(header), "a segment has no end");
      std::memcpy(&header, segment.data + place, sizeof(header));
      require(header.group < num_groups && header.nbytes <= segment.used - place - sizeof(header),
              "the frames' file is not what the index says");
      place += sizeof(header) + header.nbytes;
    }
  }
  for (std::uint32_t number = 0; number < num_groups; ++number) {
    Group& group = groups_[number];
    require(group.live == live[number], "a group has lost count of its frames");
    if (group.live == 0) {
      unused_groups_.push_back(number);
      continue;
    }
    require(group.segment < num_segments && segments_[group.segment].in_use,
            "a group lies nowhere");
    Segment& segment = segments_[group.segment];
    GroupHeader header{};
    require(sizeof(header) + group.nbytes <= segment.used &&
                group.place <= segment.used - sizeof(header) - group.nbytes,
            "a group lies outside its segment");
    std::memcpy(&header, segment.data + group.place, sizeof(header));
    require(header.group == number && header.nbytes == group.nbytes &&
                closed(group).is_valid(group.nbytes),
            "the frames' file is not what the index says");
    segment.live += sizeof(header) + group.nbytes;
    live_nbytes_ += sizeof(header) + group.nbytes;
  }
}

void CompressedStore::adopt(const FrameGroup& group, std::size_t nbytes, const Slot* slots,
                            std::optional<std::uint32_t> open_in) {
  reserve_groups(1);
  reserve_segments(sizeof(GroupHeader) + nbytes);
  const std::uint32_t number = take_group();
  groups_[number] = {.frames = static_cast<std::uint8_t>(group.frames())};
  if (open_in.has_value()) {
    // Frame by frame, as it came about: only so does it take the same room.
    OpenGroup& open = open_[*open_in];
    std::vector<std::byte> frame(frame_nbytes());
    for (std::size_t place = 0; place < group.frames() && !open.is_full(codec_); ++place) {
      group.read(place, 1, frame.data(), 0);
      open.reserve(codec_);
      open.add(codec_, frame.data(), workspace_);
    }
    if (open.frames() < group.frames() || open.is_full(codec_)) {
      throw std::logic_error("the compressed frames: an open group has no room for another frame");
    }
    open_group_[*open_in] = number;
    groups_[number].segment = kOpen;
    groups_[number].place = *open_in;
  }
  for (std::size_t place = 0; place < group.frames(); ++place) {
    if (slots[place] == kNoSlot) continue;
    references_[slots[place]] = reference(number, place);
    ++groups_[number].live;
  }
  if (open_in.has_value()) return;
  std::byte* target = make_room(sizeof(GroupHeader) + nbytes);
  std::memcpy(target + sizeof(GroupHeader), group.data(), nbytes);
  put_group(number, nbytes);
}

// -- checking ---------------------------------------------------------------------------------

void CompressedStore::check_invariants(std::size_t num_frames) const {
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw std::logic_error(std::string("the compressed frames: ") + what);
  };
  std::vector<std::size_t> live(groups_.size());
  for (std::size_t slot = 0; slot < capacity(); ++slot) {
    if (references_[slot] == kNone) continue;
    require(slot < num_frames, "a slot without a frame refers to one");
    const std::uint32_t number = group_of(references_[slot]);
    require(number < groups_.size() && place_of(references_[slot]) < groups_[number].frames,
            "a slot refers to a frame that does not exist");
    ++live[number];
  }
  std::vector<std::size_t> nbytes(segments_.size());
  std::size_t all_nbytes = 0;
  std::size_t unused = 0;
  for (std::size_t number = 0; number < groups_.size(); ++number) {
    const Group& group = groups_[number];
    require(group.live == live[number], "a group has lost count of its frames");
    if (group.live == 0) {
      ++unused;
    } else if (group.segment == kOpen) {
      require(open_group_[group.place] == number && open_[group.place].frames() == group.frames,
              "an open group is not its environment's");
    } else {
      require(group.segment < segments_.size() && segments_[group.segment].in_use,
              "a group lies in a segment that is free");
      require(group.place + sizeof(GroupHeader) + group.nbytes <= segments_[group.segment].used,
              "a group lies outside its segment");
      nbytes[group.segment] += sizeof(GroupHeader) + group.nbytes;
    }
  }
  require(unused == unused_groups_.size(), "the unused groups are miscounted");
  std::size_t in_use = 0;
  for (std::size_t number = 0; number < segments_.size(); ++number) {
    require(segments_[number].live == nbytes[number], "a segment has lost count of its bytes");
    require(segments_[number].used <= room(), "a segment is overfull");
    all_nbytes += nbytes[number];
    in_use += segments_[number].in_use ? 1 : 0;
  }
  require(all_nbytes == live_nbytes_, "the bytes of all segments are miscounted");
  require(in_use == num_in_use_ && in_use + free_.size() == segments_.size(),
          "the free segments are miscounted");
}

}  // namespace

std::unique_ptr<FrameStore> compressed_store(std::size_t capacity, const FrameGeometry& frame,
                                             std::size_t num_envs,
                                             std::unique_ptr<Backing> backing,
                                             FrameCodec::InstructionSet instruction_set) {
  if (capacity > kMaxFrames || frame.nbytes() > kMostFrame) {
    throw std::invalid_argument(
        "compressed frames: capacity is " + std::to_string(capacity) + " frames of " +
        std::to_string(frame.nbytes()) + " bytes; expected at most " + std::to_string(kMaxFrames) +
        " frames of at most " + std::to_string(kMostFrame) + " bytes");
  }
  return std::make_unique<CompressedStore>(capacity, frame, num_envs, std::move(backing),
                                           instruction_set);
}

}  // namespace fastdqn
