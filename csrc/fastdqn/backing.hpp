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

  /// One more piece, of zeros, aligned to a page: reserved at once, so that writing to it cannot
  /// fail for want of room. Throws OutOfMemory or std::system_error where the system refuses.
  virtual std::byte* extend(std::size_t nbytes) = 0;

  /// Says that bytes were written that will not change soon.
  virtual void written(const std::byte* data, std::size_t nbytes) noexcept = 0;

  /// Asks for bytes that are read soon, where they may be farther away than memory.
  virtual void read_ahead(const std::byte* data, std::size_t nbytes) const noexcept = 0;

 protected:
  Backing() = default;
};

/// Anonymous memory, in huge pages where the system has them, committed as it is first written.
std::unique_ptr<Backing> anonymous_backing();

}  // namespace fastdqn
