#pragma once
// The Nature network (Mnih et al. 2015) as a whole: values forwards, gradients backwards.

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <vector>

#include "fastdqn/aligned_buffer.hpp"
#include "fastdqn/nature_kernels.hpp"
#include "fastdqn/thread_pool.hpp"
#include "fastdqn/tiled_convolution.hpp"

namespace fastdqn {

/// What is not the same in every Nature network.
struct NatureShape {
  std::size_t stack;          // frames in a stack, an even number
  std::size_t height, width;  // of a frame in pixels, 36 or more with the padding
  std::size_t first_padding;  // zeros around the frames
  std::size_t num_actions;
  bool shared_last_bias;  // one for all actions
};

enum class NatureNumbers : std::uint8_t { kFloat32, kBfloat16 };

/// The network's weights, or their gradients: the caller's memory, best 64 bytes aligned.
template <class Float>
struct NatureWeights {
  std::array<Float*, 3> filters;  // [out_channels, kernel, kernel, in_channels] each
  std::array<Float*, 3> biases;   // [out_channels]
  Float* hidden;                  // [512, inputs], which lie as the last convolution's outputs
  Float* hidden_bias;             // [512]
  Float* values;                  // [num_actions, 512]
  Float* values_bias;             // [num_actions] or [1]
};

/// The sizes of those arrays, in the same order.
struct NatureSizes {
  std::array<std::size_t, 3> filters, biases;
  std::size_t hidden, hidden_bias, values, values_bias;
};

/// Stacks of frames [rows, height, width, stack], the caller's memory.
struct Stacks {
  const std::uint8_t* data;
  std::size_t rows;
};

/// Passes of one network, whose weights are the caller's.
///
/// Weights, their gradients and all sums are float32. In bfloat16 products are of numbers rounded to
/// bfloat16, except in the last layer. Every sum is taken in one order, whoever takes its parts: results
/// do not depend on how many threads there are, nor a row's on the other rows, except on whether there
/// are enough for minimal filtering, see `few_rows`.
///
/// Thread-safe, and values can be had while another thread computes, but for the time in which weights
/// are written. A `backward_into` or `step` belongs to the last `forward_into`, and stacks and weights
/// have to stay as they are in between.
class NatureNetwork {
 public:
  static constexpr std::size_t kHiddenUnits = 512;

  /// Whether the processor can compute in these numbers.
  static bool is_available(NatureNumbers numbers) noexcept;

  /// Throws std::invalid_argument for a shape that it does not compute, and std::logic_error where
  /// the numbers are not available. Reads no weights before `refresh`.
  NatureNetwork(const NatureShape& shape, NatureNumbers numbers,
                const NatureWeights<const float>& weights);

  const NatureShape& shape() const noexcept { return shape_; }
  NatureSizes sizes() const noexcept;

  /// Fewer rows than this that nothing is learned from are computed another way, which rounds
  /// otherwise; 0 where all are computed alike.
  std::size_t few_rows() const noexcept { return tiled_.empty() ? 0 : 8; }

  /// Rows that the last `forward_into` has kept. Waits for one that is being computed.
  std::size_t learned();

  /// The number of the last `forward_into`'s pass. Waits as well.
  std::uint64_t passes();

  /// Takes over the weights: to be called before anything else, and whenever they have changed.
  void refresh(ThreadPool& pool);

  /// [rows, num_actions], of all stacks one behind the other.
  void values_into(ThreadPool& pool, std::span<const Stacks> stacks, float* values);

  /// The action of the largest value of each row, by index_of_largest.
  void actions_into(ThreadPool& pool, std::span<const Stacks> stacks, std::int64_t* actions);

  /// The same as values_into, keeping what `backward` needs of the first `learned` rows. The stacks have to stay.
  /// Returns the pass's number, for `step`.
  std::uint64_t forward_into(ThreadPool& pool, std::span<const Stacks> stacks, std::size_t learned,
                             float* values);

  /// From the gradient [learned, num_actions] of the kept rows' values those of all weights.
  /// std::logic_error without a `forward_into` before.
  void backward_into(ThreadPool& pool, const float* grad, const NatureWeights<float>& gradients);

  /// The same, Adam's step by these gradients, and `refresh`, all in one: the numbers are those of
  /// the three in turn. The hidden layer's gradient, nearly all that there are, never leaves the caches.
  /// `pass` is the number of the pass that the gradient belongs to: std::logic_error where there has
  /// been another since.
  /// `adam` has the network's weights and these gradients in the order of NatureWeights's members by
  /// layer; std::invalid_argument where it has others.
  void step(ThreadPool& pool, std::uint64_t pass, const float* grad,
            const NatureWeights<float>& gradients, std::span<const AdamArrays> adam,
            const AdamFactors& factors);

