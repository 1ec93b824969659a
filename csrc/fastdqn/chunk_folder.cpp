#include "fastdqn/chunk_folder.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "fastdqn/snapshot.hpp"

namespace fastdqn {

namespace {

/// The 128 bits of a product, folded into 64.
std::uint64_t fold(std::uint64_t a, std::uint64_t b) noexcept {
  __extension__ using Wide = unsigned __int128;
  const Wide product = Wide{a} * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

// Odd, and otherwise without a pattern: of the digits of the golden ratio, e, pi and sqrt(2).
constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15;
constexpr std::uint64_t kEuler = 0xB7E151628AED2A6B;
constexpr std::uint64_t kPi = 0x3243F6A8885A308D;
constexpr std::uint64_t kRoot = 0x6A09E667F3BCC909;

}  // namespace

/// Four lanes of 64 bits, each of which takes every fourth pair of words: the processor multiplies
/// for all of them at once.
Digest digest(const void* data, std::size_t nbytes) noexcept {
  constexpr std::size_t kLanes = 4;
  constexpr std::array<std::uint64_t, kLanes> kKeys{kGolden, kEuler, kPi, kRoot};
  std::array<std::uint64_t, 2 * kLanes> words;
  std::array<std::uint64_t, kLanes> lanes = kKeys;
  const auto add = [&] {
    for (std::size_t k = 0; k < kLanes; ++k) {
      lanes[k] = fold(lanes[k] ^ words[2 * k], words[2 * k + 1] ^ kKeys[k]) +
                 std::rotl(words[2 * k], 23);
    }
  };
  const auto* bytes = static_cast<const unsigned char*>(data);
  std::size_t left = nbytes;
  for (; left >= sizeof(words); left -= sizeof(words), bytes += sizeof(words)) {
    std::memcpy(words.data(), bytes, sizeof(words));
    add();
  }
  if (left > 0) {
    words.fill(0);
    std::memcpy(words.data(), bytes, left);
    add();
  }
  Digest sum{nbytes, ~std::uint64_t{nbytes}};
  for (std::size_t k = 0; k < kLanes; ++k) {
    sum.low = fold(sum.low ^ lanes[k], kKeys[k]) + std::rotl(lanes[k], 7);
    sum.high = fold(sum.high + lanes[k], kKeys[kLanes - 1 - k]) ^ std::rotl(lanes[k], 31);
  }
  return sum;
}

std::string name_of(const Chunk& chunk) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string name;
  for (const std::uint64_t half : {chunk.digest.high, chunk.digest.low}) {
    for (int shift = 60; shift >= 0; shift -= 4) name += kDigits[(half >> shift) & 15];
  }
  return name;
}

ChunkFolder::ChunkFolder(std::string path, std::vector<Chunk> known)
    : path_(std::move(path)), known_(std::move(known)) {
  std::sort(known_.begin(), known_.end());
}

Chunk ChunkFolder::put(const void* data, std::size_t nbytes) {
  const Chunk chunk{digest(data, nbytes), nbytes};
  const auto place = std::lower_bound(known_.begin(), known_.end(), chunk);
  const bool known = place != known_.end() && *place == chunk;
  if (known && has(chunk)) return chunk;
  const std::string name = name_of(chunk);
  const std::string path = path_ + "/" + name;
  const std::string partial = path + ".partial";
  {
    const File file(open_or_fail(partial, O_WRONLY | O_CREAT | O_TRUNC));
    try {
      write_all(file.descriptor(), data, nbytes, partial);
    } catch (...) {
      unlink(partial.c_str());
      throw;
    }
  }
  if (rename(partial.c_str(), path.c_str()) != 0) fail_system(path, "cannot be replaced");
  if (!known) known_.insert(place, chunk);
  written_.push_back(name);
  return chunk;
}

void ChunkFolder::require(const Chunk& chunk, const std::string& snapshot) const {
  struct stat status {};
  const std::string path = path_ + "/" + name_of(chunk);
  if (stat(path.c_str(), &status) != 0) {
    throw SnapshotError(snapshot, "a part of it is missing: " + path);
  }
  if (!S_ISREG(status.st_mode) || static_cast<std::uint64_t>(status.st_size) != chunk.nbytes) {
    throw SnapshotError(snapshot, "a part of it is damaged: " + path + " has " +
                                      std::to_string(status.st_size) + " bytes; expected " +
                                      std::to_string(chunk.nbytes));
  }
}

void ChunkFolder::get(const Chunk& chunk, std::byte* target, const std::string& snapshot) const {
  require(chunk, snapshot);
  const std::string path = path_ + "/" + name_of(chunk);
  const File file(open_or_fail(path, O_RDONLY | O_NONBLOCK));
  read_all(file.descriptor(), 0, target, static_cast<std::size_t>(chunk.nbytes), path);
  if (digest(target, static_cast<std::size_t>(chunk.nbytes)) != chunk.digest) {
    throw SnapshotError(snapshot, "a part of it is damaged: " + path);
  }
}

bool ChunkFolder::has(const Chunk& chunk) const {
  struct stat status {};
  return stat((path_ + "/" + name_of(chunk)).c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
         static_cast<std::uint64_t>(status.st_size) == chunk.nbytes;
}

bool ChunkFolder::is_whole(const Chunk& chunk) const {
  if (!has(chunk)) return false;
  const std::string path = path_ + "/" + name_of(chunk);
  const File file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (file.descriptor() < 0) return false;
  (void)posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_DONTNEED);
  std::vector<std::byte> bytes(static_cast<std::size_t>(chunk.nbytes));
  try {
    read_all(file.descriptor(), 0, bytes.data(), bytes.size(), path);
  } catch (const std::runtime_error&) {  // the disk gives it back no more, or not all of it
    return false;
  }
  (void)posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_DONTNEED);
  return digest(bytes.data(), bytes.size()) == chunk.digest;
}

}  // namespace fastdqn
