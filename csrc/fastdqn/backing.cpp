#include "fastdqn/backing.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <system_error>
#include <utility>
#include <vector>

#include "fastdqn/snapshot.hpp"

namespace fastdqn {

namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::size_t whole_pages(std::size_t nbytes) noexcept {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return (nbytes + page - 1) / page * page;
}

class AnonymousBacking final : public Backing {
 public:
  ~AnonymousBacking() override {
    for (const auto& [data, nbytes] : pieces_) munmap(data, nbytes);
  }

  std::byte* extend(std::size_t nbytes) override {
    nbytes = whole_pages(nbytes);
    pieces_.reserve(pieces_.size() + 1);
    // Asked for with room to spare, of which what lies before a huge page's beginning goes back.
    const std::size_t spare = nbytes < kHugePage ? 0 : kHugePage;
    void* mapped = mmap(nullptr, nbytes + spare, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) {
      throw OutOfMemory("the system refused " + std::to_string(nbytes) +
                        " bytes of memory for the frames");
    }
    auto* data = static_cast<std::byte*>(mapped);
    if (spare > 0) {
      const std::size_t before = (0 - reinterpret_cast<std::uintptr_t>(data)) % kHugePage;
      if (before > 0) munmap(data, before);
      data += before;
      if (before < spare) munmap(data + nbytes, spare - before);
    }
#ifdef MADV_HUGEPAGE
    // Random rows from gigabytes miss the TLB at every 4 KiB page; a refusal costs speed only.
    (void)madvise(data, nbytes, MADV_HUGEPAGE);
#endif
    pieces_.push_back({data, nbytes});
    return data;
  }

  bool is_far() const noexcept override { return false; }
  void written(const std::byte*, std::size_t) noexcept override {}
  void read_ahead(const std::byte*, std::size_t) const noexcept override {}
  void sync() override {}

 private:
  struct Piece {
    std::byte* data;
    std::size_t nbytes;
  };
  std::vector<Piece> pieces_;
};

[[noreturn]] void fail(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

class FileBacking final : public Backing {
 public:
  FileBacking(const std::string& path, bool keep)
      : path_(path), keep_(keep), file_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
    if (file_.descriptor() < 0) fail(errno, path_ + ": cannot be opened");
    struct stat status {};
    if (fstat(file_.descriptor(), &status) != 0) fail(errno, path_ + ": cannot be examined");
    if (!S_ISREG(status.st_mode)) fail(EINVAL, path_ + ": this is not a regular file");
    if (keep) {
      existing_ = static_cast<std::size_t>(status.st_size);
    } else if (ftruncate(file_.descriptor(), 0) != 0) {
      fail(errno, path_ + ": cannot be emptied");
    }
  }

  ~FileBacking() override {
    for (const Piece& piece : pieces_) munmap(piece.data, piece.nbytes);
  }

  std::byte* extend(std::size_t nbytes) override {
    nbytes = whole_pages(nbytes);
    pieces_.reserve(pieces_.size() + 1);
    if (keep_ && used_ == 0 && nbytes > existing_) {
      throw SnapshotError(path_, "the file is cut short: it has " + std::to_string(existing_) +
                                     " bytes, of " + std::to_string(nbytes));
    }
    if (used_ + nbytes > existing_) allocate(used_ + nbytes);
    void* mapped = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.descriptor(),
                        static_cast<off_t>(used_));
    if (mapped == MAP_FAILED) {
      fail(errno, path_ + ": " + std::to_string(nbytes) + " bytes cannot be mapped");
    }
    // Rows are read from anywhere: what lies around them is not wanted.
    (void)madvise(mapped, nbytes, MADV_RANDOM);
    pieces_.push_back({static_cast<std::byte*>(mapped), nbytes, used_});
    used_ += nbytes;
    return pieces_.back().data;
  }

  bool is_far() const noexcept override { return true; }

