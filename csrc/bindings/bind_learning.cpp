#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bindings.hpp"
#include "fastdqn/nature_network.hpp"
#include "fastdqn/nature_update.hpp"
#include "fastdqn/optimizer_steps.hpp"
#include "fastdqn/q_learning.hpp"
#include "fastdqn/thread_pool.hpp"
#include "numpy_views.hpp"

namespace fastdqn::bindings {

namespace {

using NoGil = py::gil_scoped_release;
using Shape = std::vector<py::ssize_t>;

constexpr std::size_t kWeights = 10;
constexpr std::array<const char*, kWeights> kNames{
    "convolutions.0.weight", "convolutions.0.bias", "convolutions.1.weight",
    "convolutions.1.bias",   "convolutions.2.weight", "convolutions.2.bias",
    "hidden.weight",         "hidden.bias",           "values.weight",
    "values.bias"};

std::string shape_text(const Shape& shape) {
  std::string text = "(";
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    text += (axis == 0 ? "" : ", ") + std::to_string(shape[axis]);
  }
  return text + (shape.size() == 1 ? ",)" : ")");
}

Shape shape_of(const py::array& array) {
  return {array.shape(), array.shape() + array.ndim()};
}

template <class Number>
py::array checked_dtype(py::handle value, const char* name) {
  if (!py::isinstance<py::array>(value)) {
    throw py::type_error(std::string(name) + " is of type " +
                         std::string(py::str(py::type::of(value).attr("__name__"))) +
                         "; expected a numpy array");
  }
  auto array = py::reinterpret_borrow<py::array>(value);
  if (!array.dtype().equal(py::dtype::of<Number>())) {
    throw py::type_error(std::string(name) + " is of dtype " +
                         std::string(py::str(array.dtype())) + "; expected " +
                         std::string(py::str(py::dtype::of<Number>())));
  }
  return array;
}

/// A C-contiguous array of exactly these numbers, and of this shape where one is given.
template <class Number>
py::array checked(py::handle value, const char* name, const Shape* shape, bool writeable) {
  const py::array array = checked_dtype<Number>(value, name);
  if (shape != nullptr && shape_of(array) != *shape) {
    throw py::value_error(std::string(name) + " has shape " + shape_text(shape_of(array)) +
                          "; expected " + shape_text(*shape));
  }
  constexpr int kLayout = py::detail::npy_api::NPY_ARRAY_C_CONTIGUOUS_ |
                          py::detail::npy_api::NPY_ARRAY_ALIGNED_;
  if ((array.flags() & kLayout) != kLayout) {
    throw py::value_error(std::string(name) + " is not C-contiguous");
  }
  if (writeable && !array.writeable()) throw py::value_error(std::string(name) + " is read-only");
  return array;
}

template <class Number>
Number* numbers(py::handle value, const char* name, const Shape& shape) {
  return static_cast<Number*>(checked<Number>(value, name, &shape, true).mutable_data());
}

/// The network and what keeps its memory alive.
struct Published {
  std::vector<py::object> weights;
  std::vector<Shape> shapes;
  py::object learned;  // the stacks of the last forward_into
  NatureNetwork network;
};

std::unique_ptr<Published> make(const py::sequence& weights, py::handle height, py::handle width,
                                py::handle first_padding, bool bfloat16) {
  if (weights.size() != kWeights) {
    throw py::value_error("weights has length " + std::to_string(weights.size()) + "; expected " +
                          std::to_string(kWeights));
  }
  const auto size = [](py::handle value, const char* name) {
    const std::int64_t number = integer_argument(value, name);
    if (number < 0) throw py::value_error(std::string(name) + " is negative");
    return static_cast<std::size_t>(number);
  };
  std::vector<py::object> arrays;
  std::vector<Shape> shapes;
  NatureWeights<const float> pointers{};
  for (std::size_t k = 0; k < kWeights; ++k) {
    const py::array array = checked<float>(py::object(weights[k]), kNames[k], nullptr, false);
    shapes.push_back(shape_of(array));
    const auto* data = static_cast<const float*>(array.data());
    if (k < 6) {
      (k % 2 == 0 ? pointers.filters : pointers.biases)[k / 2] = data;
    } else {
      (k == 6 ? pointers.hidden : k == 7 ? pointers.hidden_bias
                              : k == 8   ? pointers.values
                                         : pointers.values_bias) = data;
    }
    arrays.push_back(array);
  }
  if (shapes[0].size() != 4 || shapes[8].size() != 2 || shapes[9].size() != 1) {
    throw py::value_error("weights are not of a Nature network");
  }
  const auto actions = shapes[8][0];
  const NatureShape shape{
      .stack = static_cast<std::size_t>(shapes[0][3]),
      .height = size(height, "height"),
      .width = size(width, "width"),
      .first_padding = size(first_padding, "first_padding"),
      .num_actions = static_cast<std::size_t>(actions),
      .shared_last_bias = actions != 1 && shapes[9][0] == 1,
  };
  auto published = std::unique_ptr<Published>(new Published{
      std::move(arrays),
      std::move(shapes),
      py::none(),
      {shape, bfloat16 ? NatureNumbers::kBfloat16 : NatureNumbers::kFloat32, pointers}});
  const auto units = static_cast<py::ssize_t>(NatureNetwork::kHiddenUnits);
  const auto features = static_cast<py::ssize_t>(published->network.sizes().hidden) / units;
  const std::array<Shape, kWeights> expected{
      Shape{32, 8, 8, static_cast<py::ssize_t>(shape.stack)}, {32}, {64, 4, 4, 32}, {64}, {64, 3, 3, 64}, {64},
      {units, features}, {units}, {actions, units}, {shape.shared_last_bias ? 1 : actions}};
  for (std::size_t k = 0; k < kWeights; ++k) {
    if (published->shapes[k] != expected[k]) {
      throw py::value_error(std::string(kNames[k]) + " has shape " +
                            shape_text(published->shapes[k]) + "; expected " +
                            shape_text(expected[k]));
    }
  }
  return published;
}

/// Stacks [rows, height, width, stack] of bytes.
std::vector<Stacks> stacks_argument(const NatureNetwork& network, const py::sequence& values) {
  const NatureShape& shape = network.shape();
  std::vector<Stacks> stacks;
  for (const py::handle value : values) {
    const py::array array = checked_dtype<std::uint8_t>(value, "stacks");
    Shape expected{0, static_cast<py::ssize_t>(shape.height),
                   static_cast<py::ssize_t>(shape.width), static_cast<py::ssize_t>(shape.stack)};
    if (array.ndim() == 4) expected[0] = array.shape(0);
    if (shape_of(array) != expected) {
      throw py::value_error("stacks has shape " + shape_text(shape_of(array)) +
                            "; expected (rows, " + shape_text(expected).substr(4));
    }
    (void)checked<std::uint8_t>(array, "stacks", &expected, false);
    stacks.push_back({static_cast<const std::uint8_t*>(array.data()),
                      static_cast<std::size_t>(array.shape(0))});
  }
  return stacks;
}

Shape values_shape(const NatureNetwork& network, std::size_t rows) {
  return {static_cast<py::ssize_t>(rows), static_cast<py::ssize_t>(network.shape().num_actions)};
}

std::size_t count_rows(const std::vector<Stacks>& stacks) {
  std::size_t rows = 0;
  for (const Stacks& part : stacks) rows += part.rows;
  return rows;
}

void refresh(Published& published, ThreadPool& pool) {
  const NoGil no_gil;
  published.network.refresh(pool);
}

void values_into(Published& published, ThreadPool& pool, const py::sequence& values,
                 py::handle out) {
  const std::vector<Stacks> stacks = stacks_argument(published.network, values);
  auto* to = numbers<float>(out, "out", values_shape(published.network, count_rows(stacks)));
  const NoGil no_gil;
  published.network.values_into(pool, stacks, to);
}

void actions_into(Published& published, ThreadPool& pool, const py::sequence& values,
                  py::handle out) {
  const std::vector<Stacks> stacks = stacks_argument(published.network, values);
  auto* to = numbers<std::int64_t>(out, "out",
                                   {static_cast<py::ssize_t>(count_rows(stacks))});
  const NoGil no_gil;
  published.network.actions_into(pool, stacks, to);
}

void forward_into(Published& published, ThreadPool& pool, const py::sequence& values,
                  py::handle learned, py::handle out) {
  const std::vector<Stacks> stacks = stacks_argument(published.network, values);
  const std::size_t rows = count_rows(stacks);
  const std::int64_t count = integer_argument(learned, "learned");
  if (count < 0 || static_cast<std::size_t>(count) > rows) {
    throw py::value_error("learned is " + std::to_string(count) + "; expected 0 to " +
                          std::to_string(rows) + ", the number of rows");
  }
  auto* to = numbers<float>(out, "out", values_shape(published.network, rows));
  published.learned = py::tuple(values);
  const NoGil no_gil;
  published.network.forward_into(pool, stacks, static_cast<std::size_t>(count), to);
}

/// The gradient [learned, actions] of the kept rows' values.
const float* values_gradient(Published& published, py::handle grad) {
  const Shape shape = values_shape(published.network, published.network.learned());
  return static_cast<const float*>(checked<float>(grad, "grad", &shape, false).data());
}

/// Arrays of the weights' shapes.
NatureWeights<float> gradients_argument(const Published& published, const py::sequence& gradients) {
  if (gradients.size() != kWeights) {
    throw py::value_error("gradients has length " + std::to_string(gradients.size()) +
                          "; expected " + std::to_string(kWeights));
  }
  std::array<float*, kWeights> to{};
  for (std::size_t k = 0; k < kWeights; ++k) {
    to[k] = numbers<float>(py::object(gradients[k]), kNames[k], published.shapes[k]);
  }
  return {{to[0], to[2], to[4]}, {to[1], to[3], to[5]}, to[6], to[7], to[8], to[9]};
}

void backward_into(Published& published, ThreadPool& pool, py::handle grad,
                   const py::sequence& gradients) {
  const float* from = values_gradient(published, grad);
  const NatureWeights<float> to = gradients_argument(published, gradients);
  const NoGil no_gil;
  published.network.backward_into(pool, from, to);
}

/// Four sequences of arrays, of which those of one weight have one size.
class AdamArguments {
 public:
  AdamArguments(const py::sequence& weights, const py::sequence& gradients,
                const py::sequence& means, const py::sequence& squares) {
    for (const py::sequence& each : {gradients, means, squares}) {
      if (each.size() != weights.size()) {
        throw py::value_error("expected a gradient and two moments for each weight");
      }
    }
    for (std::size_t k = 0; k < weights.size(); ++k) {
      const auto data = [&](const py::sequence& from, const char* name, const Shape* shape) {
        py::array array = checked<float>(py::object(from[k]), name, shape, true);
        kept_.push_back(array);
        return array;
      };
      py::array weight = data(weights, "weights", nullptr);
      const Shape shape = shape_of(weight);
      arrays_.push_back(
          {static_cast<float*>(weight.mutable_data()),
           static_cast<const float*>(data(gradients, "gradients", &shape).data()),
           static_cast<float*>(data(means, "means", &shape).mutable_data()),
           static_cast<float*>(data(squares, "squares", &shape).mutable_data()),
           static_cast<std::size_t>(weight.size())});
    }
  }

