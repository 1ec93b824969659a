#include "numpy_views.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <span>

namespace fastdqn::bindings {

namespace {

std::string text(py::handle value) { return py::str(value); }

std::string type_name(py::handle value) {
  return text(py::type::handle_of(value).attr("__name__"));
}

[[noreturn]] void fail_type(const char* name, const std::string& came, const char* expected) {
  throw py::type_error(std::string(name) + " is " + came + "; expected " + expected);
}

/// Whether numbers of the dtype lie in memory as this machine has them.
bool is_native(const py::dtype& dtype) {
  const char order = dtype.byteorder();
  return order == '=' || order == '|';
}

/// The argument as an array: itself, or what numpy makes of a sequence.
py::array as_array(py::handle value, const char* name, const char* expected) {
  py::array array = py::array::ensure(value);
  if (!array) fail_type(name, "of type " + type_name(value), expected);
  return array;
}

std::span<const py::ssize_t> shape_of(const py::array& array) {
  return {array.shape(), static_cast<std::size_t>(array.ndim())};
}

void check_rows(std::span<const py::ssize_t> shape, const char* name, std::size_t rows) {
  if (shape.size() == 1 && static_cast<std::size_t>(shape[0]) == rows) return;
  throw py::value_error(std::string(name) + " has shape " + shape_text(shape) + "; expected (" +
                        std::to_string(rows) + ",), one value a row");
}

/// Element i of a one-dimensional array of any alignment and stride.
template <typename Number>
Number element(const py::array& array, std::size_t i) noexcept {
  Number number;
  std::memcpy(&number,
              static_cast<const std::byte*>(array.data()) +
                  static_cast<std::ptrdiff_t>(i) * array.strides(0),
              sizeof(Number));
  return number;
}

template <typename From, typename To>
void convert(const py::array& array, std::vector<To>& out) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<To>(element<From>(array, i));
}

std::int64_t checked_integer(std::uint64_t number, const char* name) {
  if (number <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    return static_cast<std::int64_t>(number);
  }
  throw py::value_error(std::string(name) + " has " + std::to_string(number) +
                        "; expected integers that fit 64 bits with a sign");
}

py::array checked_output(py::handle value, const char* name) {
  if (!py::isinstance<py::array>(value)) {
    fail_type(name, "of type " + type_name(value), "a numpy array to write to");
  }
  auto array = py::reinterpret_borrow<py::array>(value);
  if (!array.writeable()) throw py::value_error(std::string(name) + " is read-only");
  return array;
}

void check_dtype(const py::array& array, const char* name, const DTypeInfo& expected) {
  const py::dtype dtype = array.dtype();
  if (dtype.kind() == expected.kind &&
      static_cast<std::size_t>(dtype.itemsize()) == expected.size && is_native(dtype)) {
    return;
  }
  fail_type(name, "of dtype " + text(dtype), expected.name);
}

std::vector<py::ssize_t> stack_shape(std::size_t rows, std::size_t stack,
                                     const FrameGeometry& frame) {
  std::vector<py::ssize_t> shape{static_cast<py::ssize_t>(rows), static_cast<py::ssize_t>(stack)};
  shape.insert(shape.end(), frame.shape.begin(), frame.shape.end());
  return shape;
}

}  // namespace

std::int64_t integer_argument(py::handle value, const char* name) {
  if (PyBool_Check(value.ptr()) || !PyIndex_Check(value.ptr())) {
    fail_type(name, "of type " + type_name(value), "an integer");
  }
  const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
  if (!number) throw py::error_already_set();
  int overflow = 0;
  const long long result = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (overflow != 0) {
    throw py::value_error(std::string(name) + " is " + text(number) +
                          "; expected an integer that fits 64 bits");
  }
  return result;
}

