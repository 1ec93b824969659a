#include <pybind11/pybind11.h>

#include "bindings.hpp"

PYBIND11_MODULE(_core, module) {
  module.doc() = "C++ core of fastdqn: the classes that own replay state, and numpy views of them.";
  module.attr("__version__") = FASTDQN_VERSION;
  fastdqn::bindings::bind_replay_memory(module);
  fastdqn::bindings::bind_prefetcher(module);
  fastdqn::bindings::bind_learning(module);
}
