#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "fastdqn/replay_memory.hpp"
#include "fastdqn/snapshot.hpp"
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
constexpr Names<Eviction, 2> kEvictions{
    "eviction", {{{"fifo", Eviction::kFifo}, {"random", Eviction::kRandom}}}};

constexpr Names<Storage, 2> kStorages{
    "storage", {{{"raw", Storage::kRaw}, {"compressed", Storage::kCompressed}}}};

StackLayout layout(bool channels_last) {
  return channels_last ? StackLayout::kChannelsLast : StackLayout::kPlanar;
}

std::string directory_argument(const std::optional<std::filesystem::path>& directory) {
  if (!directory) return {};
  if (directory->empty()) throw py::value_error("directory is empty; expected a folder or None");
  return directory->string();
}

std::unique_ptr<ReplayMemory> make(py::handle capacity, py::handle frame_shape, py::handle dtype,
                                   py::handle num_envs, py::handle stack, py::handle n_step,
                                   double discount, py::handle padding, py::handle reward_clip,
                                   py::handle eviction, py::handle storage,
                                   const std::optional<std::filesystem::path>& directory,
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
      .storage = kStorages.value(storage),
      .directory = directory_argument(directory),
      .eviction = kEvictions.value(eviction),
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
  auto* flags = reinterpret_cast<std::uint8_t*>(out.mutable_data());
  const NoGil no_gil;
  memory.needs_padding_into(envs, flags);
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
  const BatchTarget target =
      batch_argument(memory, states, next_states, actions, rewards, discounts, indices);
  const NoGil no_gil;
  memory.sample_into(target);
}

void sample_slots_into(ReplayMemory& memory, py::handle state_slots, py::handle next_state_slots,
                       py::handle actions, py::handle rewards, py::handle discounts,
                       py::handle indices) {
  const std::size_t rows = rows_of(state_slots, "state_slots");
  const SlotBatchTarget target{
      .rows = rows,
      .state_slots = table_argument(state_slots, rows, stack_of(memory), "state_slots"),
      .next_state_slots =
          table_argument(next_state_slots, rows, stack_of(memory), "next_state_slots"),
      .actions = column_argument<std::int64_t>(actions, rows, "actions"),
      .rewards = column_argument<float>(rewards, rows, "rewards"),
      .discounts = column_argument<float>(discounts, rows, "discounts"),
      .indices = column_argument<std::int64_t>(indices, rows, "indices"),
  };
  const NoGil no_gil;
  memory.sample_slots_into(target);
}

py::array_t<std::int64_t> newest_slots(const ReplayMemory& memory, py::handle env_ids) {
  const auto envs = env_ids_argument(env_ids, memory.config().num_envs);
  py::array_t<std::int64_t> out(static_cast<py::ssize_t>(envs.size()));
  auto* slots = out.mutable_data();
  const NoGil no_gil;
  memory.newest_slots_into(envs, slots);
  return out;
}

void frames_into(const ReplayMemory& memory, py::handle out, py::handle slots) {
  const auto rows = integers_argument(slots, "slots");
  const StackTarget target = stack_argument(out, memory.config().frame, 1, rows.size(), "out");
  const NoGil no_gil;
  memory.frames_into(rows, target);
}

py::array_t<std::int64_t> valid_indices(const ReplayMemory& memory) {
  const auto indices = [&] {
    const NoGil no_gil;
    return memory.valid_indices();
  }();
  return py::array_t<std::int64_t>(static_cast<py::ssize_t>(indices.size()), indices.data());
}

py::array_t<std::int64_t> age_quantiles(const ReplayMemory& memory,
                                        const std::vector<double>& fractions) {
  const auto ages = [&] {
    const NoGil no_gil;
    return memory.age_quantiles(fractions);
  }();
  py::array_t<std::int64_t> out(static_cast<py::ssize_t>(ages.size()));
  std::copy(ages.begin(), ages.end(), out.mutable_data());
  return out;
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

/// A damaged file is a ValueError; what the system refuses is the OSError of its number.
void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const SnapshotError& error) {
    py::set_error(PyExc_ValueError, error.what());
  } catch (const std::system_error& error) {
    py::set_error(PyExc_OSError, py::make_tuple(error.code().value(), error.what()));
  }
}

