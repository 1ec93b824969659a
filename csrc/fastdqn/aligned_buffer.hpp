#pragma once
// Memory to compute in.

#include <cstddef>
#include <memory>
#include <new>

namespace fastdqn {

/// Memory on a cache line that only grows, so that who has seen its largest batch allocates nothing.
class AlignedBuffer {
 public:
  /// What was there is lost where it has to grow.
  void reserve(std::size_t nbytes) {
    if (nbytes <= nbytes_) return;
    memory_.reset(static_cast<std::byte*>(::operator new[](nbytes, std::align_val_t{kAlignment})));
    nbytes_ = nbytes;
  }

  template <class Type = std::byte>
  Type* at(std::size_t offset_nbytes) const noexcept {
    return reinterpret_cast<Type*>(memory_.get() + offset_nbytes);
  }

 private:
  static constexpr std::size_t kAlignment = 64;
  struct Free {
    void operator()(std::byte* memory) const noexcept {
      ::operator delete[](memory, std::align_val_t{kAlignment});
    }
  };
  std::unique_ptr<std::byte[], Free> memory_;
  std::size_t nbytes_ = 0;
};

}  // namespace fastdqn
