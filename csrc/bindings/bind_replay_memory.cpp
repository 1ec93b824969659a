#include <pybind11/pybind11.h>
#include <pybind11/stl/filesystem.h>

#include <array>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "bindings.hpp"
#include "fastdqn/replay_memory.hpp"
#include "numpy_views.hpp"

namespace fastdqn::bindings {

namespace {

using NoGil = py::gil_scoped_release;

/// The two names of every value of an enumeration: the core's and the user's.
template <typename Value, std::size_t kCount>
struct Names {
  const char* argument;
  std::array<std::pair<const char*, Value>, kCount> pairs;

  Value value(py::handle name) const {
    std::string known;
    for (const auto& [text, value] : pairs) {
      if (py::isinstance<py::str>(name) && std::string(py::str(name)) == text) return value;
      known += (known.empty() ? "\"" : "\", \"") + std::string(text);
    }
    throw py::value_error(std::string(argument) + " is " + std::string(py::repr(name)) +
                          "; expected one of " + known + "\"");
  }
  const char* name(Value wanted) const {
    for (const auto& [text, value] : pairs) {
      if (value == wanted) return text;
    }
    return "";
  }
};

constexpr Names<Padding, 3> kPaddings{
    "padding",
    {{{"zero", Padding::kZero}, {"repeat", Padding::kRepeat}, {"reject", Padding::kReject}}}};
constexpr Names<RewardClip, 3> kRewardClips{
    "reward_clip",
    {{{"sign", RewardClip::kSign}, {"clip", RewardClip::kClip}, {"none", RewardClip::kNone}}}};

StackLayout layout(bool channels_last) {
  return channels_last ? StackLayout::kChannelsLast : StackLayout::kPlanar;
}

std::unique_ptr<ReplayMemory> make(py::handle capacity, py::handle frame_shape, py::handle dtype,
                                   py::handle num_envs, py::handle stack, py::handle n_step,
                                   double discount, py::handle padding, py::handle reward_clip,
                                   py::handle seed) {
  return std::make_unique<ReplayMemory>(ReplayConfig{
      .capacity = integer_argument(capacity, "capacity"),
      .frame = {shape_argument(frame_shape), dtype_argument(dtype)},
      .num_envs = integer_argument(num_envs, "num_envs"),
      .stack = integer_argument(stack, "stack"),
      .n_step = integer_argument(n_step, "n_step"),
      .discount = discount,
      .padding = kPaddings.value(padding),
      .reward_clip = kRewardClips.value(reward_clip),
      .seed = seed_argument(seed),
  });
}

std::size_t stack_of(const ReplayMemory& memory) {
  return static_cast<std::size_t>(memory.config().stack);
}

void begin(ReplayMemory& memory, py::handle frames, py::handle env_ids) {
  const auto envs = env_ids_argument(env_ids, memory.config().num_envs);
  const auto rows = frames_argument(frames, memory.config().frame, envs.size());
  const NoGil no_gil;
  memory.begin(envs, rows.rows);
}

void append(ReplayMemory& memory, py::handle actions, py::handle rewards, py::handle frames,
            py::handle terminated, py::handle truncated, py::handle env_ids,
            py::handle life_lost) {
  const auto envs = env_ids_argument(env_ids, memory.config().num_envs);
  const auto frame_rows = frames_argument(frames, memory.config().frame, envs.size());
  const auto action_row = integers_argument(actions, "actions", envs.size());
  const auto reward_row = floats_argument(rewards, "rewards", envs.size());
  const auto terminated_row = flags_argument(terminated, "terminated", envs.size());
  const auto truncated_row = flags_argument(truncated, "truncated", envs.size());
  const auto life_lost_row = flags_argument(life_lost, "life_lost", envs.size());
  const NoGil no_gil;
  memory.append({envs, action_row, reward_row, frame_rows.rows, terminated_row, truncated_row,
                 life_lost_row});
}

py::array stacks(const ReplayMemory& memory, py::handle env_ids, bool channels_last) {
  const auto envs = env_ids_argument(env_ids, memory.config().num_envs);
  py::array out =
      new_stacks(envs.size(), stack_of(memory), memory.config().frame, layout(channels_last));
  const StackTarget target =
      stack_argument(out, memory.config().frame, stack_of(memory), envs.size(), "stacks");
  const NoGil no_gil;
  memory.stacks_into(envs, target);
  return out;
}

void stacks_into(const ReplayMemory& memory, py::handle out, py::handle env_ids) {
  const auto envs = env_ids_argument(env_ids, memory.config().num_envs);
  const StackTarget target =
      stack_argument(out, memory.config().frame, stack_of(memory), envs.size(), "out");
  const NoGil no_gil;
  memory.stacks_into(envs, target);
}

py::array_t<bool> needs_padding(const ReplayMemory& memory, py::handle env_ids) {
  const auto envs = env_ids_argument(env_ids, memory.config().num_envs);
  py::array_t<bool> out(static_cast<py::ssize_t>(envs.size()));
  memory.needs_padding_into(envs, reinterpret_cast<std::uint8_t*>(out.mutable_data()));
  return out;
}

Batch sample(ReplayMemory& memory, py::handle batch_size, bool channels_last) {
  const std::int64_t rows = integer_argument(batch_size, "batch_size");
  const NoGil no_gil;
  return memory.sample(rows, layout(channels_last));
}

Batch gather(const ReplayMemory& memory, py::handle indices, bool channels_last) {
  const auto rows = integers_argument(indices, "indices");
  const NoGil no_gil;
  return memory.gather(rows, layout(channels_last));
}

void sample_into(ReplayMemory& memory, py::handle states, py::handle next_states,
                 py::handle actions, py::handle rewards, py::handle discounts,
                 py::handle indices) {
  const FrameGeometry& frame = memory.config().frame;
  const std::size_t rows = rows_of(states, "states");
  const BatchTarget target{
      .rows = rows,
      .states = stack_argument(states, frame, stack_of(memory), rows, "states"),
      .next_states = stack_argument(next_states, frame, stack_of(memory), rows, "next_states"),
      .actions = column_argument<std::int64_t>(actions, rows, "actions"),
      .rewards = column_argument<float>(rewards, rows, "rewards"),
      .discounts = column_argument<float>(discounts, rows, "discounts"),
      .indices = column_argument<std::int64_t>(indices, rows, "indices"),
  };
  const NoGil no_gil;
  memory.sample_into(target);
}

py::array_t<std::int64_t> valid_indices(const ReplayMemory& memory) {
  const auto indices = [&] {
    const NoGil no_gil;
    return memory.valid_indices();
  }();
  return py::array_t<std::int64_t>(static_cast<py::ssize_t>(indices.size()), indices.data());
}

/// A read-only view of one part of a batch. The batch is its base and owns the memory.
py::array states_view(const py::object& self, StackTarget BatchTarget::*part) {
  const auto& batch = self.cast<const Batch&>();
  return read_only(
      stack_view(batch.target().*part, batch.rows(), batch.stack(), batch.frame(), self));
}

template <typename Number>
py::array column_view(const py::object& self, Number* BatchTarget::*part) {
  const auto& batch = self.cast<const Batch&>();
  return read_only(py::array_t<Number>(static_cast<py::ssize_t>(batch.rows()),
                                       batch.target().*part, self));
}

void bind_batch(py::module_& module) {
  using Self = const py::object&;
  py::class_<Batch>(module, "Batch", R"(Transitions drawn from a ReplayMemory, as read-only views.

The views own their memory: they stay what they are after later samples and after the memory is
gone. B is the batch size.)")
      .def_property_readonly(
          "states", [](Self self) { return states_view(self, &BatchTarget::states); },
          "[B, stack, *frame_shape] in the frames' dtype: what the policy saw.")
      .def_property_readonly(
          "next_states", [](Self self) { return states_view(self, &BatchTarget::next_states); },
          "[B, stack, *frame_shape] in the frames' dtype: what it saw at the end of the window.")
      .def_property_readonly(
          "actions", [](Self self) { return column_view(self, &BatchTarget::actions); },
          "[B] int64: the action taken in each state.")
      .def_property_readonly(
          "rewards", [](Self self) { return column_view(self, &BatchTarget::rewards); },
          "[B] float32: the sum of the window's rewards, each clipped, discounted by its step.")
      .def_property_readonly(
          "discounts", [](Self self) { return column_view(self, &BatchTarget::discounts); },
          "[B] float32: discount**m for a window of m steps, 0 where it ended in a termination.")
      .def_property_readonly(
          "indices", [](Self self) { return column_view(self, &BatchTarget::indices); },
          "[B] int64: where each transition is stored, as gather takes it.")
      .def("__len__", &Batch::rows);
}

}  // namespace

void bind_replay_memory(py::module_& module) {
  py::options options;
  options.disable_function_signatures();
  bind_batch(module);
  const auto config = [](auto read) {
    return [read](const ReplayMemory& memory) { return read(memory.config()); };
  };
  py::class_<ReplayMemory>(module, "ReplayMemory", R"(The last `capacity` frames of all environments, and the transitions between them.)")
      .def(py::init(&make), py::arg("capacity"), py::arg("frame_shape") = py::make_tuple(84, 84),
           py::arg("dtype") = "uint8", py::kw_only(), py::arg("num_envs") = 1,
           py::arg("stack") = 4, py::arg("n_step") = 1, py::arg("discount") = 0.99,
           py::arg("padding") = "zero", py::arg("reward_clip") = "sign", py::arg("seed") = 0)
      .def("begin", &begin, py::arg("frames"), py::arg("env_ids") = py::none(), "")
      .def("append", &append, py::arg("actions"), py::arg("rewards"), py::arg("frames"),
           py::arg("terminated"), py::arg("truncated"), py::arg("env_ids") = py::none(),
           py::kw_only(), py::arg("life_lost") = py::none(), "")
      .def("stacks", &stacks, py::arg("env_ids") = py::none(), py::kw_only(),
           py::arg("channels_last") = false, "")
      .def("stacks_into", &stacks_into, py::arg("out"), py::arg("env_ids") = py::none(), "")
      .def("needs_padding", &needs_padding, py::arg("env_ids") = py::none(), "")
      .def("sample", &sample, py::arg("batch_size"), py::kw_only(),
           py::arg("channels_last") = false, "")
      .def("gather", &gather, py::arg("indices"), py::kw_only(),
           py::arg("channels_last") = false, "")
      .def("sample_into", &sample_into, py::arg("states"), py::arg("next_states"),
           py::arg("actions"), py::arg("rewards"), py::arg("discounts"), py::arg("indices"), "")
      .def("valid_indices", &valid_indices, "")
      .def("__len__", &ReplayMemory::num_drawable, "")
      .def("check_invariants", &ReplayMemory::check_invariants,
           py::call_guard<NoGil>(), "")
      .def_property_readonly("num_frames", &ReplayMemory::num_frames, "")
      .def_property_readonly("nbytes", &ReplayMemory::nbytes, "")
      .def_property_readonly("capacity", config([](const ReplayConfig& c) { return c.capacity; }))
      .def_property_readonly("frame_shape", config([](const ReplayConfig& c) {
                               return py::tuple(py::cast(c.frame.shape));
                             }))
      .def_property_readonly(
          "dtype", config([](const ReplayConfig& c) { return numpy_dtype(c.frame.dtype); }))
      .def_property_readonly("num_envs", config([](const ReplayConfig& c) { return c.num_envs; }))
      .def_property_readonly("stack", config([](const ReplayConfig& c) { return c.stack; }))
      .def_property_readonly("n_step", config([](const ReplayConfig& c) { return c.n_step; }))
      .def_property_readonly("discount", config([](const ReplayConfig& c) { return c.discount; }))
      .def_property_readonly("padding", config([](const ReplayConfig& c) {
                               return kPaddings.name(c.padding);
                             }))
      .def_property_readonly("reward_clip", config([](const ReplayConfig& c) {
                               return kRewardClips.name(c.reward_clip);
                             }))
      .def_property_readonly("seed", config([](const ReplayConfig& c) { return c.seed; }));
}

}  // namespace fastdqn::bindings