 private:
  using Buffer = AlignedBuffer;
  /// What a thread works with.
  struct Scratch {
    Buffer image, first, second, sums, grad, hidden;
    TiledConvolution::Scratch tiles;
  };
  /// What the network makes of a batch, and where.
  struct Rows {
    std::vector<const std::uint8_t*> stacks;
    Buffer third;                   // numbers [rows, features]
    Buffer units;                   // floats [rows, 512], of the hidden layer
    std::vector<Scratch> scratch;   // one a thread
    Scratch few;                    // of all rows, where these are fewer than threads
  };

  void compute(ThreadPool& pool, std::span<const Stacks> stacks, std::size_t learned, Rows& rows,
               float* values);
  /// A row a thread, keeping the first `learned`; or each row by several threads, a layer at a time.
  void convolve_many(ThreadPool& pool, std::size_t learned, Rows& rows);
  void convolve_few(ThreadPool& pool, Rows& rows);
  /// A few rows a thread, by minimal filtering, keeping the first `learned`.
  void convolve_in_tiles(ThreadPool& pool, std::size_t learned, Rows& rows);
  void reserve_for_rows(Scratch& scratch, std::size_t rows) const;
  void image_into(const std::uint8_t* stack, std::byte* image) const;
  /// The stack's bytes with the padding around, in that slot of `image` if there is any.
  const std::uint8_t* padded(const std::uint8_t* stack, Buffer& image, std::size_t slot) const;
  /// One of `parts` of a convolution of one row.
  void layer_into(std::size_t layer, const std::byte* x, std::size_t part, std::size_t parts,
                  std::byte* y) const;
  /// Adam's step on the hidden layer.
  struct HiddenStep {
    const AdamArrays& arrays;
    const AdamFactors& factors;
  };

  void take_over(ThreadPool& pool, bool hidden_too);
  /// All gradients, or without the hidden layer's, which is moved by `step` in place of that.
  void backward(ThreadPool& pool, const float* grad, const NatureWeights<float>& gradients,
                const HiddenStep* step);
  void gradients_of_group(std::size_t group, Scratch& scratch);
  void gradients_of_filters(ThreadPool& pool, const NatureWeights<float>& gradients);
  /// The same by minimal filtering, of the kept rows from `begin` to `end`.
  void gradients_of_rows(std::size_t begin, std::size_t end, Scratch& scratch);
  void gradients_of_filters_in_tiles(ThreadPool& pool, const NatureWeights<float>& gradients);
  std::size_t numbers_nbytes(std::size_t count) const noexcept {
    return count * kernels_->number_nbytes;
  }
  const void* hidden_weights() const noexcept;

  const NatureShape shape_;
  const NatureKernels* const kernels_;
  const NatureWeights<const float> weights_;
  std::array<Convolution, 3> convolutions_;
  const std::size_t features_;  // of a stack, that the hidden layer sees

  std::shared_mutex weights_mutex_;  // guards the weights and what follows up to the next mutex
  std::vector<TiledConvolution> tiled_;  // all three, or none
  std::array<Buffer, 3> by_depth_;
  std::array<Buffer, 3> by_place_;  // none of the first, whose input needs no gradient, nor of tiled
  Buffer hidden_;                   // in numbers that are not floats

  std::mutex values_mutex_;  // guards the next, and is taken before weights_mutex_
  Rows valued_;
  std::vector<float> values_;  // that actions are chosen by

  std::mutex learning_mutex_;  // guards all that follows, and is taken before weights_mutex_
  // What is kept for the backward pass, and what that adds.
  std::size_t learned_ = 0;
  std::uint64_t passes_ = 0;  // of forward_into
  Rows rows_;
  std::array<Buffer, 2> kept_;        // numbers [learned, outputs] of two convolutions
  Buffer grad_hidden_, grad_hidden_across_;
  Buffer grad_third_;                 // numbers [learned, features]
  std::array<Buffer, 3> grad_units_;  // units [groups, outputs]; of tiled, numbers [learned, outputs]
  std::array<Buffer, 3> in_units_;    // units [groups, inputs], of layers 1 and 2; of the hidden one
  Buffer second_half_;                // floats [weights of all convolutions], of a gradient
  Buffer grad_biases_;                // floats [groups, channels of all convolutions]
};

}  // namespace fastdqn
