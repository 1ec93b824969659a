#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "fastdqn/preprocess.hpp"

using fastdqn::AreaResize;
using fastdqn::GreyScreens;
using fastdqn::InstructionSet;
using fastdqn::ResizeShape;
using Image = std::vector<std::uint8_t>;

namespace {

std::mt19937 generator(1);

Image random_image(std::size_t size, unsigned colours = 256) {
  Image image(size);
  for (std::uint8_t& pixel : image) pixel = static_cast<std::uint8_t>(generator() % colours);
  return image;
}

// The covered share of source pixel `j` in output pixel `i`, by the definition of an area average,
// in units of 1 / `size` of a source pixel.
std::uint64_t overlap(std::size_t i, std::size_t j, std::size_t source_size, std::size_t size) {
  const std::size_t left = std::max(i * source_size, j * size);
  const std::size_t right = std::min((i + 1) * source_size, (j + 1) * size);
  return right > left ? right - left : 0;
}

Image expected_resize(const ResizeShape& shape, const Image& a, const Image& b) {
  Image out;
  const std::uint64_t area = std::uint64_t{shape.source_height} * shape.source_width;
  for (std::size_t y = 0; y < shape.height; ++y) {
    for (std::size_t x = 0; x < shape.width; ++x) {
      std::uint64_t sum = 0;
      for (std::size_t row = 0; row < shape.source_height; ++row) {
        const std::uint64_t row_share = overlap(y, row, shape.source_height, shape.height);
        if (row_share == 0) continue;
        for (std::size_t column = 0; column < shape.source_width; ++column) {
          const std::size_t i = row * shape.source_width + column;
          sum += row_share * overlap(x, column, shape.source_width, shape.width) *
                 std::max(a[i], b[i]);
        }
      }
      out.push_back(static_cast<std::uint8_t>((2 * sum + area) / (2 * area)));
    }
  }
  return out;
}

void check_resize(const ResizeShape& shape, const Image& a, const Image& b) {
  const Image expected = expected_resize(shape, a, b);
  for (const InstructionSet set : {InstructionSet::kBaseline, fastdqn::best_instruction_set()}) {
    // A byte beyond each end shows a write out of bounds also without a sanitizer.
    Image out(shape.height * shape.width + 2, 77);
    AreaResize resize(shape, set);
    for (int repeat = 0; repeat < 2; ++repeat) {
      resize.apply_max(a.data(), b.data(), out.data() + 1);
      CHECK(out.front() == 77 && out.back() == 77);
      CHECK(std::equal(expected.begin(), expected.end(), out.begin() + 1));
    }
  }
}

void test_resize_of_every_screen_size() {
  for (const std::size_t height : {210U, 214U, 220U, 230U, 250U}) {
    const std::size_t size = height * 160;
    check_resize({height, 160, 84, 84}, random_image(size), random_image(size));
  }
}

void test_resize_of_other_sizes() {
  const std::array<ResizeShape, 14> shapes = {{{210, 160, 210, 160},
                                               {210, 160, 1, 1},
                                               {210, 160, 83, 83},
                                               {210, 160, 209, 159},
                                               {210, 160, 42, 44},
                                               {210, 160, 105, 80},
                                               {250, 160, 64, 96},
                                               {256, 256, 255, 255},
                                               {256, 257, 255, 256},
                                               {1, 1, 1, 1},
                                               {3, 5, 2, 4},
                                               {7, 9, 7, 2},
                                               {17, 8, 9, 8},
                                               {2, 300, 1, 7}}};
  for (const ResizeShape& shape : shapes) {
    const std::size_t size = shape.source_height * shape.source_width;
    check_resize(shape, random_image(size), random_image(size));
    check_resize(shape, Image(size, 255), random_image(size, 1));  // the largest sums
    check_resize(shape, random_image(size, 2), random_image(size, 2));
  }
  for (int repeat = 0; repeat < 200; ++repeat) {
    const std::size_t source_height = 1 + generator() % 40;
    const std::size_t source_width = 1 + generator() % 40;
    const ResizeShape shape{source_height, source_width, 1 + generator() % source_height,
                            1 + generator() % source_width};
    const std::size_t size = source_height * source_width;
    check_resize(shape, random_image(size), random_image(size));
  }
}

// Every sum that a small area can have, so every place where the rounding could go wrong.
void test_every_sum_is_rounded_half_up() {
  for (const std::size_t width : {1U, 2U, 3U, 7U, 16U, 200U, 255U, 256U}) {
    AreaResize resize({1, width, 1, 1});
    Image image(width, 0);
    for (std::size_t sum = 0; sum <= 255 * width; ++sum) {
      std::uint8_t mean = 0;
      resize.apply_max(image.data(), image.data(), &mean);
      CHECK(mean == (2 * sum + width) / (2 * width));
      if (sum < 255 * width) ++image[sum % width];
    }
  }
}

void make_resize(const ResizeShape& shape) { AreaResize resize(shape); }

void test_refusals() {
  const ResizeShape taller{210, 160, 211, 84};
  const ResizeShape wider{210, 160, 84, 161};
  const ResizeShape nothing{210, 160, 0, 84};
  const ResizeShape from_nothing{210, 0, 84, 0};
  const ResizeShape too_tall{257, 16, 256, 16};
  const ResizeShape too_large{256, 258, 255, 257};
  const ResizeShape huge{255, std::size_t{1} << 60, 254, 1};
  CHECK_THROWS(make_resize(taller), std::invalid_argument, "210 pixels to 211");
  CHECK_THROWS(make_resize(wider), std::invalid_argument, "160 pixels to 161");
  CHECK_THROWS(make_resize(nothing), std::invalid_argument, "210 pixels to 0");
  CHECK_THROWS(make_resize(from_nothing), std::invalid_argument, "0 pixels to 0");
  CHECK_THROWS(make_resize(too_tall), std::invalid_argument, "257x16 pixels is too large");
  CHECK_THROWS(make_resize(too_large), std::invalid_argument, "256x258 pixels is too large");
  CHECK_THROWS(make_resize(huge), std::invalid_argument, "too many");
}

void test_grey_screens() {
  const Image palette = random_image(256);
  for (const std::size_t size : {1U, 31U, 32U, 33U, 300U, 33'600U}) {
    GreyScreens screens(size);
    std::array<Image, 2> shown;
    Image numbers = random_image(size, 8);
    for (int frame = 0; frame < 60; ++frame) {
      const int slot = static_cast<int>(generator() % 2);
      // A few pixels change from frame to frame, and new numbers come up late.
      for (int changed = 0; changed < 3; ++changed) {
        numbers[generator() % size] =
            static_cast<std::uint8_t>(generator() % static_cast<unsigned>(8 + 4 * frame));
      }
      Image greys;
      for (const std::uint8_t number : numbers) greys.push_back(palette[number]);
      if (!screens.update(slot, numbers.data())) {
        CHECK(screens.learn(numbers.data(), greys.data()));
        CHECK(screens.update(slot, numbers.data()));
      }
      shown[static_cast<std::size_t>(slot)] = greys;
      for (const int other : {0, 1}) {
        const Image& expected = shown[static_cast<std::size_t>(other)];
        CHECK(std::equal(expected.begin(), expected.end(), screens.pixels(other)));
      }
    }
  }
}

void test_grey_screens_refuse_what_they_cannot_know() {
  const Image numbers = {4, 4, 9};
  const Image contradiction = {1, 2, 3};
  const Image greys = {1, 1, 0};
  const Image unknown = {4, 4, 8};

  GreyScreens screens(3);
  CHECK(!screens.update(0, numbers.data()));
  CHECK(!screens.learn(numbers.data(), contradiction.data()));

  GreyScreens others(3);
  CHECK(others.learn(numbers.data(), greys.data()));
  CHECK(others.update(0, numbers.data()));
  CHECK(!others.update(0, unknown.data()));
  CHECK(!others.update(0, unknown.data()));
  // A screen of known numbers is right again, after those that were not.
  CHECK(others.update(0, numbers.data()));
  CHECK(std::equal(greys.begin(), greys.end(), others.pixels(0)));
}

}  // namespace

int main() {
  test_resize_of_every_screen_size();
  test_resize_of_other_sizes();
  test_every_sum_is_rounded_half_up();
  test_refusals();
  test_grey_screens();
  test_grey_screens_refuse_what_they_cannot_know();
}
