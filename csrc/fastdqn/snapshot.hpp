#pragma once
// The on-disk format: named sections, each with its length and a checksum.
//
//   file     magic[8]  version u32  checksum u32 of the 12 bytes before  section...  end section
//   section  name[8]  nbytes u64  checksum u32 of the 16 bytes before  payload  checksum u32 of it
//
// Integers are little-endian, names are padded with zeros, checksums are CRC-32C, the end section
// is named "end" and empty. Nothing in a file is believed before it is checked: lengths against
// the size of the file, then payloads against their checksums.
//
// A snapshot may keep its larger sections in chunks, files that it shares with others (see
// chunk_folder.hpp). In their place it has two sections at its end:
//
//   chunked  for each of them: name[8]  nbytes u64  number of chunks u64
//   chunks   for each chunk, in the order of the sections: digest u64 low, u64 high  nbytes u64

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "fastdqn/chunk_folder.hpp"

namespace fastdqn {

/// A file that is not a whole snapshot; what() names the file and what is wrong with it.
class SnapshotError : public std::runtime_error {
 public:
  SnapshotError(const std::string& path, const std::string& what)
      : std::runtime_error(path + ": " + what) {}
};

/// CRC-32C (Castagnoli) of `data`; `previous` is the checksum of what came before it.
std::uint32_t checksum(const void* data, std::size_t nbytes, std::uint32_t previous = 0) noexcept;

/// An open file descriptor, closed with its owner.
class File {
 public:
  explicit File(int descriptor) noexcept : descriptor_(descriptor) {}
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int descriptor() const noexcept { return descriptor_; }

 private:
  int descriptor_;
};

[[noreturn]] void fail_system(const std::string& path, const char* what);

/// These throw std::system_error, naming the file.
int open_or_fail(const std::string& path, int flags);
void write_all(int descriptor, const void* data, std::size_t nbytes, const std::string& path);

/// Throws SnapshotError, too, where the file ends before.
void read_all(int descriptor, std::uint64_t offset, void* target, std::size_t nbytes,
              const std::string& path);

/// A section that is kept in chunks, as it is written to a snapshot.
struct ChunkedSection {
  std::array<char, 8> name;
  std::uint64_t nbytes;
  std::uint64_t num_chunks;
};
static_assert(sizeof(ChunkedSection) == 24);

/// Writes a snapshot beside `path` and puts it in place as a whole: at every moment `path` is what
/// it was or the complete new snapshot, through a kill and a power cut too. What a kill leaves
/// behind, `path`.partial, is overwritten by the next attempt.
///
/// Throws std::system_error, naming the file, where the system refuses. Not thread-safe.
class SnapshotWriter {
 public:
  /// Throws SnapshotError where another writer is at work on the same path.
  explicit SnapshotWriter(std::string path);

  /// Puts larger sections into `chunks`, which must outlive it. Then commit does not wait for the
  /// disk: that is for the caller to do, of the chunks and of the snapshot.
  SnapshotWriter(std::string path, ChunkFolder& chunks);

  ~SnapshotWriter();
  SnapshotWriter(const SnapshotWriter&) = delete;
  SnapshotWriter& operator=(const SnapshotWriter&) = delete;

  /// `name` has at most 8 characters.
  void write_section(std::string_view name, const void* data, std::size_t nbytes);

  /// The same in pieces: `nbytes` is what they have together, which end_section insists on.
  void begin_section(std::string_view name, std::size_t nbytes);
  void write_piece(const void* data, std::size_t nbytes);
  void end_section();

  /// Ends the snapshot and puts it in place. Without it, nothing is left of the attempt.
  void commit();

 private:
  void write(const void* data, std::size_t nbytes);
  void write_chunked(const std::byte* bytes, std::size_t nbytes);
  void end_chunk();
  void write_chunk_lists();

  std::string path_;
  std::string partial_path_;
  File file_;
  ChunkFolder* chunks_ = nullptr;
  bool in_chunks_ = false;  // the section that was begun
  std::vector<ChunkedSection> chunked_;
  std::vector<Chunk> listed_;
  std::vector<std::byte> chunk_;  // that grows
  std::uint64_t last_seen_ = 0;   // what the last piece begins with, as a digest
  std::size_t missing_nbytes_ = 0;  // of the section that was begun
  std::uint32_t sum_ = 0;           // of its pieces
  bool committed_ = false;
};

/// Reads a snapshot. All lengths are checked when it is opened, each payload as it is read.
///
/// Throws SnapshotError where the file is damaged, std::system_error where the system refuses.
/// Not thread-safe.
class SnapshotReader {
 public:
  /// `chunks` is the folder of its chunks, if it has any.
  explicit SnapshotReader(std::string path, std::string chunks = "");

  const std::string& path() const noexcept { return path_; }

  std::size_t section_nbytes(std::string_view name) const { return section(name).nbytes; }

  bool has_section(std::string_view name) const noexcept;

  /// Fills `target` with a section that must have exactly `nbytes`.
  void read_section(std::string_view name, void* target, std::size_t nbytes);

  /// A section from beginning to end. What is read is checked only by finish: until then it may be
  /// anything.
  class Stream {
   public:
    std::size_t nbytes_left() const noexcept { return nbytes_left_; }
    void read(void* target, std::size_t nbytes);

    /// Throws SnapshotError where something is left or the section is damaged.
    void finish();

   private:
    friend class SnapshotReader;
    Stream(SnapshotReader& reader, std::string_view name);

    SnapshotReader& reader_;
    const std::string name_;
    void read_chunked(std::byte* target, std::size_t nbytes);

    std::uint64_t offset_;  // in the file; in chunks: the number of the next one
    std::size_t nbytes_left_;
    const bool in_chunks_;
    std::vector<std::byte> chunk_;
    std::size_t chunk_done_ = 0;  // bytes
    std::uint32_t sum_ = 0;
  };
  Stream stream(std::string_view name) { return {*this, name}; }

  /// Finds every chunk in its folder, with its size. Throws SnapshotError where one is not.
  void require_chunks() const;

  /// The chunks of all sections.
  std::span<const Chunk> chunks() const noexcept { return listed_; }

 private:
  struct Section {
    std::string name;
    std::uint64_t offset;  // of the payload; in chunks: the number of the first one
    std::size_t nbytes;
    bool in_chunks;
  };

  const Section& section(std::string_view name) const;
  void find_sections();
  void find_chunked_sections();
  void read_at(std::uint64_t offset, void* target, std::size_t nbytes);

  std::string path_;
  File file_;
  ChunkFolder folder_;
  std::vector<Section> sections_;
  std::vector<Chunk> listed_;
};

}  // namespace fastdqn