void bind_batch(py::module_& module) {
  using Self = const py::object&;
  py::class_<Batch>(module, "Batch", R"(Transitions from a ReplayMemory, as read-only numpy views.

B is the number of transitions, len(batch). Every view keeps the memory it shows alive: it stays
what it is after later samples, and after the batch and the ReplayMemory are gone.)")
      .def_property_readonly(
          "states", [](Self self) { return states_view(self, &BatchTarget::states); },
          "[B, stack, *frame_shape] in the frames' dtype: the states the actions were taken in.")
      .def_property_readonly(
          "next_states", [](Self self) { return states_view(self, &BatchTarget::next_states); },
          "[B, stack, *frame_shape] in the frames' dtype: the states at the ends of the windows.")
      .def_property_readonly(
          "actions", [](Self self) { return column_view(self, &BatchTarget::actions); },
          "[B] int64: the actions taken in the states.")
      .def_property_readonly(
          "rewards", [](Self self) { return column_view(self, &BatchTarget::rewards); },
          "[B] float32: sum of discount**k * clipped reward over the steps k of each window.")
      .def_property_readonly(
          "discounts", [](Self self) { return column_view(self, &BatchTarget::discounts); },
          "[B] float32: discount**m after m steps, 0 where the window ended in a termination.")
      .def_property_readonly(
          "indices", [](Self self) { return column_view(self, &BatchTarget::indices); },
          "[B] int64: where the transitions are stored, as gather takes them.")
      .def("__len__", &Batch::rows, "__len__(self)\n--\n\nThe number of transitions.");
}

template <typename Read>
auto of_config(Read read) {
  return [read](const ReplayMemory& memory) { return read(memory.config()); };
}

}  // namespace

