// Snapshots in chunks: whole, shared as far as they are the same, and refused where a part is not
// what it was.

#include "fastdqn/chunk_folder.hpp"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include "fastdqn/snapshot.hpp"
#include "replay_support.hpp"
#include "snapshot_support.hpp"

namespace {

using namespace fastdqn;

/// Bytes without a pattern.
std::string noise(std::size_t nbytes, std::uint64_t seed) {
  CounterRng random(seed);
  std::string bytes(nbytes, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random.next());
  return bytes;
}

void digests_tell_contents_apart() {
  std::set<Digest> seen;
  const std::string zeros(100, '\0');
  for (std::size_t nbytes = 0; nbytes <= zeros.size(); ++nbytes) {
    CHECK(seen.insert(digest(zeros.data(), nbytes)).second);
  }
  std::string bytes = noise(97, 1);
  CHECK(seen.insert(digest(bytes.data(), bytes.size())).second);
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    CHECK(seen.insert(digest(bytes.data(), bytes.size())).second);
    for (std::size_t other = 0; other < bit; other += 5) {  // two bits
      bytes[other / 8] = static_cast<char>(bytes[other / 8] ^ (1 << other % 8));
      CHECK(seen.insert(digest(bytes.data(), bytes.size())).second);
      bytes[other / 8] = static_cast<char>(bytes[other / 8] ^ (1 << other % 8));
    }
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
  }
}

/// Files of other machines and versions have the same names.
void a_digest_never_changes() {
  CHECK(name_of({digest("fastdqn", 7), 7}) == "2e337e8b3aab7db09cb482dc4805f057");
}

