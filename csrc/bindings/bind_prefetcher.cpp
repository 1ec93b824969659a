#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "bindings.hpp"
#include "fastdqn/prefetcher.hpp"
#include "numpy_views.hpp"

namespace fastdqn::bindings {

namespace {

using NoGil = py::gil_scoped_release;

std::unique_ptr<Prefetcher> make(ReplayMemory& memory, py::handle threads) {
  const std::int64_t count = integer_argument(threads, "threads");
  if (count < 1) {
    throw py::value_error("threads is " + std::to_string(count) + "; expected 1 or more");
  }
  return std::make_unique<Prefetcher>(memory, static_cast<std::size_t>(count));
}

/// The object, let go of by whichever thread drops the last pointer, with or without the GIL.
std::shared_ptr<void> owner(py::object object) {
  return {object.release().ptr(), [](PyObject* pointer) {
            const py::gil_scoped_acquire gil;
            Py_DECREF(pointer);
          }};
}

void submit(Prefetcher& prefetcher, py::object states, py::object next_states, py::object actions,
            py::object rewards, py::object discounts, py::object indices) {
  const BatchTarget target = batch_argument(prefetcher.memory(), states, next_states, actions,
                                            rewards, discounts, indices);
  std::shared_ptr<void> arrays = owner(
      py::make_tuple(states, next_states, actions, rewards, discounts, indices));
  const NoGil no_gil;
  prefetcher.submit(target, std::move(arrays));
}

}  // namespace

void bind_prefetcher(py::module_& module) {
  py::options options;
  options.disable_function_signatures();

  py::class_<Prefetcher>(module, "Prefetcher",
                         R"(Threads that copy batches out of a ReplayMemory in the background.

What a batch holds is decided in submit: its transitions are drawn there, by the memory's own
generator, and until they are copied the memory's begin and append wait. Batches are therefore the
same for any number of threads.

memory   the ReplayMemory; the prefetcher keeps it alive
threads  1 to 64; they sleep while there is nothing to copy)")
      .def(py::init(&make), py::arg("memory"), py::arg("threads"), py::keep_alive<1, 2>(),
           R"(__init__(self, memory, threads)
--

See the class.)")
      .def("submit", &submit, py::arg("states"), py::arg("next_states"), py::arg("actions"),
           py::arg("rewards"), py::arg("discounts"), py::arg("indices"),
           R"(submit(self, states, next_states, actions, rewards, discounts, indices)
--

Draw a batch that is copied to the caller's arrays while the caller goes on.

The arrays are those of ReplayMemory.sample_into, and so are the errors. They are kept alive, and
may be neither read nor written, until wait has returned for this batch. RuntimeError once closed.)")
      .def("wait", &Prefetcher::wait, py::call_guard<NoGil>(),
           R"(wait(self)
--

Return when the oldest submitted batch that nobody waited for is there.

Raises what copying it raised, and RuntimeError where nothing was submitted, or once closed.)")
      .def("close", &Prefetcher::close, py::call_guard<NoGil>(),
           R"(close(self)
--

Give up what was not begun, wait for the rest and end the threads: no array is written any more.

Done too when the prefetcher is deleted.)")
      .def_property_readonly("outstanding", &Prefetcher::outstanding,
                             "Batches submitted and not yet waited for.");
}

}  // namespace fastdqn::bindings