  /// Begins to write to the disk, so that no more than a few megabytes ever wait for it.
  void written(const std::byte* data, std::size_t nbytes) noexcept override {
#if defined(__linux__)
    for (const Piece& piece : pieces_) {
      if (data < piece.data || data >= piece.data + piece.nbytes) continue;
      const auto offset = piece.offset + static_cast<std::size_t>(data - piece.data);
      (void)sync_file_range(file_.descriptor(), static_cast<off_t>(offset),
                            static_cast<off_t>(nbytes), SYNC_FILE_RANGE_WRITE);
    }
#else
    (void)msync(const_cast<std::byte*>(data), nbytes, MS_ASYNC);
#endif
  }

  void read_ahead(const std::byte* data, std::size_t nbytes) const noexcept override {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t before = reinterpret_cast<std::uintptr_t>(data) % page;
    (void)madvise(const_cast<std::byte*>(data) - before, nbytes + before, MADV_WILLNEED);
  }

  void sync() override {
    if (fsync(file_.descriptor()) != 0) fail(errno, path_ + ": cannot be written to the disk");
  }

 private:
  struct Piece {
    std::byte* data;
    std::size_t nbytes;
    std::size_t offset;  // in the file
  };

  void allocate(std::size_t end) {
    const std::size_t wanted = end - existing_;
    struct statvfs disk {};
    if (fstatvfs(file_.descriptor(), &disk) == 0) {
      const std::size_t left = static_cast<std::size_t>(disk.f_bavail) * disk.f_frsize;
      if (wanted > left) {
        fail(ENOSPC, path_ + ": needs " + std::to_string(wanted) + " bytes more, of which " +
                         std::to_string(left) + " are free");
      }
    }
    const int error = posix_fallocate(file_.descriptor(), static_cast<off_t>(existing_),
                                      static_cast<off_t>(wanted));
    if (error != 0) {
      (void)ftruncate(file_.descriptor(), static_cast<off_t>(existing_));
      fail(error, path_ + ": needs " + std::to_string(wanted) + " bytes more");
    }
    existing_ = end;
  }

  const std::string path_;
  const bool keep_;
  const File file_;
  std::size_t existing_ = 0;  // bytes of the file
  std::size_t used_ = 0;      // those that are in pieces
  std::vector<Piece> pieces_;
};

}  // namespace

std::unique_ptr<Backing> anonymous_backing() { return std::make_unique<AnonymousBacking>(); }

std::unique_ptr<Backing> file_backing(const std::string& path, bool keep) {
  return std::make_unique<FileBacking>(path, keep);
}

Folder::Folder(std::string path) : path_(std::move(path)) {
  if (mkdir(path_.c_str(), 0777) != 0 && errno != EEXIST) fail(errno, path_ + ": cannot be made");
  const std::string lock_path = path_ + "/lock";
  lock_ = open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (lock_ < 0) fail(errno, lock_path + ": cannot be opened");
  if (flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    std::array<char, 32> owner{};
    const ssize_t length = pread(lock_, owner.data(), owner.size() - 1, 0);
    close(lock_);
    if (error != EWOULDBLOCK) fail(error, lock_path + ": cannot be locked");
    const std::string process(owner.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
    fail(error, path_ + ": is in use by " + (process.empty() ? "another process" : process));
  }
  const std::string process = "process " + std::to_string(getpid());
  // Only for the message above.
  if (ftruncate(lock_, 0) == 0) (void)!pwrite(lock_, process.data(), process.size(), 0);
}

Folder::~Folder() {
  (void)ftruncate(lock_, 0);
  close(lock_);
}

bool Folder::has_index() const noexcept { return access(index_path().c_str(), F_OK) == 0; }

void Folder::remove_index() {
  if (unlink(index_path().c_str()) != 0 && errno != ENOENT) {
    fail(errno, index_path() + ": cannot be removed");
  }
  // The frames must not reach the disk before that has. Not every file system can say so.
  const File folder(open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.descriptor() >= 0) (void)fsync(folder.descriptor());
}

}  // namespace fastdqn
