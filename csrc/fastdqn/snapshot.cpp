#include "fastdqn/snapshot.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace fastdqn {

static_assert(std::endian::native == std::endian::little,
              "snapshots are little-endian and are written as they lie in memory");

namespace {

constexpr std::array<unsigned char, 8> kMagic{0x93, 'f', 'd', 'q', 'n', '\r', '\n', 0x1a};
constexpr std::uint32_t kVersion = 1;
constexpr std::string_view kEndName = "end";
constexpr std::size_t kNameNbytes = 8;
constexpr std::size_t kMaxSections = 64;
constexpr std::size_t kChunkNbytes = std::size_t{1} << 20;  // summed while it is in the cache

struct FileHeader {
  std::array<unsigned char, 8> magic;
  std::uint32_t version;
  std::uint32_t checksum;
};
static_assert(sizeof(FileHeader) == 16);

struct SectionHeader {
  std::array<char, kNameNbytes> name;
  std::uint32_t nbytes_low;
  std::uint32_t nbytes_high;
  std::uint32_t checksum;

  std::uint64_t nbytes() const noexcept { return nbytes_low | std::uint64_t{nbytes_high} << 32; }
};
static_assert(sizeof(SectionHeader) == 20);

/// tables[k][byte]: what a byte that is followed by k more contributes to the checksum.
using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr Tables make_tables() noexcept {
  constexpr std::uint32_t kPolynomial = 0x82F63B78;  // Castagnoli's, bits reversed
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t sum = byte;
    for (int bit = 0; bit < 8; ++bit) sum = (sum >> 1) ^ ((sum & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = sum;
  }
  for (std::size_t k = 1; k < tables.size(); ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t shorter = tables[k - 1][byte];
      tables[k][byte] = (shorter >> 8) ^ tables[0][shorter & 0xFF];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

bool same_file(int descriptor, const std::string& path) {
  struct stat opened {};
  struct stat named {};
  return fstat(descriptor, &opened) == 0 && stat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

/// Opens `path` empty, for this writer alone. A file system without locks grants it to all.
int open_alone(const std::string& path) {
  const int descriptor = open_or_fail(path, O_WRONLY | O_CREAT);
  const bool locked = flock(descriptor, LOCK_EX | LOCK_NB) == 0;
  // The one who held the lock before may have renamed the file away in the meantime.
  const bool alone = (locked || errno != EWOULDBLOCK) && same_file(descriptor, path);
  if (!alone || ftruncate(descriptor, 0) != 0) {
    const int error = errno;
    close(descriptor);
    if (!alone) throw SnapshotError(path, "another save to this path is at work");
    errno = error;
    fail_system(path, "cannot be emptied");
  }
  return descriptor;
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

/// Sections below this are not worth a file.
constexpr std::size_t kLeastChunked = std::size_t{64} << 10;
// A section that grows in pieces is cut behind some of them, by what is in them and not by where they
// lie, so that the chunks behind a change are the same again. Nothing else decides, such as a least
// size of a chunk: two chains of cuts that differ once would take long to meet again.
constexpr std::uint64_t kMeanChunkNbytes = std::uint64_t{256} << 10;
constexpr std::size_t kLookedAtNbytes = 64;
constexpr const char* kChunkedName = "chunked";
constexpr const char* kChunksName = "chunks";

}  // namespace

void fail_system(const std::string& path, const char* what) {
  throw std::system_error(errno, std::generic_category(), path + ": " + what);
}

int open_or_fail(const std::string& path, int flags) {
  const int descriptor = open(path.c_str(), flags | O_CLOEXEC, 0666);
  if (descriptor < 0) fail_system(path, "cannot be opened");
  return descriptor;
}

void write_all(int descriptor, const void* data, std::size_t nbytes, const std::string& path) {
  const auto* bytes = static_cast<const std::byte*>(data);
  while (nbytes > 0) {
    const ssize_t written = ::write(descriptor, bytes, nbytes);
    if (written < 0 && errno != EINTR) fail_system(path, "cannot be written");
    if (written < 0) continue;
    bytes += written;
    nbytes -= static_cast<std::size_t>(written);
  }
}

void read_all(int descriptor, std::uint64_t offset, void* target, std::size_t nbytes,
              const std::string& path) {
  auto* bytes = static_cast<std::byte*>(target);
  while (nbytes > 0) {
    const ssize_t got = pread(descriptor, bytes, nbytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_system(path, "cannot be read");
    if (got == 0) throw SnapshotError(path, "the file shrank while it was read");
    bytes += got;
    offset += static_cast<std::uint64_t>(got);
    nbytes -= static_cast<std::size_t>(got);
  }
}

std::uint32_t checksum(const void* data, std::size_t nbytes, std::uint32_t previous) noexcept {
  const auto* bytes = static_cast<const unsigned char*>(data);
  std::uint32_t sum = ~previous;
  for (; nbytes >= 8; nbytes -= 8, bytes += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes, sizeof(word));
    word ^= sum;
    sum = 0;
    for (std::size_t k = 0; k < 8; ++k) sum ^= kTables[7 - k][(word >> (8 * k)) & 0xFF];
  }
  for (; nbytes > 0; --nbytes, ++bytes) sum = (sum >> 8) ^ kTables[0][(sum ^ *bytes) & 0xFF];
  return ~sum;
}

File::~File() {
  if (descriptor_ >= 0) close(descriptor_);
}

// -- writing ----------------------------------------------------------------------------------

SnapshotWriter::SnapshotWriter(std::string path)
    : path_(std::move(path)), partial_path_(path_ + ".partial"), file_(open_alone(partial_path_)) {
  FileHeader header{kMagic, kVersion, 0};
  header.checksum = checksum(&header, offsetof(FileHeader, checksum));
  write(&header, sizeof(header));
}

SnapshotWriter::SnapshotWriter(std::string path, ChunkFolder& chunks)
    : SnapshotWriter(std::move(path)) {
  chunks_ = &chunks;
}

SnapshotWriter::~SnapshotWriter() {
  if (!committed_) unlink(partial_path_.c_str());
}

void SnapshotWriter::write_section(std::string_view name, const void* data, std::size_t nbytes) {
  begin_section(name, nbytes);
  write_piece(data, nbytes);
  end_section();
}

void SnapshotWriter::begin_section(std::string_view name, std::size_t nbytes) {
  missing_nbytes_ = nbytes;
  sum_ = 0;
  in_chunks_ = chunks_ != nullptr && nbytes >= kLeastChunked;
  if (in_chunks_) {
    last_seen_ = 0;
    chunked_.push_back({{}, nbytes, 0});
    name.copy(chunked_.back().name.data(), kNameNbytes);
    return;
  }
  SectionHeader header{};
  name.copy(header.name.data(), kNameNbytes);
  header.nbytes_low = static_cast<std::uint32_t>(nbytes);
  header.nbytes_high = static_cast<std::uint32_t>(std::uint64_t{nbytes} >> 32);
  header.checksum = checksum(&header, offsetof(SectionHeader, checksum));
  write(&header, sizeof(header));
}

void SnapshotWriter::write_piece(const void* data, std::size_t nbytes) {
  if (nbytes > missing_nbytes_) throw std::logic_error("a section gets more than was announced");
  missing_nbytes_ -= nbytes;
  const auto* bytes = static_cast<const std::byte*>(data);
  if (in_chunks_) return write_chunked(bytes, nbytes);
  for (std::size_t done = 0; done < nbytes;) {
    const std::size_t chunk = std::min(kChunkNbytes, nbytes - done);
    sum_ = checksum(bytes + done, chunk, sum_);
    write(bytes + done, chunk);
    done += chunk;
  }
}

void SnapshotWriter::end_section() {
  if (missing_nbytes_ > 0) throw std::logic_error("a section gets less than was announced");
  if (in_chunks_) {
    end_chunk();
  } else {
    write(&sum_, sizeof(sum_));
  }
}

void SnapshotWriter::commit() {
  if (chunks_ != nullptr) write_chunk_lists();
  write_section(kEndName, nullptr, 0);
  if (chunks_ == nullptr && fsync(file_.descriptor()) != 0) {
    fail_system(partial_path_, "cannot be written to the disk");
  }
  if (rename(partial_path_.c_str(), path_.c_str()) != 0) fail_system(path_, "cannot be replaced");
  committed_ = true;
  if (chunks_ != nullptr) return;
  // So that the new name survives a power cut too. Not every folder can be opened or synced, and
  // the snapshot is complete by now: no reason to fail.
  const File folder(open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.descriptor() >= 0) (void)fsync(folder.descriptor());
}

void SnapshotWriter::write(const void* data, std::size_t nbytes) {
  write_all(file_.descriptor(), data, nbytes, partial_path_);
}

void SnapshotWriter::write_chunked(const std::byte* bytes, std::size_t nbytes) {
  // With the piece before it: many are the same where a game stands still, but their slots are not.
  const std::array seen{last_seen_, digest(bytes, std::min(nbytes, kLookedAtNbytes)).low};
  last_seen_ = seen[1];
  const std::uint64_t drawn = digest(seen.data(), sizeof(seen)).low >> 32;
  const bool cuts = nbytes < kMaxChunkNbytes &&
                    drawn < (std::uint64_t{nbytes} << 32) / kMeanChunkNbytes;
  while (nbytes > 0) {
    const std::size_t part = std::min(nbytes, kMaxChunkNbytes - chunk_.size());
    if (part == kMaxChunkNbytes) {
      listed_.push_back(chunks_->put(bytes, part));
      ++chunked_.back().num_chunks;
    } else {
      chunk_.insert(chunk_.end(), bytes, bytes + part);
      if (chunk_.size() == kMaxChunkNbytes) end_chunk();
    }
    bytes += part;
    nbytes -= part;
  }
  if (cuts) end_chunk();
}

void SnapshotWriter::end_chunk() {
  if (chunk_.empty()) return;
  listed_.push_back(chunks_->put(chunk_.data(), chunk_.size()));
  ++chunked_.back().num_chunks;
  chunk_.clear();
}

void SnapshotWriter::write_chunk_lists() {
  const std::vector<ChunkedSection> sections = std::move(chunked_);
  ChunkFolder* const folder = std::exchange(chunks_, nullptr);
  write_section(kChunkedName, sections.data(), sections.size() * sizeof(ChunkedSection));
  write_section(kChunksName, listed_.data(), listed_.size() * sizeof(Chunk));
  chunks_ = folder;
}

// -- reading ----------------------------------------------------------------------------------

// O_NONBLOCK: a pipe is to be refused, not waited for.
SnapshotReader::SnapshotReader(std::string path, std::string chunks)
    : path_(std::move(path)),
      file_(open_or_fail(path_, O_RDONLY | O_NONBLOCK)),
      folder_(std::move(chunks)) {
  find_sections();
  if (has_section(kChunkedName)) find_chunked_sections();
}

void SnapshotReader::find_sections() {
  struct stat status {};
  if (fstat(file_.descriptor(), &status) != 0) fail_system(path_, "cannot be examined");
  if (!S_ISREG(status.st_mode)) throw SnapshotError(path_, "this is not a regular file");
  const auto file_nbytes = static_cast<std::uint64_t>(status.st_size);
  const auto require = [&](std::uint64_t end, const std::string& what) {
    if (end <= file_nbytes) return;
    throw SnapshotError(path_, "the file is cut short: " + what + " would end at byte " +
                                   std::to_string(end) + ", the file has " +
                                   std::to_string(file_nbytes));
  };

  FileHeader header{};
  require(sizeof(header), "its header");
  read_at(0, &header, sizeof(header));
  if (header.magic != kMagic) throw SnapshotError(path_, "this is not a snapshot of fastdqn");
  if (header.checksum != checksum(&header, offsetof(FileHeader, checksum))) {
    throw SnapshotError(path_, "the header of the file is damaged");
  }
  if (header.version != kVersion) {
    throw SnapshotError(path_, "the snapshot has format version " +
                                   std::to_string(header.version) + "; expected " +
                                   std::to_string(kVersion));
  }
  std::uint64_t offset = sizeof(header);
  for (std::size_t count = 0; count < kMaxSections; ++count) {
    SectionHeader head{};
    require(offset + sizeof(head), "the header of section " + std::to_string(count));
    read_at(offset, &head, sizeof(head));
    offset += sizeof(head);
    if (head.checksum != checksum(&head, offsetof(SectionHeader, checksum))) {
      throw SnapshotError(path_, "the header of section " + std::to_string(count) +
                                     " is damaged");
    }
    const std::string name(head.name.data(), strnlen(head.name.data(), kNameNbytes));
    if (head.nbytes() > file_nbytes) {
      throw SnapshotError(path_, "section \"" + name + "\" claims " +
                                     std::to_string(head.nbytes()) + " bytes, the file has " +
                                     std::to_string(file_nbytes));
    }
    require(offset + head.nbytes() + sizeof(std::uint32_t), "section \"" + name + "\"");
    sections_.push_back({name, offset, static_cast<std::size_t>(head.nbytes()), false});
    offset += head.nbytes() + sizeof(std::uint32_t);
    if (name != kEndName) continue;
    if (offset != file_nbytes) {
      throw SnapshotError(path_, "the snapshot ends at byte " + std::to_string(offset) +
                                     ", the file has " + std::to_string(file_nbytes));
    }
    read_section(kEndName, nullptr, 0);
    return;
  }
  throw SnapshotError(path_, "the file has more than " + std::to_string(kMaxSections) +
                                 " sections");
}

/// Each chunk is where it should be and has its size before anything is made for its contents.
void SnapshotReader::find_chunked_sections() {
  const auto refuse = [&](const std::string& what) { throw SnapshotError(path_, what); };
  const auto read_items = [&](const char* name, auto& items) {
    const std::size_t nbytes = section_nbytes(name);
    if (nbytes % sizeof(items[0]) != 0) refuse("section \"" + std::string(name) + "\" is damaged");
    items.resize(nbytes / sizeof(items[0]));
    read_section(name, items.data(), nbytes);
  };
  std::vector<ChunkedSection> sections;
  read_items(kChunkedName, sections);
  read_items(kChunksName, listed_);
  if (sections.size() > kMaxSections) refuse("it has more than a snapshot's sections");
  std::uint64_t next = 0;
  for (const ChunkedSection& chunked : sections) {
    const std::string name(chunked.name.data(), strnlen(chunked.name.data(), kNameNbytes));
    if (chunked.num_chunks > listed_.size() - next) refuse("a list of its parts is too short");
    std::uint64_t nbytes = 0;
    for (std::uint64_t k = next; k < next + chunked.num_chunks; ++k) nbytes += listed_[k].nbytes;
    if (nbytes != chunked.nbytes) refuse("the parts of \"" + name + "\" are not all of it");
    sections_.push_back({name, next, static_cast<std::size_t>(nbytes), true});
    next += chunked.num_chunks;
  }
  for (const Chunk& chunk : listed_) {
    if (chunk.nbytes > kMaxChunkNbytes) refuse("a part of it is larger than any can be");
  }
  if (next != listed_.size()) refuse("a list of its parts is too long");
}

void SnapshotReader::require_chunks() const {
  for (const Chunk& chunk : listed_) folder_.require(chunk, path_);
}

const SnapshotReader::Section& SnapshotReader::section(std::string_view name) const {
  const auto found = std::find_if(sections_.begin(), sections_.end(),
                                  [&](const Section& known) { return known.name == name; });
  if (found != sections_.end()) return *found;
  throw SnapshotError(path_, "section \"" + std::string(name) + "\" is missing");
}

bool SnapshotReader::has_section(std::string_view name) const noexcept {
  return std::any_of(sections_.begin(), sections_.end(),
                     [&](const Section& known) { return known.name == name; });
}

void SnapshotReader::read_section(std::string_view name, void* target, std::size_t nbytes) {
  if (section_nbytes(name) != nbytes) {
    throw SnapshotError(path_, "section \"" + std::string(name) + "\" has " +
                                   std::to_string(section_nbytes(name)) + " bytes; expected " +
                                   std::to_string(nbytes));
  }
  Stream whole = stream(name);
  whole.read(target, nbytes);
  whole.finish();
}

SnapshotReader::Stream::Stream(SnapshotReader& reader, std::string_view name)
    : reader_(reader),
      name_(name),
      offset_(reader.section(name).offset),
      nbytes_left_(reader.section(name).nbytes),
      in_chunks_(reader.section(name).in_chunks) {}

void SnapshotReader::Stream::read(void* target, std::size_t nbytes) {
  if (nbytes > nbytes_left_) {
    throw SnapshotError(reader_.path(), "section \"" + name_ + "\" is too short for its contents");
  }
  auto* bytes = static_cast<std::byte*>(target);
  if (in_chunks_) return read_chunked(bytes, nbytes);
  for (std::size_t done = 0; done < nbytes;) {
    const std::size_t chunk = std::min(kChunkNbytes, nbytes - done);
    reader_.read_at(offset_, bytes + done, chunk);
    sum_ = checksum(bytes + done, chunk, sum_);
    offset_ += chunk;
    done += chunk;
  }
  nbytes_left_ -= nbytes;
}

void SnapshotReader::Stream::read_chunked(std::byte* target, std::size_t nbytes) {
  nbytes_left_ -= nbytes;
  while (nbytes > 0) {
    if (chunk_done_ == chunk_.size()) {
      const Chunk& next = reader_.listed_[offset_++];
      chunk_.resize(static_cast<std::size_t>(next.nbytes));
      chunk_done_ = 0;
      reader_.folder_.get(next, chunk_.data(), reader_.path());
      continue;  // a forged one may be empty
    }
    const std::size_t part = std::min(nbytes, chunk_.size() - chunk_done_);
    std::memcpy(target, chunk_.data() + chunk_done_, part);
    chunk_done_ += part;
    target += part;
    nbytes -= part;
  }
}

void SnapshotReader::Stream::finish() {
  if (nbytes_left_ > 0) {
    throw SnapshotError(reader_.path(), "section \"" + name_ + "\" is longer than its contents");
  }
  if (in_chunks_) return;  // each was checked by itself
  std::uint32_t stored = 0;
  reader_.read_at(offset_, &stored, sizeof(stored));
  if (stored != sum_) {
    throw SnapshotError(reader_.path(), "section \"" + name_ + "\" is damaged");
  }
}

void SnapshotReader::read_at(std::uint64_t offset, void* target, std::size_t nbytes) {
  read_all(file_.descriptor(), offset, target, nbytes, path_);
}

}  // namespace fastdqn
