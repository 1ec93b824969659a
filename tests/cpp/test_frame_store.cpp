// Frame stores: frames stay apart, absent ones are zeros, and refusals name the bytes.

#include "check.hpp"
#include "fastdqn/frame_store.hpp"

#include <cstring>
#include <vector>

namespace {

using namespace fastdqn;
using Bytes = std::vector<std::byte>;

FrameGeometry bytes(std::size_t count) {
  return {{static_cast<std::int64_t>(count)}, DType::kUint8};
}

Bytes filled(std::size_t nbytes, std::size_t value) {
  return Bytes(nbytes, static_cast<std::byte>(value));
}

Bytes read(const FrameStore& store, Slot slot) {
  Bytes frame = filled(store.frame_nbytes(), 99);
  store.read(&slot, 1, frame.data(), 0);
  Bytes scratch = filled(store.frame_nbytes(), 98);
  const std::byte* found = nullptr;
  store.find(&slot, 1, scratch.data(), &found);
  CHECK(std::memcmp(found, frame.data(), frame.size()) == 0);
  return frame;
}

void frames_stay_apart() {
  for (const std::size_t nbytes : {1U, 7U, 64U, 7056U}) {
    constexpr Slot kCapacity = 9;
    const auto store = raw_store(kCapacity, bytes(nbytes), anonymous_backing());
    CHECK(store->nbytes() == kCapacity * nbytes);
    for (Slot slot = 0; slot < kCapacity; ++slot) {
      store->write(slot, 0, filled(nbytes, slot + 1).data());
    }
    store->release(4);
    store->write(4, 0, filled(nbytes, 200).data());
    for (Slot slot = 0; slot < kCapacity; ++slot) {
      store->prefetch_early(&slot, 1);
      store->prefetch(&slot, 1);
      CHECK(read(*store, slot) == filled(nbytes, slot == 4 ? 200 : slot + 1));
    }
    CHECK(store->nbytes_now(kCapacity) == store->nbytes());
  }
}

void absent_frames_are_zeros() {
  const auto store = raw_store(2, bytes(5), anonymous_backing());
  store->write(0, 0, filled(5, 1).data());
  store->write(1, 0, filled(5, 2).data());
  store->prefetch(&kNoSlot, 1);
  CHECK(read(*store, kNoSlot) == filled(5, 0));
}

void refusals_name_the_bytes() {
  CHECK_THROWS(raw_store(std::size_t{1} << 45, bytes(16), anonymous_backing()), OutOfMemory,
               "562949953421312 bytes");
  CHECK_THROWS(raw_store(std::size_t{1} << 62, bytes(16), anonymous_backing()), OutOfMemory,
               "4611686018427387904 frames of 16 bytes");
}

}  // namespace

int main() {
  frames_stay_apart();
  absent_frames_are_zeros();
  refusals_name_the_bytes();
}
