#pragma once
// Numpy arrays and Python numbers as the core's spans and sizes, and the core's memory as numpy
// views. Everything here checks and none of it computes. The GIL is held throughout.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "fastdqn/batch.hpp"
#include "fastdqn/replay_memory.hpp"

namespace fastdqn::bindings {

namespace py = pybind11;

/// A Python or numpy integer that fits 64 bits; TypeError and ValueError name the argument.
std::int64_t integer_argument(py::handle value, const char* name);
std::uint64_t seed_argument(py::handle value);

std::vector<std::int64_t> shape_argument(py::handle value);
DType dtype_argument(py::handle value);

/// Integers, from an array or a sequence of one dimension; with `rows`, of that length.
std::vector<std::int64_t> integers_argument(py::handle value, const char* name);
std::vector<std::int64_t> integers_argument(py::handle value, const char* name, std::size_t rows);

/// `env_ids`, or 0 to num_envs - 1 for None.
std::vector<std::int64_t> env_ids_argument(py::handle value, std::int64_t num_envs);

/// `rows` numbers, rounded to float32. An array has to be of floats; a sequence may hold integers.
std::vector<float> floats_argument(py::handle value, const char* name, std::size_t rows);

/// `rows` booleans, from an array or a sequence; all false for None.
std::vector<std::uint8_t> flags_argument(py::handle value, const char* name, std::size_t rows);

/// An array of frames and the view of it that the core copies from.
struct FramesArgument {
  py::array owner;
  FrameRows rows;
};
FramesArgument frames_argument(py::handle value, const FrameGeometry& frame, std::size_t rows);

/// The caller's writable array of stacks, [rows, stack, *frame.shape].
StackTarget stack_argument(py::handle value, const FrameGeometry& frame, std::size_t stack,
                           std::size_t rows, const char* name);

/// How many rows the caller's array has: the length of its first axis.
std::size_t rows_of(py::handle value, const char* name);

/// The caller's writable, C-contiguous array [rows] of exactly the given type.
template <typename Number>
Number* column_argument(py::handle value, std::size_t rows, const char* name);

/// The caller's arrays for a batch of `memory`: states and next_states [rows, stack, *frame.shape]
/// and the columns [rows], all of them checked.
BatchTarget batch_argument(const ReplayMemory& memory, py::handle states, py::handle next_states,
                           py::handle actions, py::handle rewards, py::handle discounts,
                           py::handle indices);

/// The caller's writable, C-contiguous array [rows, columns] of int64.
std::int64_t* table_argument(py::handle value, std::size_t rows, std::size_t columns,
                             const char* name);

py::tuple shape_tuple(const FrameGeometry& frame);
py::dtype numpy_dtype(DType dtype);

/// The logical view [rows, stack, *frame.shape] of a target; `base` keeps its memory alive.
py::array stack_view(const StackTarget& target, std::size_t rows, std::size_t stack,
                     const FrameGeometry& frame, py::handle base);

/// The view with its writeable flag taken away.
py::array read_only(py::array view);

/// A new array [rows, stack, *frame.shape] in the given memory order.
py::array new_stacks(std::size_t rows, std::size_t stack, const FrameGeometry& frame,
                     StackLayout layout);

}  // namespace fastdqn::bindings