  const std::vector<AdamArrays>& arrays() const { return arrays_; }

  static AdamFactors factors(double learning_rate, double beta1, double beta2, double epsilon,
                             double step) {
    return {
        .mean_weight = static_cast<float>(1 - beta1),
        .square_decay = static_cast<float>(beta2),
        .square_weight = static_cast<float>(1 - beta2),
        .square_root_divisor = static_cast<float>(std::sqrt(1 - std::pow(beta2, step))),
        .epsilon = static_cast<float>(epsilon),
        .step_size = static_cast<float>(learning_rate / (1 - std::pow(beta1, step))),
    };
  }

  void step(ThreadPool& pool, double learning_rate, double beta1, double beta2, double epsilon,
            double step) const {
    const AdamFactors by = factors(learning_rate, beta1, beta2, epsilon, step);
    const NoGil no_gil;
    adam_step(pool, arrays_, by);
  }

 private:
  std::vector<py::array> kept_;
  std::vector<AdamArrays> arrays_;
};

/// An update and what keeps its memory alive.
class PublishedUpdate {
 public:
  PublishedUpdate(py::object pool, py::object online, py::object target, const py::sequence& batch,
                  bool double_learning, bool huber, bool mean)
      : kept_{pool, online, target},
        online_(online.cast<Published&>()),
        update_(pool.cast<ThreadPool&>(), online_.network, target.cast<Published&>().network,
                transitions(online_, target.cast<Published&>(), batch),
                {double_learning, {huber, mean}}) {
    for (const py::handle array : batch) kept_.push_back(py::reinterpret_borrow<py::object>(array));
    stacks_ = py::make_tuple(batch[0], batch[4]);
  }

