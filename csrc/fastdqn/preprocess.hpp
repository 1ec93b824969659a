#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastdqn {

/// The grey pixels of two screens, found from palette numbers.
///
/// An emulator draws in palette numbers, each with one grey. Few pixels change between two frames,
/// so an update looks up only those blocks whose numbers differ from what the slot held before.
/// The greys are not known ahead: they are learned from screens that are given in both forms.
class GreyScreens {
 public:
  /// Two screens of `size` pixels each.
  explicit GreyScreens(std::size_t size);

  /// Makes the screen in `slot` (0 or 1) that of `numbers` [size]. False where a number's grey is
  /// not known yet: the screen is incomplete, and `learn` and another `update` must follow.
  bool update(int slot, const std::uint8_t* numbers) noexcept;

  /// Learns the grey of every number on a screen that is given in both forms, each [size]. False
  /// where a number has more than one grey.
  bool learn(const std::uint8_t* numbers, const std::uint8_t* greys) noexcept;

  /// The grey pixels [size] of `slot`, valid until its next update.
  const std::uint8_t* pixels(int slot) const noexcept;

 private:
  struct Screen {
    std::vector<std::uint8_t> numbers;
    std::vector<std::uint8_t> greys;
    bool complete = false;  // `greys` are those of `numbers`
  };

  std::array<std::uint16_t, 256> grey_of_;  // 256 where a number's grey is not known
  std::array<Screen, 2> screens_;
};

/// Sizes in pixels of an image and of the smaller image that it is averaged to.
struct ResizeShape {
  std::size_t source_height;
  std::size_t source_width;
  std::size_t height;
  std::size_t width;
};

enum class InstructionSet { kBaseline, kAvx2 };

/// The fastest that this processor has.
InstructionSet best_instruction_set() noexcept;

/// Area-average downscaling of the pixel-wise maximum of two grey images: an output pixel is the
/// mean of the rectangle it covers, every source pixel weighted by its covered share, rounded half
/// up.
///
/// The arithmetic is exact: the ratio of two sizes is a fraction, so every weight is a whole
/// number of its parts. One object holds scratch memory: it serves one thread at a time.
class AreaResize {
 public:
  /// Throws std::invalid_argument where a size is 0, where the output is larger than the source
  /// (there is no area to average), or where the source is too large for exact sums; none of up
  /// to 256x256 pixels is. The result is the same, byte for byte, with any instruction set.
  explicit AreaResize(const ResizeShape& shape,
                      InstructionSet instructions = best_instruction_set());

  /// Resizes the maximum of `a` and `b`, [source_height, source_width] each and possibly the same
  /// image, to `out` [height, width]; all are contiguous.
  void apply_max(const std::uint8_t* a, const std::uint8_t* b, std::uint8_t* out) noexcept;

 private:
  /// The source pixels of every output pixel along one axis, and their whole weights.
  struct Axis {
    Axis(std::size_t source_size, std::size_t size);

    std::size_t taps;                    // source pixels of an output pixel, at most
    std::size_t sum;                     // of the weights of any one output pixel
    std::vector<std::size_t> first;      // [size], padded to whole blocks
    std::vector<std::uint16_t> weights;  // [size, taps], padded alike with 0
  };

  template <class Sum, class Real>
  void apply_with(Sum* columns, const std::uint8_t* a, const std::uint8_t* b,
                  std::uint8_t* out) noexcept;
  void apply(const std::uint8_t* a, const std::uint8_t* b, std::uint8_t* out) noexcept;
  void apply_baseline(const std::uint8_t* a, const std::uint8_t* b, std::uint8_t* out) noexcept;
  void apply_avx2(const std::uint8_t* a, const std::uint8_t* b, std::uint8_t* out) noexcept;

  ResizeShape shape_;
  InstructionSet instructions_;
  Axis rows_;
  Axis columns_;
  // Scratch of one block of rows: their sums, those sums by columns, and their pixels.
  std::vector<std::uint16_t> row_sums_;
  std::vector<std::uint16_t> narrow_columns_;  // where sums fit: 210x160 to 84x84
  std::vector<float> wide_columns_;            // where they do not; the other is empty
  std::vector<std::uint8_t> pixels_;
};

}  // namespace fastdqn
