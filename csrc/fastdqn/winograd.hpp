#pragma once
// Minimal filtering (Winograd 1980; Lavin and Gray 2015): m outputs next to each other of a filter of
// r taps from m + r - 1 products in place of m * r. Along two axes the saving is squared.
//
// Outputs are output^T [(weight w) * (input^T x)], where * is number by number, and the gradients are
// the same products the other way round:
//   of the input    input [(weight w) * (output y)]
//   of the weights  weight^T [(output y) * (input^T x)]

#include <array>
#include <cstddef>

namespace fastdqn {

template <std::size_t kRows, std::size_t kColumns>
using Matrix = std::array<std::array<float, kColumns>, kRows>;

template <std::size_t kOutputs_, std::size_t kTaps_>
struct Winograd {
  static constexpr std::size_t kOutputs = kOutputs_;
  static constexpr std::size_t kTaps = kTaps_;
  static constexpr std::size_t kPoints = kOutputs + kTaps - 1;

  // A product of polynomials by their values at these points and, the last one, at infinity.
  static constexpr std::size_t kFinite = kPoints - 1;
  static constexpr std::array<double, 5> kPlaces{0, 1, -1, 2, -2};
  static_assert(kFinite <= kPlaces.size());

  static constexpr double power(double base, std::size_t exponent) {
    double product = 1;
    for (std::size_t i = 0; i < exponent; ++i) product *= base;
    return product;
  }

  /// The coefficients of the product of (x - place) over all finite places but one.
  static constexpr std::array<double, kPoints> product_without(std::size_t left_out) {
    std::array<double, kPoints> coefficients{1};
    for (std::size_t place = 0; place < kFinite; ++place) {
      if (place == left_out) continue;
      for (std::size_t i = kPoints; i-- > 0;) {
        coefficients[i] = (i == 0 ? 0 : coefficients[i - 1]) - kPlaces[place] * coefficients[i];
      }
    }
    return coefficients;
  }

  /// [points, points]: what the inputs are multiplied by. Whole numbers.
  static constexpr Matrix<kPoints, kPoints> kInput = [] {
    Matrix<kPoints, kPoints> matrix{};
    for (std::size_t point = 0; point < kPoints; ++point) {
      const auto coefficients = product_without(point);
      for (std::size_t i = 0; i < kPoints; ++i) {
        matrix[point][i] = static_cast<float>(coefficients[i]);
      }
    }
    return matrix;
  }();
  /// [points, taps]: what the weights are multiplied by.
  static constexpr Matrix<kPoints, kTaps> kWeight = [] {
    Matrix<kPoints, kTaps> matrix{};
    for (std::size_t point = 0; point < kFinite; ++point) {
      double slope = 1;
      for (std::size_t other = 0; other < kFinite; ++other) {
        if (other != point) slope *= kPlaces[point] - kPlaces[other];
      }
      for (std::size_t tap = 0; tap < kTaps; ++tap) {
        matrix[point][tap] = static_cast<float>(power(kPlaces[point], tap) / slope);
      }
    }
    matrix[kFinite][kTaps - 1] = 1;
    return matrix;
  }();
  /// [outputs, points]: what the products are multiplied by. Whole numbers.
  static constexpr Matrix<kOutputs, kPoints> kOutput = [] {
    Matrix<kOutputs, kPoints> matrix{};
    for (std::size_t output = 0; output < kOutputs; ++output) {
      for (std::size_t point = 0; point < kFinite; ++point) {
        matrix[output][point] = static_cast<float>(power(kPlaces[point], output));
      }
    }
    matrix[kOutputs - 1][kFinite] = 1;
    return matrix;
  }();
};

}  // namespace fastdqn