  void begin() {
    update_.begin();
    online_.learned = stacks_;
  }

  py::tuple finish(const py::sequence& gradients, const AdamArguments& adam, double learning_rate,
                   double beta1, double beta2, double epsilon, double step) {
    const NatureWeights<float> to = gradients_argument(online_, gradients);
    const AdamFactors by = AdamArguments::factors(learning_rate, beta1, beta2, epsilon, step);
    online_.learned = stacks_;
    QLearningResult result;
    {
      const NoGil no_gil;
      result = update_.finish(to, adam.arrays(), by);
    }
    return py::make_tuple(result.loss, result.mean_q);
  }

 private:
  static Transitions transitions(const Published& online, const Published& target,
                                 const py::sequence& batch) {
    if (batch.size() != 5) throw py::value_error("batch is not of five arrays");
    if (online.shapes != target.shapes) {
      throw py::value_error("the two networks are not of one form");
    }
    const std::vector<Stacks> stacks =
        stacks_argument(online.network, py::make_tuple(batch[0], batch[4]));
    const Shape rows{static_cast<py::ssize_t>(stacks[0].rows)};
    if (rows[0] == 0 || stacks[1].rows != stacks[0].rows) {
      throw py::value_error("states has " + std::to_string(rows[0]) + " rows and next_states " +
                            std::to_string(stacks[1].rows) + "; expected as many, and some");
    }
    const auto data = [&](std::size_t k, const char* name, auto number) {
      using Number = decltype(number);
      return static_cast<const Number*>(
          checked<Number>(py::object(batch[k]), name, &rows, false).data());
    };
    return {stacks[0], stacks[1], data(1, "actions", std::int64_t{}), data(2, "rewards", float{}),
            data(3, "discounts", float{})};
  }

