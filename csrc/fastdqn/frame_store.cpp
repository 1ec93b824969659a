#include "fastdqn/frame_store.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#define FASTDQN_HAS_MMAP 1
#endif

namespace fastdqn {

namespace {

constexpr std::size_t kCacheLine = 64;
constexpr std::size_t kPrefetchedLines = 8;

std::size_t total_nbytes(std::size_t capacity, std::size_t frame_nbytes) {
  if (capacity >= std::numeric_limits<std::ptrdiff_t>::max() / frame_nbytes) {
    throw OutOfMemory(std::to_string(capacity) + " frames of " + std::to_string(frame_nbytes) +
                      " bytes are more than this machine can address");
  }
  return (capacity + 1) * frame_nbytes;
}

}  // namespace

FrameStore::Memory FrameStore::allocate(std::size_t nbytes) {
#ifdef FASTDQN_HAS_MMAP
  void* data =
      mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) data = nullptr;
#ifdef MADV_HUGEPAGE
  // Random rows from gigabytes miss the TLB at every 4 KiB page; a refusal costs speed only.
  if (data != nullptr) (void)madvise(data, nbytes, MADV_HUGEPAGE);
#endif
#else
  void* data = std::calloc(nbytes, 1);
#endif
  if (data == nullptr) {
    throw OutOfMemory("the system refused " + std::to_string(nbytes) +
                      " bytes of memory for the frames");
  }
  return Memory(static_cast<std::byte*>(data), Release{nbytes});
}

void FrameStore::Release::operator()(std::byte* data) const noexcept {
#ifdef FASTDQN_HAS_MMAP
  munmap(data, nbytes);
#else
  std::free(data);
#endif
}

FrameStore::FrameStore(std::size_t capacity, std::size_t frame_nbytes)
    : capacity_(capacity),
      frame_nbytes_(frame_nbytes),
      nbytes_(total_nbytes(capacity, frame_nbytes)),
      data_(allocate(nbytes_)) {}

void FrameStore::write(Slot slot, const std::byte* source) noexcept {
  std::memcpy(data_.get() + slot * frame_nbytes_, source, frame_nbytes_);
}

void FrameStore::read_into(Slot slot, std::byte* target) const noexcept {
  if (slot == kNoSlot) {
    std::memset(target, 0, frame_nbytes_);
  } else {
    std::memcpy(target, data_.get() + slot * frame_nbytes_, frame_nbytes_);
  }
}

const std::byte* FrameStore::frame(Slot slot) const noexcept {
  return data_.get() + std::min<std::size_t>(slot, capacity_) * frame_nbytes_;
}

void FrameStore::prefetch(Slot slot) const noexcept {
#if defined(__GNUC__)
  const std::byte* data = frame(slot);
  const std::size_t nbytes = std::min(frame_nbytes_, kPrefetchedLines * kCacheLine);
  for (std::size_t offset = 0; offset < nbytes; offset += kCacheLine) {
    __builtin_prefetch(data + offset);
  }
#else
  (void)slot;
#endif
}

}  // namespace fastdqn
