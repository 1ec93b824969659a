// The codec and groups of frames: nothing is lost, every instruction set writes the same bytes and
// reads the others', and damaged codes are refused or stay within their bounds.

#include "check.hpp"
#include "fastdqn/frame_codec.hpp"
#include "fastdqn/frame_group.hpp"

#include <cstring>
#include <memory>
#include <random>
#include <vector>

namespace {

using namespace fastdqn;
using InstructionSet = FrameCodec::InstructionSet;
using Bytes = std::vector<std::byte>;
using Random = std::mt19937;

std::vector<InstructionSet> instruction_sets() {
  std::vector<InstructionSet> sets{InstructionSet::kPortable};
  const InstructionSet best = FrameCodec::best_instruction_set();
  if (best >= InstructionSet::kBmi2) sets.push_back(InstructionSet::kBmi2);
  if (best >= InstructionSet::kAvx512) sets.push_back(InstructionSet::kAvx512);
  return sets;
}

int below(Random& random, std::size_t bound) {
  return static_cast<int>(random() % std::max<std::size_t>(bound, 1));
}

/// A frame that differs from another in a way that is drawn: not at all, in bytes, in runs, as a
/// whole.
Bytes changed(Random& random, Bytes frame) {
  const std::size_t nbytes = frame.size();
  switch (below(random, 6)) {
    case 0: break;
    case 1:
      for (std::byte& byte : frame) byte = static_cast<std::byte>(random());
      break;
    case 2:
      for (std::byte& byte : frame) byte ^= std::byte{85};
      break;
    default:
      for (int spots = below(random, 20); spots >= 0; --spots) {
        const auto begin = static_cast<std::size_t>(below(random, nbytes));
        const auto end = std::min(nbytes, begin + static_cast<std::size_t>(below(random, 90)));
        const auto value = static_cast<std::byte>(random());
        for (std::size_t i = begin; i < end; ++i) {
          frame[i] ^= below(random, 4) == 0 ? static_cast<std::byte>(random()) : value;
        }
      }
  }
  return frame;
}

/// Exactly a code and its slack, so that the address sanitizer sees a step beyond.
Bytes with_slack(const std::byte* code, std::size_t nbytes) {
  Bytes copy(code, code + nbytes);
  copy.resize(nbytes + FrameCodec::kCodeSlack, std::byte{0xFF});
  return copy;
}

const std::vector<FrameGeometry>& geometries() {
  static const std::vector<FrameGeometry> all{
      {{84, 84}, DType::kUint8}, {{}, DType::kUint8},        {{7}, DType::kUint8},
      {{64}, DType::kUint8},     {{65}, DType::kUint8},      {{3, 21}, DType::kUint8},
      {{8, 8}, DType::kUint64},  {{10, 12, 3}, DType::kUint8}, {{2, 33, 17}, DType::kUint16},
      {{1, 4095}, DType::kUint8}, {{5000}, DType::kUint8},   {{3, 2000}, DType::kFloat32}};
  return all;
}

void nothing_is_lost() {
  Random random(1);
  for (const FrameGeometry& geometry : geometries()) {
    for (int round = 0; round < 60; ++round) {
      const Bytes before = changed(random, Bytes(geometry.nbytes()));
      const Bytes after = changed(random, before);
      Bytes first_code;
      Bytes first_key;
      for (const InstructionSet writer : instruction_sets()) {
        const FrameCodec codec(geometry, writer);
        auto workspace = codec.new_workspace();
        Bytes code(codec.code_nbytes() + FrameCodec::kCodeSlack);
        code.resize(codec.encode(before.data(), after.data(), code.data(), workspace));
        Bytes key(codec.code_nbytes() + FrameCodec::kCodeSlack);
        key.resize(codec.encode_key(after.data(), key.data(), workspace));
        CHECK(code.size() <= codec.code_nbytes() && key.size() <= codec.code_nbytes());
        CHECK((before == after) == code.empty());
        if (writer == InstructionSet::kPortable) {
          first_code = code;
          first_key = key;
        }
        CHECK(code == first_code && key == first_key);
        const Bytes read_code = with_slack(code.data(), code.size());
        const Bytes read_key = with_slack(key.data(), key.size());
        CHECK(codec.is_valid(read_code.data(), code.size()));
        CHECK(codec.is_valid(read_key.data(), key.size()));
        Bytes frame = before;
        codec.apply(read_code.data(), code.size(), frame.data());
        CHECK(frame == after);
        codec.apply(read_code.data(), code.size(), frame.data());
        CHECK(frame == before);
        codec.decode_key(read_key.data(), key.size(), frame.data());
        CHECK(frame == after);
      }
    }
  }
}

/// Small changes take few bytes, each kind as its comment says.
void changes_are_small() {
  const FrameCodec codec({{84, 84}, DType::kUint8}, FrameCodec::best_instruction_set());
  auto workspace = codec.new_workspace();
  Bytes code(codec.code_nbytes() + FrameCodec::kCodeSlack);
  const Bytes black(84 * 84);
  const auto nbytes = [&](const Bytes& frame) {
    return codec.encode(black.data(), frame.data(), code.data(), workspace);
  };
  Bytes frame = black;
  frame[4000] = std::byte{9};
  CHECK(nbytes(frame) == 1 + 2 + 1 + 1 + 1 + 1);
  CHECK(nbytes(Bytes(84 * 84, std::byte{7})) < 500);  // a block of one run is three bytes
  Bytes column = black;
  for (std::size_t row = 0; row < 84; ++row) column[row * 84 + 40] = std::byte{200};
  CHECK(codec.encode_key(column.data(), code.data(), workspace) == 7);
}

void damage_is_refused_or_stays_in_bounds() {
  Random random(3);
  for (const FrameGeometry& geometry : geometries()) {
    for (int round = 0; round < 300; ++round) {
      const FrameCodec portable(geometry, InstructionSet::kPortable);
      auto workspace = portable.new_workspace();
      const Bytes before = changed(random, Bytes(geometry.nbytes()));
      const Bytes after = changed(random, before);
      Bytes code(portable.code_nbytes() + FrameCodec::kCodeSlack);
      std::size_t nbytes = portable.encode(before.data(), after.data(), code.data(), workspace);
      if (nbytes == 0) continue;
      for (int hits = below(random, 3); hits >= 0; --hits) {
        code[static_cast<std::size_t>(below(random, std::min<std::size_t>(nbytes, 60)))] =
            static_cast<std::byte>(random());
      }
      if (below(random, 3) == 0) nbytes = static_cast<std::size_t>(below(random, nbytes));
      const Bytes damaged = with_slack(code.data(), nbytes);
      if (!portable.is_valid(damaged.data(), nbytes)) continue;
      for (const InstructionSet reader : instruction_sets()) {
        Bytes frame = before;
        FrameCodec(geometry, reader).apply(damaged.data(), nbytes, frame.data());
      }
    }
  }
}

/// Every run of every length of group, and the same runs while it grows.
void groups_hold_their_frames() {
  Random random(4);
  for (const FrameGeometry& geometry :
       {FrameGeometry{{20, 30}, DType::kUint8}, FrameGeometry{{70'000}, DType::kUint8}}) {
    const FrameCodec codec(geometry, FrameCodec::best_instruction_set());
    const std::size_t nbytes = codec.frame_nbytes();
    auto workspace = codec.new_workspace();
    OpenGroup open;
    std::vector<Bytes> frames{Bytes(nbytes)};
    while (!open.is_full(codec)) {
      open.reserve(codec);
      Bytes next = frames.back();
      next[static_cast<std::size_t>(below(random, nbytes))] ^= std::byte{3};
      frames.push_back(next);
      const std::size_t at_most = open.nbytes_at_most(codec);
      open.add(codec, next.data(), workspace);
      Bytes scratch(nbytes);
      Bytes data(at_most + FrameCodec::kCodeSlack);
      const std::size_t used = open.write(codec, data.data(), scratch.data(), workspace);
      CHECK(used <= at_most && used <= FrameGroup::max_nbytes(codec));
      const Bytes kept = with_slack(data.data(), used);
      const FrameGroup group(codec, open.frames(), kept.data());
      CHECK(group.is_valid(used));
      CHECK(!group.is_valid(used - 1) && !group.is_valid(used + 1));
      group.prefetch_lengths();
      for (std::size_t first = 0; first < open.frames(); ++first) {
        const std::size_t count = std::min<std::size_t>(open.frames() - first, 1 + first % 6);
        group.prefetch(first, count);
        Bytes closed_run(count * nbytes, std::byte{1});
        Bytes open_run(count * nbytes, std::byte{2});
        group.read(first, count, closed_run.data(), static_cast<std::ptrdiff_t>(nbytes));
        open.read(codec, first, count, open_run.data(), static_cast<std::ptrdiff_t>(nbytes));
        CHECK(closed_run == open_run);
        for (std::size_t k = 0; k < count; ++k) {
          CHECK(std::memcmp(closed_run.data() + k * nbytes, frames[1 + first + k].data(),
                            nbytes) == 0);
        }
      }
    }
    CHECK(open.frames() == kGroupFrames);
  }
}

}  // namespace

int main() {
  nothing_is_lost();
  changes_are_small();
  damage_is_refused_or_stays_in_bounds();
  groups_hold_their_frames();
}
