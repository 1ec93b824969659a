#pragma once
// The one vocabulary file: element types, frame sizes, index types and the limits on them.

#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace fastdqn {

/// The place of one stored frame in the ring, and the index of the transition that starts there.
using Slot = std::uint32_t;

/// "No such frame". As a frame to be read it means padding: a frame of zeros.
inline constexpr Slot kNoSlot = 0xFFFFFFFF;

inline constexpr std::int64_t kMaxCapacity = kNoSlot;  // slots 0 to 2^32 - 2
inline constexpr std::int64_t kMaxEnvs = 1 << 20;
inline constexpr std::int64_t kMaxStack = 256;
inline constexpr std::int64_t kMaxSteps = 1 << 16;  // in a window
inline constexpr std::size_t kMaxFrameDimensions = 8;

/// The element type of a frame. The values are written to snapshots and never change.
enum class DType : std::uint8_t {
  kBool = 0,
  kUint8 = 1,
  kInt8 = 2,
  kUint16 = 3,
  kInt16 = 4,
  kUint32 = 5,
  kInt32 = 6,
  kUint64 = 7,
  kInt64 = 8,
  kFloat16 = 9,
  kFloat32 = 10,
  kFloat64 = 11,
};

struct DTypeInfo {
  const char* name;  // as numpy spells it
  char kind;         // numpy's letter: b, u, i or f
  std::size_t size;  // bytes
};

inline constexpr std::array<DTypeInfo, 12> kDTypes{{{"bool", 'b', 1},
                                                    {"uint8", 'u', 1},
                                                    {"int8", 'i', 1},
                                                    {"uint16", 'u', 2},
                                                    {"int16", 'i', 2},
                                                    {"uint32", 'u', 4},
                                                    {"int32", 'i', 4},
                                                    {"uint64", 'u', 8},
                                                    {"int64", 'i', 8},
                                                    {"float16", 'f', 2},
                                                    {"float32", 'f', 4},
                                                    {"float64", 'f', 8}}};

constexpr const DTypeInfo& info(DType dtype) noexcept {
  return kDTypes[static_cast<std::size_t>(dtype)];
}

/// The type with numpy's `name`; std::invalid_argument names the known ones.
inline DType dtype_named(std::string_view name) {
  std::string known;
  for (std::size_t i = 0; i < kDTypes.size(); ++i) {
    if (name == kDTypes[i].name) return static_cast<DType>(i);
    known += (i == 0 ? "" : ", ") + std::string(kDTypes[i].name);
  }
  throw std::invalid_argument("dtype is " + std::string(name) + "; expected one of " + known);
}

/// "(84, 84)", as Python writes a shape.
template <typename Sizes>
std::string shape_text(const Sizes& sizes) {
  std::string text = "(";
  std::size_t count = 0;
  for (const auto size : sizes) {
    text += (count++ == 0 ? "" : ", ") + std::to_string(size);
  }
  return text + (count == 1 ? ",)" : ")");
}

/// One frame: its shape (empty for a single number) and its element type, C-contiguous.
struct FrameGeometry {
  std::vector<std::int64_t> shape;
  DType dtype;

  std::size_t elements() const noexcept {
    std::size_t product = 1;
    for (const std::int64_t size : shape) product *= static_cast<std::size_t>(size);
    return product;
  }
  std::size_t nbytes() const noexcept { return elements() * info(dtype).size; }
};

}  // namespace fastdqn
