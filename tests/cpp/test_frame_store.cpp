// Frame stores: frames stay apart, absent ones are zeros, and refusals name the bytes.

#include "check.hpp"
#include "fastdqn/frame_store.hpp"

#include <cstring>
#include <random>
#include <vector>

#include "snapshot_support.hpp"

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
  store.read(&slot, 1, frame.data(), 0, kNoSlot);
  Bytes scratch = filled(store.frame_nbytes(), 98);
  const std::byte* found = nullptr;
  store.find(&slot, 1, scratch.data(), &found);
  CHECK(std::memcmp(found, frame.data(), frame.size()) == 0);
  return frame;
}

std::unique_ptr<FrameStore> make(Storage storage, std::size_t capacity,
                                 const FrameGeometry& frame, std::unique_ptr<Backing> backing) {
  if (storage == Storage::kRaw) return raw_store(capacity, frame, std::move(backing));
  return compressed_store(capacity, frame, 2, std::move(backing),
                          FrameCodec::best_instruction_set());
}

/// Slots written, forgotten and written again in any order, by two environments.
void frames_stay_apart(Storage storage, std::unique_ptr<Backing> backing, std::size_t nbytes) {
  constexpr Slot kCapacity = 300;
  const auto store = make(storage, kCapacity, bytes(nbytes), std::move(backing));
  std::vector<Bytes> written(kCapacity);
  std::mt19937 random(5);
  Bytes frame(nbytes);
  for (int turn = 0; turn < 6000; ++turn) {
    const auto slot = static_cast<Slot>(turn < int{kCapacity} ? turn : random() % kCapacity);
    const std::uint32_t env = random() % 2;
    const std::int64_t env_number = env;
    if (random() % 4 == 0) frame = filled(nbytes, random());
    frame[random() % nbytes] = static_cast<std::byte>(random());
    store->release(slot);
    store->reserve({&env_number, 1});
    store->write(slot, env, frame.data());
    written[slot] = frame;
    if (turn % 500 != 499) continue;
    store->check_invariants(kCapacity);
    for (Slot any = 0; any < kCapacity; ++any) {
      store->prefetch_slot(any);
      store->prefetch_early(&any, 1);
      store->prefetch(&any, 1);
      CHECK(read(*store, any) == written[any]);
    }
  }
  CHECK(store->frames_nbytes(kCapacity) <= store->nbytes_now(kCapacity));
}

void absent_frames_are_zeros(Storage storage) {
  const auto store = make(storage, 2, bytes(5), anonymous_backing());
  const std::int64_t env = 0;
  store->reserve({&env, 1});
  store->write(0, 0, filled(5, 1).data());
  store->prefetch(&kNoSlot, 1);
  CHECK(read(*store, kNoSlot) == filled(5, 0));
  const std::vector<Slot> slots{kNoSlot, 0, 0};
  Bytes frames(15, std::byte{9});
  store->read(slots.data(), 3, frames.data(), 5, kNoSlot);
  CHECK((frames == Bytes{std::byte{0}, std::byte{0}, std::byte{0}, std::byte{0}, std::byte{0},
                         std::byte{1}, std::byte{1}, std::byte{1}, std::byte{1}, std::byte{1},
                         std::byte{1}, std::byte{1}, std::byte{1}, std::byte{1}, std::byte{1}}));
}

/// Several at once, side by side or apart, whether they lie so in the store or not.
void frames_are_read_together(Storage storage, std::size_t nbytes) {
  constexpr Slot kCapacity = 12;
  const auto store = make(storage, kCapacity, bytes(nbytes), anonymous_backing());
  std::mt19937 random(8);
  std::vector<Bytes> written;
  for (Slot slot = 0; slot < kCapacity; ++slot) {
    Bytes frame(nbytes);
    for (std::byte& byte : frame) byte = static_cast<std::byte>(random());
    const std::int64_t env = 0;
    store->reserve({&env, 1});
    store->write(slot, 0, frame.data());
    written.push_back(std::move(frame));
  }
  for (int turn = 0; turn < 300; ++turn) {
    const std::size_t count = 1 + random() % 7;
    const std::size_t gap = random() % 2 * (random() % 100);
    std::vector<Slot> slots;
    for (std::size_t k = 0; k < count; ++k) {
      const bool follows = k > 0 && slots.back() < kCapacity - 1 && random() % 4 != 0;
      slots.push_back(follows ? slots.back() + 1 : static_cast<Slot>(random() % kCapacity));
      if (random() % 8 == 0) slots.back() = kNoSlot;
    }
    const Slot next = random() % 3 == 0 ? kNoSlot : static_cast<Slot>(random() % kCapacity);
    Bytes frames = filled(count * (nbytes + gap), 99);
    store->read(slots.data(), count, frames.data(), static_cast<std::ptrdiff_t>(nbytes + gap),
                next);
    for (std::size_t k = 0; k < count; ++k) {
      const auto begin = frames.begin() + static_cast<std::ptrdiff_t>(k * (nbytes + gap));
      const auto end = begin + static_cast<std::ptrdiff_t>(nbytes);
      CHECK(Bytes(begin, end) == (slots[k] == kNoSlot ? filled(nbytes, 0) : written[slots[k]]));
      CHECK(Bytes(end, end + static_cast<std::ptrdiff_t>(gap)) == filled(gap, 99));
    }
  }
}

/// Frames of many sizes, forgotten in any order: what is held settles.
void it_does_not_grow() {
  constexpr Slot kCapacity = 4000;
  const auto store = make(Storage::kCompressed, kCapacity, bytes(600), anonymous_backing());
  std::mt19937 random(6);
  const std::int64_t env = 1;
  Bytes frame(600);
  std::size_t settled = 0;
  for (int round = 0; round < 60; ++round) {
    const std::size_t noise = random() % 600;
    // Blocks of slots, as random eviction takes them.
    const Slot block = static_cast<Slot>(random() % 10) * 400;
    for (Slot slot = round < 10 ? static_cast<Slot>(round) * 400 : block, end = slot + 400;
         slot < end; ++slot) {
      store->release(slot);
      for (std::size_t i = 0; i < noise; ++i) frame[i] = static_cast<std::byte>(random());
      store->reserve({&env, 1});
      store->write(slot, 1, frame.data());
    }
    CHECK(store->nbytes_now(kCapacity) <= store->nbytes());
    if (round == 30) settled = store->nbytes_now(kCapacity);
    if (round > 30) CHECK(store->nbytes_now(kCapacity) < settled + settled / 4);
  }
  store->check_invariants(kCapacity);
}

void refusals_name_the_bytes() {
  CHECK_THROWS(raw_store(std::size_t{1} << 45, bytes(16), anonymous_backing()), OutOfMemory,
               "562949953421312 bytes");
  CHECK_THROWS(raw_store(std::size_t{1} << 62, bytes(16), anonymous_backing()), OutOfMemory,
               "4611686018427387904 frames of 16 bytes");
}

}  // namespace

int main() {
  const TemporaryFolder folder;
  for (const Storage storage : {Storage::kRaw, Storage::kCompressed}) {
    for (const std::size_t nbytes : {1U, 7U, 64U, 7056U}) {
      frames_stay_apart(storage, anonymous_backing(), nbytes);
      frames_stay_apart(storage, file_backing(folder / "frames", false), nbytes);
    }
    for (const std::size_t nbytes : {1U, 63U, 64U, 7056U, 20'000U}) {
      frames_are_read_together(storage, nbytes);
    }
    absent_frames_are_zeros(storage);
  }
  it_does_not_grow();
  refusals_name_the_bytes();
}