  std::vector<py::object> kept_;
  py::object stacks_;
  Published& online_;
  NatureUpdate update_;
};

py::tuple q_learning(py::handle q_tm1, py::handle a_tm1, py::handle r_t, py::handle discount_t,
                     py::handle q_t_value, py::handle q_t_selector, py::handle grad, bool huber,
                     bool mean) {
  const py::array values = checked<float>(q_tm1, "q_tm1", nullptr, false);
  if (values.ndim() != 2 || values.shape(0) == 0 || values.shape(1) == 0) {
    throw py::value_error("q_tm1 has shape " + shape_text(shape_of(values)) +
                          "; expected (rows, actions), neither 0");
  }
  const Shape all = shape_of(values);
  const Shape rows{all[0]};
  const auto floats = [](py::handle value, const char* name, const Shape& shape) {
    return static_cast<const float*>(checked<float>(value, name, &shape, false).data());
  };
  const QLearningBatch batch{
      .rows = static_cast<std::size_t>(all[0]),
      .num_actions = static_cast<std::size_t>(all[1]),
      .q_tm1 = static_cast<const float*>(values.data()),
      .a_tm1 = static_cast<const std::int64_t*>(
          checked<std::int64_t>(a_tm1, "a_tm1", &rows, false).data()),
      .r_t = floats(r_t, "r_t", rows),
      .discount_t = floats(discount_t, "discount_t", rows),
      .q_t_value = floats(q_t_value, "q_t_value", all),
      .q_t_selector = floats(q_t_selector, "q_t_selector", all),
  };
  const QLearningResult result =
      q_learning_into(batch, {huber, mean}, numbers<float>(grad, "grad", all));
  return py::make_tuple(result.loss, result.mean_q);
}

std::unique_ptr<ThreadPool> make_pool(py::handle threads) {
  const std::int64_t count = integer_argument(threads, "threads");
  if (count < 1 || count > static_cast<std::int64_t>(ThreadPool::kMaxThreads)) {
    throw py::value_error("threads is " + std::to_string(count) + "; expected 1 to " +
                          std::to_string(ThreadPool::kMaxThreads));
  }
  return std::make_unique<ThreadPool>(static_cast<std::size_t>(count));
}

}  // namespace

