#pragma once
// What a convolution is: the loops that tests compare with.

#include <cstddef>

#include "fastdqn/nature_kernels.hpp"

namespace fastdqn {

/// Calls body(output, input, weight), the indices of each product of a convolution.
template <class Body>
void each_product(const Convolution& conv, const Body& body) {
  for (std::size_t oy = 0; oy < conv.out_height; ++oy) {
    for (std::size_t ox = 0; ox < conv.out_width; ++ox) {
      for (std::size_t o = 0; o < conv.out_channels; ++o) {
        for (std::size_t ky = 0; ky < conv.kernel; ++ky) {
          for (std::size_t kx = 0; kx < conv.kernel; ++kx) {
            for (std::size_t c = 0; c < conv.in_channels; ++c) {
              const std::size_t y = oy * conv.stride + ky;
              const std::size_t x = ox * conv.stride + kx;
              body((oy * conv.out_width + ox) * conv.out_channels + o,
                   (y * conv.in_width + x) * conv.in_channels + c,
                   ((o * conv.kernel + ky) * conv.kernel + kx) * conv.in_channels + c);
            }
          }
        }
      }
    }
  }
}

}  // namespace fastdqn