void a_section_comes_back_from_its_chunks() {
  const TemporaryFolder folder;
  for (const std::size_t nbytes : {std::size_t{0}, std::size_t{1000}, std::size_t{64} << 10,
                                   kMaxChunkNbytes - 1, kMaxChunkNbytes, 3 * kMaxChunkNbytes + 7}) {
    const std::string bytes = noise(nbytes, nbytes);
    for (const std::size_t piece : {nbytes + 1, std::size_t{5000}, std::size_t{700'001}}) {
      ChunkFolder chunks(folder / "");
      SnapshotWriter writer(folder / "snapshot", chunks);
      writer.write_section("small", "abc", 3);
      writer.begin_section("large", nbytes);
      for (std::size_t done = 0; done < nbytes; done += piece) {
        writer.write_piece(bytes.data() + done, std::min(piece, nbytes - done));
      }
      writer.end_section();
      writer.write_section("behind", "de", 2);
      writer.commit();

      SnapshotReader reader(folder / "snapshot", folder / "");
      reader.require_chunks();
      std::string found(nbytes, '?');
      reader.read_section("large", found.data(), nbytes);
      CHECK(found == bytes);
      char small[3];
      reader.read_section("small", small, 3);
      CHECK(std::memcmp(small, "abc", 3) == 0);
      reader.read_section("behind", small, 2);
      CHECK((nbytes >= std::size_t{64} << 10) == !reader.chunks().empty());
    }
  }
}

/// A memory of frames that are noise, so that nothing is the same by chance.
struct Noisy {
  explicit Noisy(Storage storage, Eviction eviction)
      : memory({.capacity = 4'000,
                .frame = {{40, 40}, DType::kUint8},
                .num_envs = 1,
                .stack = 4,
                .n_step = 1,
                .discount = 0.9,
                .padding = Padding::kZero,
                .reward_clip = RewardClip::kNone,
                .storage = storage,
                .eviction = eviction,
                .seed = 1}) {}

  void add(int steps) {
    const std::vector<std::int64_t> envs{0};
    const std::vector<std::int64_t> actions{1};
    const std::vector<float> rewards{1.0F};
    const std::vector<std::uint8_t> no{0};
    for (; steps > 0; --steps) {
      const std::string frame = noise(1600, ++given);
      const FrameRows rows{reinterpret_cast<const std::byte*>(frame.data()), 1600};
      if (given % 100 == 1) {
        memory.begin(envs, rows);
      } else {
        memory.append({envs, actions, rewards, rows, no, no, no});
      }
    }
  }

  ReplayMemory memory;
  std::uint64_t given = 0;
};

std::size_t nbytes_in(const std::string& folder) {
  std::size_t nbytes = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) nbytes += file.file_size();
  return nbytes;
}

void what_did_not_change_is_not_written_again() {
  for (const Storage storage : {Storage::kRaw, Storage::kCompressed}) {
    for (const Eviction eviction : {Eviction::kFifo, Eviction::kRandom}) {
      const TemporaryFolder heads;
      const TemporaryFolder folder;
      Noisy noisy(storage, eviction);
      noisy.add(4'500);
      (void)noisy.memory.save_in_chunks(heads / "0", folder / "", "");
      const std::size_t first = nbytes_in(folder / "");
      CHECK(first > 4'000 * 1'600);
      CHECK(noisy.memory.save_in_chunks(heads / "same", folder / "", heads / "0").empty());
      for (int save = 1; save < 6; ++save) {
        noisy.add(100);
        const std::string before = heads / std::to_string(save - 1);
        (void)noisy.memory.save_in_chunks(heads / std::to_string(save), folder / "", before);
      }
      // Of each 100 frames, 160 kB: whole chunks at both ends of what changed, and the records'.
      const std::size_t grown = nbytes_in(folder / "") - first;
      CHECK(grown < 5 * (100 * 1'600 + 5 * kMaxChunkNbytes));
      // Every one of them is whole, the first included.
      for (int save = 0; save < 6; ++save) {
        const auto loaded = ReplayMemory::load(heads / std::to_string(save), {}, folder / "");
        CHECK(loaded->num_frames() == 4'000);
      }
      const auto loaded = ReplayMemory::load(heads / "5", {}, folder / "");
      noisy.memory.save(heads / "whole");
      const std::size_t size = read_file(heads / "whole").size();
      loaded->save(heads / "whole");
      CHECK(storage == Storage::kCompressed || read_file(heads / "whole").size() == size);
      for (int draw = 0; draw < 10; ++draw) {
        const Batch a = noisy.memory.sample(8, StackLayout::kPlanar);
        const Batch b = loaded->sample(8, StackLayout::kPlanar);
        CHECK(std::memcmp(a.target().states.data, b.target().states.data, 8 * 5 * 1'600) == 0);
      }
    }
  }
}

void a_part_that_is_not_what_it_was_is_refused() {
  const TemporaryFolder heads;
  const TemporaryFolder folder;
  Noisy noisy(Storage::kRaw, Eviction::kFifo);
  noisy.add(2'000);
  (void)noisy.memory.save_in_chunks(heads / "head", folder / "", "");
  const auto load = [&] { (void)ReplayMemory::load(heads / "head", {}, folder / ""); };
  load();
  CHECK_THROWS(ReplayMemory::load(heads / "head", {}), SnapshotError, "a part of it is missing");
  std::size_t number = 0;
  for (const Chunk& chunk : ReplayMemory::chunks_of(heads / "head")) {
    const std::string path = folder / name_of(chunk);
    const std::string bytes = read_file(path);
    std::string flipped = bytes;
    char& byte = flipped[++number * 7919 % flipped.size()];
    byte = static_cast<char>(byte ^ 16);
    write_file(path, flipped);
    CHECK_THROWS(load(), SnapshotError, name_of(chunk));
    write_file(path, bytes.substr(1));
    CHECK_THROWS(load(), SnapshotError, "bytes; expected");
    std::filesystem::remove(path);
    CHECK_THROWS(load(), SnapshotError, "a part of it is missing");
    std::filesystem::create_directory(path);
    CHECK_THROWS(load(), SnapshotError, "a part of it is damaged");
    std::filesystem::remove(path);
    write_file(path, bytes);
    load();
  }
  CHECK(number > 3);
}

/// A damaged chunk is noticed when its turn comes, a missing one in every turn, and the next save
/// heals every snapshot that has it, as long as the memory holds what was in it.
void damage_is_found_and_written_again() {
  const TemporaryFolder heads;
  const TemporaryFolder folder;
  Noisy noisy(Storage::kRaw, Eviction::kFifo);
  noisy.add(4'000);
  (void)noisy.memory.save_in_chunks(heads / "0", folder / "", "");
  const auto damaged = [&](std::uint64_t turn, std::uint64_t turns) {
    return ReplayMemory::damaged_chunks(heads / "0", folder / "", turn, turns);
  };
  CHECK(damaged(0, 1).empty());
  const Chunk first = ReplayMemory::chunks_of(heads / "0").at(2);
  const Chunk second = ReplayMemory::chunks_of(heads / "0").at(3);
  const std::string path = folder / name_of(first);
  const std::string bytes = read_file(path);
  std::string flipped = bytes;
  flipped[7] = static_cast<char>(flipped[7] ^ 1);
  write_file(path, flipped);
  int found = 0;
  for (std::uint64_t turn = 0; turn < 5; ++turn) {
    const std::vector<std::string> names = damaged(turn, 5);
    found += !names.empty();
    CHECK(names.empty() || names == std::vector{name_of(first)});
  }
  CHECK(found == 1);
  std::filesystem::remove(folder / name_of(second));
  for (std::uint64_t turn = 0; turn < 5; ++turn) {
    const std::vector<std::string> names = damaged(turn, 5);
    CHECK(std::find(names.begin(), names.end(), name_of(second)) != names.end());
  }
  // A missing one is written again by itself, a damaged one where it is named.
  const auto save = [&](const char* name, const std::vector<std::string>& named) {
    return noisy.memory.save_in_chunks(heads / name, folder / "", heads / "0", named);
  };
  CHECK(save("1", {}) == std::vector{name_of(second)});
  CHECK_THROWS(ReplayMemory::load(heads / "1", {}, folder / ""), SnapshotError, name_of(first));
  CHECK(save("2", damaged(0, 1)) == std::vector{name_of(first)});
  for (const char* name : {"0", "1", "2"}) {
    (void)ReplayMemory::load(heads / name, {}, folder / "");
  }
  CHECK_THROWS(damaged(0, 0), std::invalid_argument, "1 turn or more");
  CHECK_THROWS(ReplayMemory::damaged_chunks(heads / "none", folder / "", 0, 1), std::system_error,
               "none");
}

/// Where the previous snapshot is gone or damaged, all is written: nothing but time is lost.
void a_previous_snapshot_that_cannot_be_read_shares_nothing() {
  const TemporaryFolder heads;
  const TemporaryFolder folder;
  Noisy noisy(Storage::kRaw, Eviction::kFifo);
  noisy.add(500);
  const auto all = noisy.memory.save_in_chunks(heads / "0", folder / "", "");
  CHECK(!all.empty());
  write_file(heads / "damaged", read_file(heads / "0").substr(9));
  for (const char* previous : {"gone", "damaged"}) {
    CHECK(noisy.memory.save_in_chunks(heads / "1", folder / "", heads / previous) == all);
    (void)ReplayMemory::load(heads / "1", {}, folder / "");
  }
}

void a_folder_that_cannot_be_written_to_is_an_error() {
  const TemporaryFolder heads;
  Noisy noisy(Storage::kRaw, Eviction::kFifo);
  noisy.add(200);
  CHECK_THROWS(noisy.memory.save_in_chunks(heads / "head", heads / "nowhere", ""),
               std::system_error, "nowhere");
  CHECK(heads.num_files() == 0);
}

}  // namespace

int main() {
  digests_tell_contents_apart();
  a_digest_never_changes();
  a_section_comes_back_from_its_chunks();
  what_did_not_change_is_not_written_again();
  a_part_that_is_not_what_it_was_is_refused();
  damage_is_found_and_written_again();
  a_previous_snapshot_that_cannot_be_read_shares_nothing();
  a_folder_that_cannot_be_written_to_is_an_error();
}