void bind_learning(py::module_& module) {
  py::options options;
  options.disable_function_signatures();

  py::class_<ThreadPool>(module, "ThreadPool",
                         R"(Threads that share out one computation after another.

threads  1 to 1024, the caller's included; the others sleep while there is nothing to compute)")
      .def(py::init(&make_pool), py::arg("threads"),
           R"(__init__(self, threads)
--

See the class.)")
      .def_property_readonly("threads", &ThreadPool::threads, "Threads, the caller's included.");

  py::class_<Published>(module, "NatureNetwork",
                        R"(Passes of a Nature network, on arrays that the caller owns.

Products are of float32 numbers or, with bfloat16, of numbers rounded to that, except in the last
layer; sums, weights and gradients are float32. Results do not depend on the number of threads.

weights        ten C-contiguous arrays of float32, in the order of the network's parameters: filters
               [out, y, x, in] and biases of three convolutions, of the hidden layer, of the values
height, width  of a frame in pixels; stacks are uint8 arrays [rows, height, width, stack]
first_padding  zeros around the frames
bfloat16       whether to multiply such numbers

ValueError where it does not compute such a network (the stack has to be even), RuntimeError where
the processor lacks the instructions.)")
      .def_static(
          "is_available",
          [](bool bfloat16) {
            return NatureNetwork::is_available(bfloat16 ? NatureNumbers::kBfloat16
                                                        : NatureNumbers::kFloat32);
          },
          py::kw_only(), py::arg("bfloat16"),
          R"(is_available(*, bfloat16)
--

Whether the processor has the instructions.)")
      .def(py::init(&make), py::arg("weights"), py::kw_only(), py::arg("height"),
           py::arg("width"), py::arg("first_padding"), py::arg("bfloat16"),
           R"(__init__(self, weights, *, height, width, first_padding, bfloat16)
--

See the class.)")
      .def_property_readonly(
          "few_rows", [](const Published& network) { return network.network.few_rows(); },
          R"(Fewer rows than this that nothing is learned from are computed another way, which rounds
otherwise; 0 where all are computed alike.)")
      .def("refresh", &refresh, py::arg("pool"),
           R"(refresh(self, pool)
--

Take over the weights: before anything else, and whenever they have changed.)")
      .def("values_into", &values_into, py::arg("pool"), py::arg("stacks"), py::arg("out"),
           R"(values_into(self, pool, stacks, out)
--

Values of a sequence of stacks, one behind the other, to out [rows, actions] float32.)")
      .def("actions_into", &actions_into, py::arg("pool"), py::arg("stacks"), py::arg("out"),
           R"(actions_into(self, pool, stacks, out)
--

The actions of the largest values, of equal ones the first, to out [rows] int64.)")
      .def("forward_into", &forward_into, py::arg("pool"), py::arg("stacks"), py::arg("learned"),
           py::arg("out"),
           R"(forward_into(self, pool, stacks, learned, out)
--

The same as values_into, keeping what backward_into needs of the first `learned` rows. The stacks are kept alive
and have to stay as they are until then.)")
      .def("backward_into", &backward_into, py::arg("pool"), py::arg("grad"),
           py::arg("gradients"),
           R"(backward_into(self, pool, grad, gradients)
--

From the gradient [learned, actions] of the kept rows' values those of all weights, into arrays of
the weights' shapes. RuntimeError where nothing is kept.)");

  py::class_<AdamArguments>(module, "AdamStep",
                            R"(Adam's step on arrays that the caller owns, which are kept alive.

weights, gradients, means, squares  sequences of C-contiguous arrays of float32, of equal shapes)")
      .def_static("is_available", &has_adam_step, R"(is_available()
--

Whether the processor has the instructions.)")
      .def(py::init<const py::sequence&, const py::sequence&, const py::sequence&,
                    const py::sequence&>(),
           py::arg("weights"), py::arg("gradients"), py::arg("means"), py::arg("squares"),
           R"(__init__(self, weights, gradients, means, squares)
--

See the class.)")
      .def("step", &AdamArguments::step, py::arg("pool"), py::kw_only(), py::arg("learning_rate"),
           py::arg("beta1"), py::arg("beta2"), py::arg("epsilon"), py::arg("step"),
           R"(step(self, pool, *, learning_rate, beta1, beta2, epsilon, step)
--

Move every weight; `step` counts from 1.)");

  py::class_<PublishedUpdate>(module, "NatureUpdate",
                              R"(A whole update of a NatureNetwork by (double) Q-learning and Adam.

The target network's values, forward_into, q_learning_into, backward_into, the step of `adam` and
refresh, in one; the numbers are the same, and the hidden layer's gradient is written nowhere.
Arrays are kept alive, and have to stay as they are until the update is finished or gone.

online  is moved; target is a network of the same form
batch   states, actions, rewards, discounts, next_states: uint8 [rows, height, width, stack], int64
        and float32 [rows]
double  whether `online` chooses the next states' actions, the target network's values they are

huber or squares; mean over the rows, or the sum. ValueError where the arrays do not suit.)")
      .def(py::init<py::object, py::object, py::object, const py::sequence&, bool, bool, bool>(),
           py::arg("pool"), py::arg("online"), py::arg("target"), py::arg("batch"), py::kw_only(),
           py::arg("double"), py::arg("huber"), py::arg("mean"),
           R"(__init__(self, pool, online, target, batch, *, double, huber, mean)
--

See the class.)")
      .def("begin", &PublishedUpdate::begin,
           R"(begin(self)
--

Have the pool's own threads compute what needs no weight to be written, while the caller does
something else, as having values of `online`. Without it `finish` does all of it. RuntimeError for a
second call.)")
      .def("finish", &PublishedUpdate::finish, py::arg("gradients"), py::arg("adam"),
           py::kw_only(), py::arg("learning_rate"), py::arg("beta1"), py::arg("beta2"),
           py::arg("epsilon"), py::arg("step"),
           R"(finish(self, gradients, adam, *, learning_rate, beta1, beta2, epsilon, step)
--

Move the weights, by `adam`, an AdamStep of the weights and these gradients. Returns the loss and
the mean of the taken actions' values. ValueError where `adam` is of other arrays, IndexError for an
action that there is not, RuntimeError for a second call and where `online` has made another forward
pass for learning since.)");

  module.def("q_learning_into", &q_learning, py::arg("q_tm1"), py::arg("a_tm1"), py::arg("r_t"),
             py::arg("discount_t"), py::arg("q_t_value"), py::arg("q_t_selector"),
             py::arg("grad"), py::kw_only(), py::arg("huber"), py::arg("mean"),
             R"(q_learning_into(q_tm1, a_tm1, r_t, discount_t, q_t_value, q_t_selector, grad, *, huber, mean)
--

The loss and the mean of the taken actions' values of (double) Q-learning; to `grad` [rows, actions]
float32 the loss's gradient by q_tm1. All are C-contiguous: values [rows, actions] and r_t and
discount_t [rows] float32, a_tm1 [rows] int64. huber or squares; mean over the rows, or the sum.
IndexError for an action that there is not.)");
}

}  // namespace fastdqn::bindings
