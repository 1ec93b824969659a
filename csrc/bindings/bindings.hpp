#pragma once

#include <pybind11/pybind11.h>

namespace fastdqn::bindings {

void bind_learning(pybind11::module_& module);
void bind_prefetcher(pybind11::module_& module);
void bind_replay_memory(pybind11::module_& module);

}  // namespace fastdqn::bindings