std::uint64_t seed_argument(py::handle value) {
  if (PyBool_Check(value.ptr()) || !PyIndex_Check(value.ptr())) {
    fail_type("seed", "of type " + type_name(value), "an integer");
  }
  const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
  if (!number) throw py::error_already_set();
  const unsigned long long result = PyLong_AsUnsignedLongLong(number.ptr());
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    throw py::value_error("seed is " + text(number) + "; expected 0 to 2**64 - 1");
  }
  return result;
}

std::vector<std::int64_t> shape_argument(py::handle value) {
  if (!PySequence_Check(value.ptr()) || py::isinstance<py::str>(value)) {
    fail_type("frame_shape", "of type " + type_name(value), "a tuple of integers");
  }
  std::vector<std::int64_t> shape;
  for (const py::handle size : py::reinterpret_borrow<py::sequence>(value)) {
    shape.push_back(integer_argument(size, "a size in frame_shape"));
  }
  return shape;
}

DType dtype_argument(py::handle value) {
  py::dtype dtype;
  try {
    dtype = py::dtype::from_args(py::reinterpret_borrow<py::object>(value));
  } catch (py::error_already_set&) {
    fail_type("dtype", std::string(py::repr(value)), "the dtype of a number, such as \"uint8\"");
  }
  if (!is_native(dtype)) {
    throw py::value_error("dtype is " + std::string(py::repr(dtype)) +
                          "; expected this machine's byte order");
  }
  return dtype_named(text(dtype.attr("name")));
}

std::vector<std::int64_t> integers_argument(py::handle value, const char* name) {
  constexpr const char* kExpected = "an array or a sequence of integers";
  const py::array array = as_array(value, name, kExpected);
  const py::dtype dtype = array.dtype();
  if (array.ndim() != 1) {
    throw py::value_error(std::string(name) + " has shape " + shape_text(shape_of(array)) +
                          "; expected one dimension");
  }
  std::vector<std::int64_t> out(static_cast<std::size_t>(array.shape(0)));
  if (out.empty()) return out;
  if ((dtype.kind() != 'i' && dtype.kind() != 'u') || !is_native(dtype)) {
    fail_type(name, "of dtype " + text(dtype), kExpected);
  }
  const bool is_signed = dtype.kind() == 'i';
  switch (dtype.itemsize()) {
    case 1:
      is_signed ? convert<std::int8_t>(array, out) : convert<std::uint8_t>(array, out);
      break;
    case 2:
      is_signed ? convert<std::int16_t>(array, out) : convert<std::uint16_t>(array, out);
      break;
    case 4:
      is_signed ? convert<std::int32_t>(array, out) : convert<std::uint32_t>(array, out);
      break;
    default:
      if (is_signed) {
        convert<std::int64_t>(array, out);
      } else {
        for (std::size_t i = 0; i < out.size(); ++i) {
          out[i] = checked_integer(element<std::uint64_t>(array, i), name);
        }
      }
  }
  return out;
}

std::vector<std::int64_t> integers_argument(py::handle value, const char* name,
                                            std::size_t rows) {
  std::vector<std::int64_t> out = integers_argument(value, name);
  check_rows(std::array{static_cast<py::ssize_t>(out.size())}, name, rows);
  return out;
}

std::vector<std::int64_t> env_ids_argument(py::handle value, std::int64_t num_envs) {
  if (!value.is_none()) return integers_argument(value, "env_ids");
  std::vector<std::int64_t> all(static_cast<std::size_t>(num_envs));
  for (std::size_t env = 0; env < all.size(); ++env) all[env] = static_cast<std::int64_t>(env);
  return all;
}

std::vector<float> floats_argument(py::handle value, const char* name, std::size_t rows) {
  constexpr const char* kExpected = "an array of float32 or float64, or a sequence of numbers";
  const py::array array = as_array(value, name, kExpected);
  check_rows(shape_of(array), name, rows);
  std::vector<float> out(rows);
  if (rows == 0) return out;
  const py::dtype dtype = array.dtype();
  if (dtype.kind() == 'f' && dtype.itemsize() == 8 && is_native(dtype)) {
    convert<double>(array, out);
  } else if (dtype.kind() == 'f' && dtype.itemsize() == 4 && is_native(dtype)) {
    convert<float>(array, out);
  } else if (dtype.kind() == 'i' && !py::isinstance<py::array>(value)) {
    convert<std::int64_t>(array, out);
  } else {
    fail_type(name, "of dtype " + text(dtype), kExpected);
  }
  return out;
}

