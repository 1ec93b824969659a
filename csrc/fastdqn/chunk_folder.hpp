#pragma once
// Pieces of snapshots in files of their own, named after their contents: what two snapshots have in
// common is there once, and a piece that is there is never written to again.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace fastdqn {

/// 128 bits that contents are told apart by, as they may come by chance or by a fault: nobody is
/// kept from making two contents with one digest on purpose.
struct Digest {
  std::uint64_t low = 0;
  std::uint64_t high = 0;

  friend auto operator<=>(const Digest&, const Digest&) = default;
};

Digest digest(const void* data, std::size_t nbytes) noexcept;

/// One piece, as snapshots list it.
struct Chunk {
  Digest digest;
  std::uint64_t nbytes = 0;

  friend auto operator<=>(const Chunk&, const Chunk&) = default;
};
static_assert(sizeof(Chunk) == 24);

inline constexpr std::size_t kMaxChunkNbytes = std::size_t{1} << 20;

/// The name of a chunk's file: its digest in hexadecimal, the higher half first.
std::string name_of(const Chunk& chunk);

/// A folder of chunks. Not thread-safe.
class ChunkFolder {
 public:
  /// `known` are the chunks that were whole and on the disk: those that still are there, in their
  /// size, are not written again.
  explicit ChunkFolder(std::string path, std::vector<Chunk> known = {});

  const std::string& path() const noexcept { return path_; }

  /// Puts up to kMaxChunkNbytes into the folder. They are not synced. Throws std::system_error.
  Chunk put(const void* data, std::size_t nbytes);

  /// The names of the files that were written by put, each once.
  const std::vector<std::string>& written() const noexcept { return written_; }

  /// Throws SnapshotError, in the name of `snapshot`, where the file is missing or has another size.
  void require(const Chunk& chunk, const std::string& snapshot) const;

  /// Fills `target` with the chunk, which is checked. Throws as `require` does.
  void get(const Chunk& chunk, std::byte* target, const std::string& snapshot) const;

  /// Whether the file is there and has its size.
  bool has(const Chunk& chunk) const;

  /// Whether its contents are what they were, too: read from the disk, as far as the system lets
  /// one ask for that, and not from its cache.
  bool is_whole(const Chunk& chunk) const;

 private:
  std::string path_;
  std::vector<Chunk> known_;  // sorted, with those that were put
  std::vector<std::string> written_;
};

}  // namespace fastdqn