void bind_replay_memory(py::module_& module) {
  // The docstrings begin with the signature that inspect and help show.
  py::options options;
  options.disable_function_signatures();
  py::register_local_exception_translator(&translate);
  bind_batch(module);

  py::class_<ReplayMemory> memory(
      module, "ReplayMemory",
      R"(`capacity` frames of all environments, and the transitions between them.

One slot of the ring is one frame, a frame's slot number is the index of the transition that
starts there, and stacks are built when they are read. A transition can be drawn exactly when

1. an action was taken at its frame,
2. every frame of its stack that belongs to the episode is still stored, and
3. its window is complete: the frame n_step steps on is stored, or the window ended before in a
   termination, a truncation or a lost life.

Frames before an episode's first are padding: zeros (padding="zero"), the first frame again
("repeat"), or a reason never to draw the transition ("reject").

Parameters
    capacity     frames stored, over all environments; at least num_envs * (stack + n_step)
    frame_shape  shape of one frame, () for a single number
    dtype        of the frames: bool or an integer or float type of numpy
    num_envs     environments, numbered from 0
    stack        frames in a state
    n_step       steps in a window
    discount     of the reward a step later, 0 to 1
    padding      "zero", "repeat" or "reject"
    reward_clip  "sign", "clip" (to -1 to 1) or "none": applied to each step's reward as it is read
    eviction     which frames go when the memory is full: the oldest ("fifo"), or those of a block
                 of consecutive ones drawn at random ("random"), so that any age may survive
    storage      "raw", or "compressed": without loss, as what changed from frame to frame
    directory    folder for files that hold the frames, mapped into memory, so that they may be
                 more than memory holds; None keeps them in memory
    seed         of the sampling and of random eviction, 0 to 2**64 - 1

A setting out of range is a ValueError, one of a wrong type a TypeError, and more memory than
there is a MemoryError. A call that raises has changed nothing.

Every method may be called from any thread. begin and append wait for the calls that read, and
those run side by side; none holds the GIL while it copies frames.)");
  memory
      .def(py::init(&make), py::arg("capacity"), py::arg("frame_shape") = py::make_tuple(84, 84),
           py::arg("dtype") = "uint8", py::kw_only(), py::arg("num_envs") = 1,
           py::arg("stack") = 4, py::arg("n_step") = 1, py::arg("discount") = 0.99,
           py::arg("padding") = "zero", py::arg("reward_clip") = "sign",
           py::arg("eviction") = "fifo", py::arg("storage") = "raw",
           py::arg("directory") = py::none(), py::arg("seed") = 0,
           R"(__init__(self, capacity, frame_shape=(84, 84), dtype="uint8", *, num_envs=1, stack=4, n_step=1, discount=0.99, padding="zero", reward_clip="sign", eviction="fifo", storage="raw", directory=None, seed=0)
--

See the class.)")
      .def("begin", &begin, py::arg("frames"), py::arg("env_ids") = py::none(),
           R"(begin(self, frames, env_ids=None)
--

Store the first frames of new episodes.

frames is [N, *frame_shape] of exactly the memory's dtype, one row for each environment named in
env_ids (distinct integers; None names all). The frames are copied. Where an episode is still
open it is closed as interrupted: nothing later is joined to it, and its windows that are not
complete are never drawn.

TypeError for another dtype, ValueError for another shape or an environment named twice,
IndexError for one that does not exist.)")
      .def("append", &append, py::arg("actions"), py::arg("rewards"), py::arg("frames"),
           py::arg("terminated"), py::arg("truncated"), py::arg("env_ids") = py::none(),
           py::kw_only(), py::arg("life_lost") = py::none(),
           R"(append(self, actions, rewards, frames, terminated, truncated, env_ids=None, *, life_lost=None)
--

Store what one action in each environment led to.

actions     [N] integers that fit 32 bits
rewards     [N] float32 or float64, finite; stored as float32, unclipped
frames      [N, *frame_shape] of exactly the memory's dtype: the frames reached, final ones too
terminated  [N] bool: the episode ended in a terminal state
truncated   [N] bool: the episode was cut off; its last state still has a value
life_lost   [N] bool: terminal for learning, but the episode and its stacks go on
env_ids     [N] distinct integers; None names all environments

All is copied. After an end the next call for that environment is begin. Where the environment's
newest frame was overwritten in the meantime, the step is lost and the frame continues the episode
behind a gap.

ValueError where no episode is open, for a wrong shape, an action that does not fit, a reward that
is not finite, or an environment named twice; TypeError for a wrong dtype; IndexError for an
environment that does not exist.)")
      .def("stacks", &stacks, py::arg("env_ids") = py::none(), py::kw_only(),
           py::arg("channels_last") = false,
           R"(stacks(self, env_ids=None, *, channels_last=False)
--

What the policy must see now: a new array [N, stack, *frame_shape].

The oldest frame comes first. channels_last changes the order in memory to [N, *frame_shape,
stack], not the shape. With padding="reject" a stack that needs padding is padded with zeros; see
needs_padding.

ValueError where no episode was begun, or where frames of the stack were overwritten by those of
other environments; IndexError for an environment that does not exist.)")
      .def("stacks_into", &stacks_into, py::arg("out"), py::arg("env_ids") = py::none(),
           R"(stacks_into(self, out, env_ids=None)
--

Fill the caller's array [N, stack, *frame_shape] with what stacks returns.

The layout is read off the strides: planar where each frame is C-contiguous, or channels last
where each row is C-contiguous as [*frame_shape, stack]. Raises as stacks does, TypeError for
another dtype, and ValueError for another shape or layout or a read-only array.)")
      .def("needs_padding", &needs_padding, py::arg("env_ids") = py::none(),
           R"(needs_padding(self, env_ids=None)
--

Whether the current stack of each environment reaches back before its episode: [N] bool.

ValueError where no episode was begun; IndexError for an environment that does not exist.)")
      .def("sample", &sample, py::arg("batch_size"), py::kw_only(),
           py::arg("channels_last") = false,
           R"(sample(self, batch_size, *, channels_last=False)
--

Draw a Batch, uniformly and with replacement, from all transitions that can be drawn.

The draws come from the memory's own generator: the same seed and the same calls give the same
batches. channels_last is the order in memory, as in stacks. ValueError, with the reason, where
nothing can be drawn.)")
      .def("gather", &gather, py::arg("indices"), py::kw_only(), py::arg("channels_last") = false,
           R"(gather(self, indices, *, channels_last=False)
--

The transitions at the given indices, as a Batch.

indices is [B] integers, repeats allowed. IndexError for one outside 0 to capacity - 1, ValueError
for one that cannot be drawn now.)")
      .def("sample_into", &sample_into, py::arg("states"), py::arg("next_states"),
           py::arg("actions"), py::arg("rewards"), py::arg("discounts"), py::arg("indices"),
           R"(sample_into(self, states, next_states, actions, rewards, discounts, indices)
--

Fill the caller's writable arrays with what sample draws; B is the length of states.

states, next_states  [B, stack, *frame_shape] of the memory's dtype, planar or channels last as
                     for stacks_into
actions, indices     [B] int64, C-contiguous
rewards, discounts   [B] float32, C-contiguous

The arrays must not overlap, with one exception: with n_step=1 the two may be the views [:, :-1]
and [:, 1:] of one planar array [B, stack + 1, *frame_shape], and then each frame is copied once.

ValueError where nothing can be drawn, for a wrong shape, layout or overlap, or a read-only array;
TypeError for a wrong dtype.)")
      .def("sample_slots_into", &sample_slots_into, py::arg("state_slots"),
           py::arg("next_state_slots"), py::arg("actions"), py::arg("rewards"),
           py::arg("discounts"), py::arg("indices"),
           R"(sample_slots_into(self, state_slots, next_state_slots, actions, rewards, discounts, indices)
--

Draw what sample_into would draw now, and say where its frames are stored.

state_slots and next_state_slots are [B, stack] int64: the slots of each state's frames, the oldest
first; `capacity` stands for a frame of zeros. The other arrays are those of sample_into. Slots
are used again: they mean these frames until the next begin or append. Raises as sample_into does.)")
      .def("newest_slots", &newest_slots, py::arg("env_ids") = py::none(),
           R"(newest_slots(self, env_ids=None)
--

[N] int64: where each environment's newest frame is stored, -1 where it was overwritten.

IndexError for an environment that does not exist.)")
      .def("frames_into", &frames_into, py::arg("out"), py::arg("slots"),
           R"(frames_into(self, out, slots)
--

Fill the caller's array [N, 1, *frame_shape] with the frames stored in slots, [N] integers.

IndexError for a slot that holds no frame; else raises as stacks_into does.)")
      .def("valid_indices", &valid_indices,
           R"(valid_indices(self)
--

Every index that can be drawn now, ascending: int64.)")
      .def("age_quantiles", &age_quantiles, py::arg("fractions"),
           R"(age_quantiles(self, fractions)
--

How old the stored frames are: int64, one age for each of the fractions (floats from 0 to 1).

A frame's age is the number of frames stored after it, over all environments. For a fraction q it
is the least age that a share q of the stored frames does not exceed: 0 gives the youngest (always
0), 0.5 the median, 1 the oldest. Exact, and quick in a memory of any size.

ValueError where nothing is stored.)")
      .def("__len__", &ReplayMemory::num_drawable, py::call_guard<NoGil>(),
           "__len__(self)\n--\n\nHow many transitions can be drawn now.")
      .def("check_invariants", &ReplayMemory::check_invariants, py::call_guard<NoGil>(),
           R"(check_invariants(self)
--

Compare what is kept up to date step by step with the rules applied anew, for tests.

RuntimeError names the first slot that is wrong. Takes time in proportion to the frames stored.)")
      .def(
          "save_in_chunks",
          [](const ReplayMemory& self, const std::filesystem::path& path,
             const std::filesystem::path& chunks,
             const std::optional<std::filesystem::path>& previous,
             const std::vector<std::string>& damaged) {
            const NoGil no_gil;
            return self.save_in_chunks(path.string(), chunks.string(),
                                       previous ? previous->string() : "", damaged);
          },
          py::arg("path"), py::arg("chunks"), py::arg("previous") = py::none(),
          py::arg("damaged") = std::vector<std::string>{},
          R"(save_in_chunks(self, path, chunks, previous=None, damaged=())
--

Like save, with all but the small parts in files in the folder `chunks`, named after their contents,
which saves share. What this memory has in common with the save `previous`, whose chunks were on the
disk, is not written again where it still is there, but for the chunks named in `damaged`. A
previous save that is gone or cannot be read has nothing in common with any.

Returns the names of the chunks that were written. Neither they nor the file are synced: a power cut
may damage them until the caller has. Raises as save does.)")
      .def(
          "save",
          [](const ReplayMemory& self, const std::filesystem::path& path) {
            const NoGil no_gil;
            self.save(path.string());
          },
          py::arg("path"),
          R"(save(self, path)
--

Write everything to a file, so that the memory that load reads continues exactly as this one.

That includes open episodes and the generator. The file is written beside path and renamed into
place once it is on the disk: path is at every moment what it was or complete. begin and append
wait until it is done. OSError where the system refuses.)")
      .def_static(
          "chunks_of",
          [](const std::filesystem::path& path) {
            std::vector<std::string> names;
            for (const Chunk& chunk : ReplayMemory::chunks_of(path.string())) {
              names.push_back(name_of(chunk));
            }
            return names;
          },
          py::arg("path"),
          R"(chunks_of(path)
--

The names of the chunks that a file of save_in_chunks needs, as often as it does.

Raises as load does.)")
      .def_static(
          "damaged_chunks",
          [](const std::filesystem::path& path, const std::filesystem::path& chunks,
             std::uint64_t turn, std::uint64_t turns) {
            const NoGil no_gil;
            return ReplayMemory::damaged_chunks(path.string(), chunks.string(), turn, turns);
          },
          py::arg("path"), py::arg("chunks"), py::arg("turn") = 0, py::arg("turns") = 1,
          R"(damaged_chunks(path, chunks, turn=0, turns=1)
--

The names of the chunks of a file of save_in_chunks that are not in the folder as they were.

A missing one is always noticed, and one of another size; contents are read from the disk for one of
`turns` shares of the chunks, which turn from 0 to turns - 1 look at in full. Raises as load does
where the file itself is damaged.)")
      .def_static(
          "load",
          [](const std::filesystem::path& path,
             const std::optional<std::filesystem::path>& chunks, py::handle storage,
             const std::optional<std::filesystem::path>& directory) {
            const ReplayMemory::Place place{
                storage.is_none() ? std::nullopt : std::optional(kStorages.value(storage)),
                directory_argument(directory)};
            const NoGil no_gil;
            return ReplayMemory::load(path.string(), place, chunks ? chunks->string() : "");
          },
          py::arg("path"), py::arg("chunks") = py::none(), py::kw_only(),
          py::arg("storage") = py::none(), py::arg("directory") = py::none(),
          R"(load(path, chunks=None, *, storage=None, directory=None)
--

Read a memory that save wrote, or save_in_chunks with its folder `chunks`.

storage and directory say how to hold its frames now, whatever was saved; None is as they were
held, and in memory. What another memory has left in the directory is replaced.

ValueError names the file and what is wrong where it is damaged in any way; OSError where it
cannot be read; MemoryError where its capacity is too much for this machine.)")
      .def("flush", &ReplayMemory::flush, py::call_guard<NoGil>(),
           R"(flush(self)
--

Leave the memory in its directory so that open finds it, as it is now, until it next changes.

Returns once that would survive a power cut. Without a directory it does nothing. OSError where
the system refuses.)")
      .def("close", &ReplayMemory::close, py::call_guard<NoGil>(),
           R"(close(self)
--

Flush, and let go of the frames and of the directory. Batches that were handed out stay.

Whatever needs the frames is a ValueError from then on; closing again does nothing. A memory that
is deleted is closed too, but a failure then goes unseen. Also the end of a with block.)")
      .def("__enter__", [](py::object self) { return self; })
      .def(
          "__exit__",
          [](ReplayMemory& self, const py::args&) {
            const NoGil no_gil;
            self.close();
          })
      .def_static(
          "open",
          [](const std::filesystem::path& directory) {
            const NoGil no_gil;
            return ReplayMemory::open(directory.string());
          },
          py::arg("directory"),
          R"(open(directory)
--

The memory that was closed in a directory, which goes on exactly as it would have.

ValueError where none was closed there or where its files are damaged; OSError where another
process has it open.)");

  memory
      .def_property_readonly(
          "num_frames",
          [](const ReplayMemory& self) {
            const NoGil no_gil;
            return self.num_frames();
          },
          "Frames stored now, over all environments.")
      .def_property_readonly(
          "nbytes",
          [](const ReplayMemory& self) {
            const NoGil no_gil;
            return self.nbytes();
          },
          "Bytes that the full memory takes at most; the system commits them as frames arrive.")
      .def_property_readonly(
          "nbytes_now",
          [](const ReplayMemory& self) {
            const NoGil no_gil;
            return self.nbytes_now();
          },
          "Bytes that what is stored now takes.")
      .def_property_readonly(
          "frame_nbytes_mean",
          [](const ReplayMemory& self) {
            const NoGil no_gil;
            return self.frame_nbytes_mean();
          },
          "Bytes that a stored frame takes by itself, on average; 0.0 where none is stored.")
      .def_property_readonly("capacity",
                             of_config([](const ReplayConfig& c) { return c.capacity; }),
                             "Frames stored at most, over all environments.")
      .def_property_readonly("frame_shape", of_config([](const ReplayConfig& c) {
                               return shape_tuple(c.frame);
                             }),
                             "Shape of one frame.")
      .def_property_readonly(
          "dtype",
          of_config([](const ReplayConfig& c) { return numpy_dtype(c.frame.dtype); }),
          "Element type of the frames.")
      .def_property_readonly("num_envs",
                             of_config([](const ReplayConfig& c) { return c.num_envs; }),
                             "Environments, numbered from 0.")
      .def_property_readonly("stack", of_config([](const ReplayConfig& c) { return c.stack; }),
                             "Frames in a state.")
      .def_property_readonly("n_step", of_config([](const ReplayConfig& c) { return c.n_step; }),
                             "Steps in a window.")
      .def_property_readonly("discount",
                             of_config([](const ReplayConfig& c) { return c.discount; }),
                             "Discount of one step.")
      .def_property_readonly(
          "padding", of_config([](const ReplayConfig& c) { return kPaddings.name(c.padding); }),
          "What stands before an episode's first frame: \"zero\", \"repeat\" or \"reject\".")
      .def_property_readonly("reward_clip", of_config([](const ReplayConfig& c) {
                               return kRewardClips.name(c.reward_clip);
                             }),
                             "How rewards are clipped: \"sign\", \"clip\" or \"none\".")
      .def_property_readonly(
          "eviction", of_config([](const ReplayConfig& c) { return kEvictions.name(c.eviction); }),
          "Which frames go when the memory is full: \"fifo\" or \"random\".")
      .def_property_readonly(
          "storage", of_config([](const ReplayConfig& c) { return kStorages.name(c.storage); }),
          "How frames are held: \"raw\" or \"compressed\".")
      .def_property_readonly(
          "directory", of_config([](const ReplayConfig& c) -> std::optional<std::string> {
            if (c.directory.empty()) return std::nullopt;
            return c.directory;
          }),
          "Folder of the files that hold the frames; None where they are in memory.")
      .def_property_readonly("seed", of_config([](const ReplayConfig& c) { return c.seed; }),
                             "Seed of the sampling and of random eviction.");
}

}  // namespace fastdqn::bindings