std::vector<std::uint8_t> flags_argument(py::handle value, const char* name, std::size_t rows) {
  std::vector<std::uint8_t> out(rows);
  if (value.is_none()) return out;
  constexpr const char* kExpected = "an array or a sequence of bool";
  const py::array array = as_array(value, name, kExpected);
  check_rows(shape_of(array), name, rows);
  if (rows == 0) return out;
  if (array.dtype().kind() != 'b') {
    fail_type(name, "of dtype " + text(array.dtype()), kExpected);
  }
  convert<std::uint8_t>(array, out);
  return out;
}

FramesArgument frames_argument(py::handle value, const FrameGeometry& frame, std::size_t rows) {
  if (!py::isinstance<py::array>(value)) {
    fail_type("frames", "of type " + type_name(value), "a numpy array");
  }
  auto array = py::reinterpret_borrow<py::array>(value);
  check_dtype(array, "frames", info(frame.dtype));
  const auto shape = shape_of(array);
  const auto sizes = std::span(frame.shape);
  if (shape.empty() || static_cast<std::size_t>(shape[0]) != rows ||
      !std::equal(shape.begin() + 1, shape.end(), sizes.begin(), sizes.end())) {
    std::vector<std::int64_t> expected{static_cast<std::int64_t>(rows)};
    expected.insert(expected.end(), sizes.begin(), sizes.end());
    throw py::value_error("frames has shape " + shape_text(shape) + "; expected " +
                          shape_text(expected) + ", one frame for each environment named");
  }
  // Rows may lie anywhere; only a frame that is itself in pieces is put together first.
  auto step = static_cast<py::ssize_t>(info(frame.dtype).size);
  bool contiguous = true;
  for (std::size_t axis = shape.size(); axis-- > 1;) {
    contiguous = contiguous && (shape[axis] == 1 || array.strides()[axis] == step);
    step *= shape[axis];
  }
  if (!contiguous) array = py::array::ensure(array, py::array::c_style);
  if (!array) throw py::error_already_set();
  const FrameRows view{static_cast<const std::byte*>(array.data()), array.strides(0)};
  return {std::move(array), view};
}

StackTarget stack_argument(py::handle value, const FrameGeometry& frame, std::size_t stack,
                           std::size_t rows, const char* name) {
  py::array array = checked_output(value, name);
  check_dtype(array, name, info(frame.dtype));
  const std::vector<std::int64_t> shape(array.shape(), array.shape() + array.ndim());
  const std::vector<std::int64_t> strides(array.strides(), array.strides() + array.ndim());
  return stack_target(static_cast<std::byte*>(array.mutable_data()), shape, strides, frame, stack,
                      rows, name);
}

std::size_t rows_of(py::handle value, const char* name) {
  const py::array array = checked_output(value, name);
  if (array.ndim() == 0) {
    throw py::value_error(std::string(name) + " has shape (); expected [rows, ...]");
  }
  return static_cast<std::size_t>(array.shape(0));
}

/// Checks what the shape does not say of an array of numbers to write to.
void* checked_numbers(py::array array, const py::dtype& expected, const char* name) {
  if (!array.dtype().equal(expected)) {
    fail_type(name, "of dtype " + text(array.dtype()), text(expected).c_str());
  }
  constexpr int kLayout = py::detail::npy_api::NPY_ARRAY_C_CONTIGUOUS_ |
                          py::detail::npy_api::NPY_ARRAY_ALIGNED_;
  if ((array.flags() & kLayout) != kLayout) {
    throw py::value_error(std::string(name) + " has strides of " +
                          std::to_string(array.strides(array.ndim() - 1)) +
                          " bytes; expected C-contiguous and aligned");
  }
  return array.mutable_data();
}

