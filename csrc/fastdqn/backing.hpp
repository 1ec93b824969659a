#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <string>

namespace fastdqn {

/// Memory that the system does not have; what() names the bytes that were asked for.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(std::string message) : message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

/// Where a frame store's bytes are: pieces of memory that stay where they are until the backing is
/// destroyed. Not thread-safe, apart from read_ahead.
class Backing {
 public:
  virtual ~Backing() = default;
  Backing(const Backing&) = delete;
  Backing& operator=(const Backing&) = delete;

  /// One more piece, aligned to a page, of zeros or of what an existing file has there: reserved at
  /// once, so that writing to it cannot fail for want of room. Throws OutOfMemory or
  /// std::system_error where the system refuses.
  virtual std::byte* extend(std::size_t nbytes) = 0;

  /// Whether bytes may be farther away than memory, so that read_ahead pays.
  virtual bool is_far() const noexcept = 0;

  /// Says that bytes were written that will not change soon.
  virtual void written(const std::byte* data, std::size_t nbytes) noexcept = 0;

  /// Asks for bytes that are read or written soon, and does not wait for them.
  virtual void read_ahead(const std::byte* data, std::size_t nbytes) const noexcept = 0;

  /// Returns once all that was written would survive a power cut. Throws std::system_error.
  virtual void sync() = 0;

 protected:
  Backing() = default;
};

/// Anonymous memory, in huge pages where the system has them, committed as it is first written.
std::unique_ptr<Backing> anonymous_backing();

/// A file, mapped: more than memory holds finds place, and one descriptor serves any size. Its
/// blocks are reserved before they are touched, because a full disk is an error only there: later
/// it would end the process. `keep` maps what the file has before it grows, and throws SnapshotError
/// where that is less than the first piece; else the file starts anew.
std::unique_ptr<Backing> file_backing(const std::string& path, bool keep);

/// A folder for the files of one memory, which belongs to one process at a time.
class Folder {
 public:
  /// Makes the folder where there is none. Throws std::system_error, naming it: EWOULDBLOCK where
  /// another memory is at work in it.
  explicit Folder(std::string path);
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const noexcept { return path_; }
  std::string frames_path() const { return path_ + "/frames"; }

  /// What the frames file holds; there exactly while that is known.
  std::string index_path() const { return path_ + "/index"; }
  bool has_index() const noexcept;

  /// Before the frames change. Throws std::system_error.
  void remove_index();

 private:
  std::string path_;
  int lock_;
};

}  // namespace fastdqn
