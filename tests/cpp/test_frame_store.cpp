// The raw frame store: frames stay apart, absent ones are zeros, and refusals name the bytes.

#include "check.hpp"
#include "fastdqn/frame_store.hpp"

#include <cstring>
#include <vector>

namespace {

using fastdqn::FrameStore;
using fastdqn::kNoSlot;
using fastdqn::Slot;

std::vector<std::byte> filled(std::size_t nbytes, std::size_t value) {
  return std::vector<std::byte>(nbytes, static_cast<std::byte>(value));
}

void frames_stay_apart() {
  for (const std::size_t nbytes : {1U, 7U, 64U, 7056U}) {
    constexpr Slot kCapacity = 9;
    FrameStore store(kCapacity, nbytes);
    CHECK(store.nbytes() <= (kCapacity + 1) * nbytes);
    for (Slot slot = 0; slot < kCapacity; ++slot) {
      CHECK(std::memcmp(store.frame(slot), filled(nbytes, 0).data(), nbytes) == 0);
      store.write(slot, filled(nbytes, slot + 1).data());
    }
    store.write(4, filled(nbytes, 200).data());
    for (Slot slot = 0; slot < kCapacity; ++slot) {
      std::vector<std::byte> read = filled(nbytes, 99);
      store.read_into(slot, read.data());
      CHECK(read == filled(nbytes, slot == 4 ? 200 : slot + 1));
      CHECK(std::memcmp(store.frame(slot), read.data(), nbytes) == 0);
      store.prefetch(slot);
    }
  }
}

void absent_frames_are_zeros() {
  FrameStore store(2, 5);
  store.write(0, filled(5, 1).data());
  store.write(1, filled(5, 2).data());
  std::vector<std::byte> read = filled(5, 99);
  store.read_into(kNoSlot, read.data());
  CHECK(read == filled(5, 0));
  CHECK(std::memcmp(store.frame(kNoSlot), read.data(), 5) == 0);
  store.prefetch(kNoSlot);
}

void first_frames_as_they_lie() {
  FrameStore store(3, 2);
  store.write(0, filled(2, 1).data());
  store.write(1, filled(2, 2).data());
  CHECK(store.first(2).size() == 4);
  CHECK(store.first(2)[1] == std::byte{1});
  CHECK(store.first(2)[2] == std::byte{2});
}

void refusals_name_the_bytes() {
  CHECK_THROWS(FrameStore(std::size_t{1} << 45, 16), fastdqn::OutOfMemory, "562949953421328 bytes");
  CHECK_THROWS(FrameStore(std::size_t{1} << 62, 16), fastdqn::OutOfMemory,
               "4611686018427387904 frames of 16 bytes");
}

}  // namespace

int main() {
  frames_stay_apart();
  absent_frames_are_zeros();
  first_frames_as_they_lie();
  refusals_name_the_bytes();
}