template <typename Number>
Number* column_argument(py::handle value, std::size_t rows, const char* name) {
  const py::array array = checked_output(value, name);
  check_rows(shape_of(array), name, rows);
  return static_cast<Number*>(checked_numbers(array, py::dtype::of<Number>(), name));
}
template std::int64_t* column_argument(py::handle, std::size_t, const char*);
template float* column_argument(py::handle, std::size_t, const char*);

std::int64_t* table_argument(py::handle value, std::size_t rows, std::size_t columns,
                             const char* name) {
  const py::array array = checked_output(value, name);
  const auto shape = shape_of(array);
  const std::array expected{static_cast<py::ssize_t>(rows), static_cast<py::ssize_t>(columns)};
  if (!std::equal(shape.begin(), shape.end(), expected.begin(), expected.end())) {
    throw py::value_error(std::string(name) + " has shape " + shape_text(shape) + "; expected " +
                          shape_text(expected));
  }
  return static_cast<std::int64_t*>(
      checked_numbers(array, py::dtype::of<std::int64_t>(), name));
}

BatchTarget batch_argument(const ReplayMemory& memory, py::handle states, py::handle next_states,
                           py::handle actions, py::handle rewards, py::handle discounts,
                           py::handle indices) {
  const FrameGeometry& frame = memory.config().frame;
  const auto stack = static_cast<std::size_t>(memory.config().stack);
  const std::size_t rows = rows_of(states, "states");
  return {
      .rows = rows,
      .states = stack_argument(states, frame, stack, rows, "states"),
      .next_states = stack_argument(next_states, frame, stack, rows, "next_states"),
      .actions = column_argument<std::int64_t>(actions, rows, "actions"),
      .rewards = column_argument<float>(rewards, rows, "rewards"),
      .discounts = column_argument<float>(discounts, rows, "discounts"),
      .indices = column_argument<std::int64_t>(indices, rows, "indices"),
  };
}

py::tuple shape_tuple(const FrameGeometry& frame) {
  py::tuple shape(frame.shape.size());
  for (std::size_t axis = 0; axis < frame.shape.size(); ++axis) shape[axis] = frame.shape[axis];
  return shape;
}

py::dtype numpy_dtype(DType dtype) { return py::dtype(info(dtype).name); }

py::array stack_view(const StackTarget& target, std::size_t rows, std::size_t stack,
                     const FrameGeometry& frame, py::handle base) {
  const bool planar = target.layout == StackLayout::kPlanar;
  const auto element_nbytes = static_cast<py::ssize_t>(info(frame.dtype).size);
  std::vector<py::ssize_t> shape = stack_shape(rows, stack, frame);
  std::vector<py::ssize_t> strides(shape.size());
  strides[0] = target.row_stride;
  strides[1] = planar ? target.frame_stride : element_nbytes;
  py::ssize_t step = planar ? element_nbytes : element_nbytes * shape[1];
  for (std::size_t axis = shape.size(); axis-- > 2;) {
    strides[axis] = step;
    step *= shape[axis];
  }
  return py::array(numpy_dtype(frame.dtype), std::move(shape), std::move(strides), target.data,
                   base);
}

py::array read_only(py::array view) {
  py::detail::array_proxy(view.ptr())->flags &= ~py::detail::npy_api::NPY_ARRAY_WRITEABLE_;
  return view;
}

py::array new_stacks(std::size_t rows, std::size_t stack, const FrameGeometry& frame,
                     StackLayout layout) {
  const py::dtype dtype = numpy_dtype(frame.dtype);
  if (layout == StackLayout::kPlanar) return py::array(dtype, stack_shape(rows, stack, frame));
  py::array memory(dtype, rows * stack * frame.elements());
  auto* data = static_cast<std::byte*>(memory.mutable_data());
  return stack_view(contiguous_target(data, frame, stack, layout), rows, stack, frame, memory);
}

}  // namespace fastdqn::bindings
