#include "fastdqn/replay_memory.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace fastdqn {

namespace {

// Dozens of batches of usual sizes; one larger than this is asked of the system every time.
constexpr std::size_t kPooledNbytes = std::size_t{64} << 20;

// What is known of each frame, apart from the frame itself.
constexpr std::size_t kKnownNbytes = sizeof(SlotRecord) + sizeof(Slot);

void check_range(const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value < least || value > most) {
    throw std::invalid_argument(std::string(name) + " is " + std::to_string(value) +
                                "; expected " + std::to_string(least) + " to " +
                                std::to_string(most));
  }
}

std::vector<SlotRecord> new_records(std::size_t capacity) try {
  return std::vector<SlotRecord>(capacity);
} catch (const std::bad_alloc&) {
  throw OutOfMemory("the system refused " + std::to_string(capacity * sizeof(SlotRecord)) +
                    " bytes of memory for what is known of " + std::to_string(capacity) +
                    " frames");
}

std::unique_ptr<FrameStore> new_store(const ReplayConfig& config, const Folder* folder,
                                      bool keep) {
  auto backing =
      folder == nullptr ? anonymous_backing() : file_backing(folder->frames_path(), keep);
  const auto capacity = static_cast<std::size_t>(config.capacity);
  if (config.storage == Storage::kRaw) {
    return raw_store(capacity, config.frame, std::move(backing));
  }
  return compressed_store(capacity, config.frame, static_cast<std::size_t>(config.num_envs),
                          std::move(backing), FrameCodec::best_instruction_set());
}

/// The folder for a new memory; none where it has no directory.
std::unique_ptr<Folder> new_folder(const ReplayConfig& config) {
  if (config.directory.empty()) return nullptr;
  auto folder = std::make_unique<Folder>(config.directory);
  if (folder->has_index()) {
    throw std::system_error(EEXIST, std::generic_category(),
                            config.directory + ": holds a replay memory already; open it, or "
                            "remove the folder");
  }
  return folder;
}

std::vector<double> powers(double base, std::int64_t highest) {
  std::vector<double> result;
  result.reserve(static_cast<std::size_t>(highest) + 1);
  for (std::int64_t k = 0; k <= highest; ++k) {
    result.push_back(std::pow(base, static_cast<double>(k)));
  }
  return result;
}

/// Blocks long enough that few of their stacks and windows reach out of them.
constexpr std::size_t kUsualBlockFramesPerEnv = 256;

/// With least_block, a step of all environments finds its stacks and windows stored: it stores two
/// frames of each environment whose episode it ends, the last and the first of the next.
WriteOrder new_order(const ReplayConfig& config) {
  const auto envs = static_cast<std::size_t>(config.num_envs);
  const auto window = static_cast<std::size_t>(config.stack + config.n_step);
  return WriteOrder(config.eviction,
                    {.capacity = static_cast<std::size_t>(config.capacity),
                     .least_block = 2 * envs * window,
                     .usual_block = envs * kUsualBlockFramesPerEnv},
                    config.seed);
}

std::uint16_t one_older(std::uint16_t age) noexcept {
  return age == std::numeric_limits<std::uint16_t>::max() ? age
                                                          : static_cast<std::uint16_t>(age + 1);
}

void prefetch_line(const void* address) noexcept {
#if defined(__GNUC__)
  __builtin_prefetch(address);
#else
  (void)address;
#endif
}

}  // namespace

ReplayConfig checked_config(ReplayConfig config) {
  check_range("num_envs", config.num_envs, 1, kMaxEnvs);
  check_range("stack", config.stack, 1, kMaxStack);
  check_range("n_step", config.n_step, 1, kMaxSteps);
  if (!(config.discount >= 0.0 && config.discount <= 1.0)) {
    throw std::invalid_argument("discount is " + std::to_string(config.discount) +
                                "; expected 0 to 1");
  }
  if (config.frame.shape.size() > kMaxFrameDimensions) {
    throw std::invalid_argument("frame_shape has " + std::to_string(config.frame.shape.size()) +
                                " dimensions; expected at most " +
                                std::to_string(kMaxFrameDimensions));
  }
  std::int64_t elements = 1;
  for (const std::int64_t size : config.frame.shape) {
    if (size < 1 || size > kMaxCapacity / elements) {
      throw std::invalid_argument("frame_shape is " + shape_text(config.frame.shape) +
                                  "; expected sizes of at least 1 and at most " +
                                  std::to_string(kMaxCapacity) + " elements");
    }
    elements *= size;
  }
  const std::int64_t minimum = config.num_envs * (config.stack + config.n_step);
  if (config.capacity < minimum || config.capacity > kMaxCapacity) {
    throw std::invalid_argument(
        "capacity is " + std::to_string(config.capacity) + " frames; expected at least " +
        std::to_string(minimum) + " (num_envs * (stack + n_step), one whole window for each "
        "environment) and at most " + std::to_string(kMaxCapacity));
  }
  return config;
}

ReplayMemory::ReplayMemory(ReplayConfig config)
    : ReplayMemory(config, new_folder(checked_config(config)), false) {}

ReplayMemory::ReplayMemory(ReplayConfig config, std::unique_ptr<Folder> folder, bool keep)
    : config_(checked_config(std::move(config))),
      pool_(std::make_shared<BufferPool>(kPooledNbytes)),
      discount_powers_(powers(config_.discount, config_.n_step)),
      folder_(std::move(folder)),
      store_(new_store(config_, folder_.get(), keep)),
      records_(new_records(capacity())),
      envs_(static_cast<std::size_t>(config_.num_envs)),
      order_(new_order(config_)),
      rng_(config_.seed) {
  drawable_.reserve(capacity());
}

ReplayMemory::~ReplayMemory() {
  try {
    close();
  } catch (...) {  // the folder is then one that was not closed
  }
}

void ReplayMemory::check_open() const {
  if (store_ == nullptr) throw std::invalid_argument("the replay memory is closed");
}

/// All that can fail of storing a frame of each of `envs`.
void ReplayMemory::prepare_to_write(std::span<const std::int64_t> envs) {
  if (std::exchange(index_is_right_, false)) folder_->remove_index();
  store_->reserve(envs);
}

void ReplayMemory::flush() {
  const std::lock_guard lock(mutex_);
  check_open();
  flush_frames();
}

void ReplayMemory::close() {
  const std::lock_guard lock(mutex_);
  if (store_ == nullptr) return;
  flush_frames();
  store_.reset();
  folder_.reset();
}

// -- writing ----------------------------------------------------------------------------------

const ReplayMemory::Env& ReplayMemory::env_at(std::int64_t number) const {
  if (number < 0 || number >= config_.num_envs) {
    throw std::out_of_range("environment " + std::to_string(number) +
                            " does not exist; expected 0 to " +
                            std::to_string(config_.num_envs - 1));
  }
  return envs_[static_cast<std::size_t>(number)];
}

void ReplayMemory::check_named_once(std::span<const std::int64_t> envs) {
  ++calls_;
  for (const std::int64_t number : envs) {
    if (env_at(number).named_by == calls_) {
      throw std::invalid_argument("environment " + std::to_string(number) +
                                  " is named twice; expected distinct env_ids");
    }
    envs_[static_cast<std::size_t>(number)].named_by = calls_;
  }
}

void ReplayMemory::begin(std::span<const std::int64_t> envs, FrameRows frames) {
  const std::lock_guard lock(mutex_);
  check_open();
  check_named_once(envs);
  prepare_to_write(envs);
  for (std::size_t row = 0; row < envs.size(); ++row) {
    const auto number = static_cast<std::uint32_t>(envs[row]);
    Env& env = envs_[number];
    env.newest = store_frame(number, 0, frames.row(row));
    env.age = 0;
    env.phase = Phase::kOpen;
  }
}

void ReplayMemory::append(const StepRows& steps) {
  constexpr std::int64_t kLeast = std::numeric_limits<std::int32_t>::min();
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  for (std::size_t row = 0; row < steps.envs.size(); ++row) {
    if (steps.actions[row] < kLeast || steps.actions[row] > kMost) {
      throw std::invalid_argument("the action of row " + std::to_string(row) + " is " +
                                  std::to_string(steps.actions[row]) +
                                  "; expected an integer of 32 bits");
    }
    if (!std::isfinite(steps.rewards[row])) {
      throw std::invalid_argument("the reward of row " + std::to_string(row) + " is " +
                                  std::to_string(steps.rewards[row]) +
                                  " as float32; expected a finite number");
    }
  }
  const std::lock_guard lock(mutex_);
  check_open();
  check_named_once(steps.envs);
  for (const std::int64_t number : steps.envs) {
    const Phase phase = env_at(number).phase;
    if (phase == Phase::kOpen) continue;
    throw std::invalid_argument(
        "environment " + std::to_string(number) +
        (phase == Phase::kEnded ? ": its episode has ended" : ": no episode was begun") +
        "; call begin before append");
  }
  prepare_to_write(steps.envs);
  for (std::size_t row = 0; row < steps.envs.size(); ++row) append_row(steps, row);
}

void ReplayMemory::append_row(const StepRows& steps, std::size_t row) {
  const auto number = static_cast<std::uint32_t>(steps.envs[row]);
  Env& env = envs_[number];
  const Slot reached = store_frame(number, one_older(env.age), steps.frames.row(row));
  // Only now: storing the frame may have evicted the one that the action was taken at, and then
  // the step is lost and the episode goes on behind a gap.
  const Slot start = env.newest;
  if (start != kNoSlot) {
    SlotRecord& step = records_[start];
    step.next = reached;
    step.action = static_cast<std::int32_t>(steps.actions[row]);
    step.reward = steps.rewards[row];
    step.flags = static_cast<std::uint8_t>(
        SlotRecord::kHasAction | (steps.terminated[row] ? SlotRecord::kTerminated : 0) |
        (steps.truncated[row] ? SlotRecord::kTruncated : 0) |
        (steps.life_lost[row] ? SlotRecord::kLifeLost : 0));
    records_[reached].previous = start;
    complete_windows(start);
  }
  env.newest = reached;
  env.age = records_[reached].age;
  env.phase = steps.terminated[row] || steps.truncated[row] ? Phase::kEnded : Phase::kOpen;
}

/// Takes the next slot of the ring for a frame of `env`, linked to nothing.
Slot ReplayMemory::store_frame(std::uint32_t env, std::uint16_t age, const std::byte* frame) {
  const Slot slot = order_.head();
  if (slot < stored()) evict(slot);
  order_.advance();
  store_->write(slot, env, frame);
  records_[slot].env = env;
  records_[slot].age = age;
  return slot;
}

/// Lists every window that the newest step, taken at `newest_start`, completes: the one that now
/// has n_step steps, and where the step ends the window all shorter ones that reach it.
void ReplayMemory::complete_windows(Slot newest_start) {
  const bool ends = records_[newest_start].ends_window();
  Slot start = newest_start;
  for (std::int64_t steps = 1;; ++steps) {
    if ((steps == config_.n_step || ends) && stack_can_be_drawn(start)) add_drawable(start);
    if (steps == config_.n_step) return;
    start = records_[start].previous;
    // A window that an earlier step ended was completed by that step.
    if (start == kNoSlot || records_[start].ends_window()) return;
  }
}

/// Makes the memory forget one stored frame, wherever it lies in its episode.
void ReplayMemory::evict(Slot slot) {
  const SlotRecord record = records_[slot];
  remove_drawable(slot);
  Slot later = record.next;  // whose stacks show the frame
  for (std::size_t k = 1; k < stack() && later != kNoSlot; ++k) {
    remove_drawable(later);
    later = records_[later].next;
  }
  Slot earlier = record.previous;  // whose windows reach the frame
  for (std::int64_t steps = 1; steps <= config_.n_step && earlier != kNoSlot; ++steps) {
    if (steps > 1 && records_[earlier].ends_window()) break;
    remove_drawable(earlier);
    earlier = records_[earlier].previous;
  }
  if (record.next != kNoSlot) records_[record.next].previous = kNoSlot;
  if (record.previous != kNoSlot) records_[record.previous].next = kNoSlot;
  if (envs_[record.env].newest == slot) envs_[record.env].newest = kNoSlot;
  records_[slot] = SlotRecord{};
  store_->release(slot);
}

void ReplayMemory::add_drawable(Slot slot) {
  records_[slot].position = static_cast<Slot>(drawable_.size());
  drawable_.push_back(slot);
}

void ReplayMemory::remove_drawable(Slot slot) {
  const Slot position = std::exchange(records_[slot].position, kNoSlot);
  if (position == kNoSlot) return;
  const Slot moved = drawable_.back();
  drawable_.pop_back();
  if (moved == slot) return;
  drawable_[position] = moved;
  records_[moved].position = position;
}

// -- the rules --------------------------------------------------------------------------------

bool ReplayMemory::stack_can_be_read(Slot slot) const noexcept {
  std::array<Slot, kMaxStack> slots;
  return resolve_stack(records_.data(), slot, stack(), config_.padding, slots.data());
}

bool ReplayMemory::stack_can_be_drawn(Slot slot) const noexcept {
  const bool whole = records_[slot].age + 1U >= stack();
  return (whole || config_.padding != Padding::kReject) && stack_can_be_read(slot);
}

bool ReplayMemory::window_is_complete(Slot slot) const noexcept {
  for (std::int64_t steps = 0; steps < config_.n_step; ++steps) {
    if (records_[slot].next == kNoSlot) return false;
    if (records_[slot].ends_window()) return true;
    slot = records_[slot].next;
  }
  return true;
}

bool ReplayMemory::can_be_drawn(Slot slot) const noexcept {
  return records_[slot].has_action() && stack_can_be_drawn(slot) && window_is_complete(slot);
}

// -- reading ----------------------------------------------------------------------------------

void ReplayMemory::stacks_into(std::span<const std::int64_t> envs,
                               const StackTarget& target) const {
  const std::shared_lock lock(mutex_);
  check_open();
  const auto fail = [](std::int64_t number, const char* what) {
    throw std::invalid_argument("environment " + std::to_string(number) + what);
  };
  for (const std::int64_t number : envs) {
    const Env& env = env_at(number);
    if (env.phase == Phase::kNotBegun) fail(number, ": no episode was begun; call begin first");
    if (env.newest == kNoSlot || !stack_can_be_read(env.newest)) {
      fail(number, ": frames of its current stack were overwritten by other environments");
    }
  }
  const auto scratch = scratch_for(target.layout);
  std::array<Slot, kMaxStack> slots;
  for (std::size_t row = 0; row < envs.size(); ++row) {
    resolve_stack(records_.data(), env_at(envs[row]).newest, stack(), config_.padding,
                  slots.data());
    write_stack(*store_, config_.frame, slots.data(), stack(), target, row, scratch.get());
  }
}

void ReplayMemory::needs_padding_into(std::span<const std::int64_t> envs,
                                      std::uint8_t* target) const {
  const std::shared_lock lock(mutex_);
  for (std::size_t row = 0; row < envs.size(); ++row) {
    const Env& env = env_at(envs[row]);
    if (env.phase == Phase::kNotBegun) {
      throw std::invalid_argument("environment " + std::to_string(envs[row]) +
                                  ": no episode was begun; call begin first");
    }
    target[row] = env.age + 1U < stack();
  }
}

/// Whether each row of a batch is one run of stack + 1 frames, copied once for both states.
bool ReplayMemory::shares_frames(const BatchTarget& target) const noexcept {
  return config_.n_step == 1 &&
         is_window(target.states, target.next_states, target.rows, stack(), config_.frame);
}

void ReplayMemory::check_target(const BatchTarget& target) const {
  if (shares_frames(target)) return;
  if (share_memory(target.states, target.next_states, target.rows, stack(), config_.frame)) {
    throw std::invalid_argument(
        "states and next_states share memory; only with n_step=1 may they, as the views "
        "[:, :-1] and [:, 1:] of one planar [rows, stack + 1, ...] array");
  }
}

/// With the lock held. Each draw asks for the record that is read next.
void ReplayMemory::draw_slots(std::span<Slot> slots) {
  check_open();
  if (drawable_.empty()) throw std::invalid_argument(why_nothing_can_be_drawn());
  const auto choices = static_cast<std::uint32_t>(drawable_.size());
  const std::lock_guard rng_lock(rng_mutex_);
  for (Slot& slot : slots) {
    slot = drawable_[rng_.below(choices)];
    prefetch_line(&records_[slot]);
    store_->prefetch_slot(slot);
  }
}

ReplayMemory::Drawn ReplayMemory::draw(const BatchTarget& target) {
  check_target(target);
  Drawn drawn(*this, target);
  draw_slots(drawn.slots_);
  read_ahead(drawn.slots_);
  return drawn;
}

/// Asks for all frames of the rows at once where they may be on a disk: all wait together then.
void ReplayMemory::read_ahead(std::span<const Slot> slots) const noexcept {
  if (!store_->is_far()) return;
  Window window;
  for (const Slot slot : slots) {
    look_up(slot, window);
    store_->read_ahead(window.frames.data(), stack() + (window.one_step ? 1 : 0));
    if (!window.one_step) store_->read_ahead(window.later_frames.data(), stack());
  }
}

void ReplayMemory::Drawn::gather(std::size_t first, std::size_t count) const {
  memory_->gather_rows(std::span(slots_).subspan(first, count), target_.from_row(first, count));
}

void ReplayMemory::sample_into(const BatchTarget& target) { draw(target).gather(0, target.rows); }

void ReplayMemory::sample_slots_into(const SlotBatchTarget& target) {
  std::vector<Slot> slots(target.rows);
  const std::shared_lock lock(mutex_);
  draw_slots(slots);
  const auto write = [this](const Slot* frames, std::int64_t* out) {
    for (std::size_t k = 0; k < stack(); ++k) {
      out[k] = frames[k] == kNoSlot ? config_.capacity : static_cast<std::int64_t>(frames[k]);
    }
  };
  Window window;
  for (std::size_t row = 0; row < slots.size(); ++row) {
    look_up(slots[row], window);
    target.indices[row] = static_cast<std::int64_t>(slots[row]);
    target.actions[row] = window.action;
    target.rewards[row] = window.reward;
    target.discounts[row] = window.discount;
    const Slot* frames = window.frames.data();
    write(frames, target.state_slots + row * stack());
    write(window.one_step ? frames + 1 : window.later_frames.data(),
          target.next_state_slots + row * stack());
  }
}

void ReplayMemory::newest_slots_into(std::span<const std::int64_t> envs,
                                     std::int64_t* target) const {
  const std::shared_lock lock(mutex_);
  for (std::size_t row = 0; row < envs.size(); ++row) {
    const Slot newest = env_at(envs[row]).newest;
    target[row] = newest == kNoSlot ? -1 : static_cast<std::int64_t>(newest);
  }
}

void ReplayMemory::frames_into(std::span<const std::int64_t> slots,
                               const StackTarget& target) const {
  const std::shared_lock lock(mutex_);
  check_open();
  for (const std::int64_t slot : slots) {
    if (slot >= 0 && static_cast<std::size_t>(slot) < stored()) continue;
    throw std::out_of_range("slot " + std::to_string(slot) + " holds no frame; expected 0 to " +
                            std::to_string(static_cast<std::int64_t>(stored()) - 1));
  }
  for (std::size_t row = 0; row < slots.size(); ++row) {
    const auto slot = static_cast<Slot>(slots[row]);
    // A stack of one is the same in both layouts.
    store_->read(&slot, 1, target.row(row), 0, kNoSlot);
  }
}

void ReplayMemory::gather_into(std::span<const std::int64_t> indices,
                               const BatchTarget& target) const {
  check_target(target);
  std::vector<Slot> slots;
  slots.reserve(indices.size());
  const std::shared_lock lock(mutex_);
  check_open();
  for (const std::int64_t index : indices) {
    if (index < 0 || index >= config_.capacity) {
      throw std::out_of_range("index " + std::to_string(index) +
                              " does not exist; expected 0 to " +
                              std::to_string(config_.capacity - 1));
    }
    slots.push_back(static_cast<Slot>(index));
    if (records_[slots.back()].position == kNoSlot) {
      throw std::invalid_argument("index " + std::to_string(index) +
                                  " cannot be drawn now; expected one of valid_indices()");
    }
    store_->prefetch_slot(slots.back());
  }
  read_ahead(slots);
  gather_rows(slots, target);
}

/// Room for the frames of one row, where reading in that layout needs it.
BufferPool::Buffer ReplayMemory::scratch_for(StackLayout layout) const {
  if (layout == StackLayout::kPlanar || !store_->needs_scratch()) return {};
  return pool_->acquire((stack() + 1) * config_.frame.nbytes());
}

Batch ReplayMemory::new_batch(std::size_t rows, StackLayout layout) const {
  const bool window = layout == StackLayout::kPlanar && config_.n_step == 1;
  return Batch(*pool_, rows, config_.frame, stack(), layout, window);
}

Batch ReplayMemory::sample(std::int64_t batch_size, StackLayout layout) {
  check_range("batch_size", batch_size, 1, kMaxCapacity);
  Batch batch = new_batch(static_cast<std::size_t>(batch_size), layout);
  sample_into(batch.target());
  return batch;
}

Batch ReplayMemory::gather(std::span<const std::int64_t> indices, StackLayout layout) const {
  Batch batch = new_batch(indices.size(), layout);
  gather_into(indices, batch.target());
  return batch;
}

void ReplayMemory::look_up(Slot slot, Window& window) const noexcept {
  const SlotRecord* step = nullptr;
  double reward = 0.0;
  std::size_t steps = 0;
  Slot last = slot;
  do {
    step = &records_[last];
    reward += discount_powers_[steps] *
              static_cast<double>(clip_reward(config_.reward_clip, step->reward));
    last = step->next;
    ++steps;
  } while (!step->ends_window() && steps < discount_powers_.size() - 1);
  window.action = records_[slot].action;
  window.reward = static_cast<float>(reward);
  window.discount = step->is_terminal() ? 0.0F : static_cast<float>(discount_powers_[steps]);
  window.one_step = steps == 1;
  resolve_stack(records_.data(), slot, stack(), config_.padding, window.frames.data());
  if (window.one_step) {
    window.frames[stack()] = last;
  } else {
    resolve_stack(records_.data(), last, stack(), config_.padding, window.later_frames.data());
  }
}

void ReplayMemory::prefetch_early(const Window& window) const noexcept {
  store_->prefetch_early(window.frames.data(), stack() + (window.one_step ? 1 : 0));
  if (!window.one_step) store_->prefetch_early(window.later_frames.data(), stack());
}

void ReplayMemory::prefetch(const Window& window) const noexcept {
  store_->prefetch(window.frames.data(), stack() + (window.one_step ? 1 : 0));
  if (!window.one_step) store_->prefetch(window.later_frames.data(), stack());
}

/// Copies the transitions at `slots`, all of which can be drawn. The rows behind are looked up, and
/// their bytes asked for, while one is copied.
void ReplayMemory::gather_rows(std::span<const Slot> slots, const BatchTarget& target) const {
  constexpr std::size_t kAhead = 2;  // rows
  const FrameGeometry& frame = config_.frame;
  const StackTarget& states = target.states;
  const StackTarget& next_states = target.next_states;
  const bool one_run = shares_frames(target);
  const bool interleaved = states.layout == StackLayout::kChannelsLast &&
                           next_states.layout == StackLayout::kChannelsLast;
  const auto buffer = scratch_for(std::max(states.layout, next_states.layout));
  std::byte* const scratch = buffer.get();
  std::array<Window, kAhead + 1> windows;
  for (std::size_t turn = 0; turn < slots.size() + kAhead; ++turn) {
    if (turn < slots.size()) {
      Window& window = windows[turn % windows.size()];
      look_up(slots[turn], window);
      prefetch_early(window);
    }
    if (turn > 0 && turn - 1 < slots.size()) prefetch(windows[(turn - 1) % windows.size()]);
    if (turn < kAhead) continue;
    const std::size_t row = turn - kAhead;
    const Window& window = windows[row % windows.size()];
    target.indices[row] = static_cast<std::int64_t>(slots[row]);
    target.actions[row] = window.action;
    target.rewards[row] = window.reward;
    target.discounts[row] = window.discount;
    const Slot* frames = window.frames.data();
    if (one_run) {
      const bool more = row + 1 < slots.size();
      const Slot next = more ? windows[(row + 1) % windows.size()].frames[0] : kNoSlot;
      write_stack(*store_, frame, frames, stack() + 1, states, row, scratch, next);
    } else if (interleaved && window.one_step) {
      write_adjoining_stacks(*store_, frame, frames, stack(), states, next_states, row, scratch);
    } else {
      write_stack(*store_, frame, frames, stack(), states, row, scratch);
      write_stack(*store_, frame, window.one_step ? frames + 1 : window.later_frames.data(),
                  stack(), next_states, row, scratch);
    }
  }
}

std::vector<std::int64_t> ReplayMemory::valid_indices() const {
  std::vector<std::int64_t> indices;
  const std::shared_lock lock(mutex_);
  indices.reserve(drawable_.size());
  for (std::size_t slot = 0; slot < stored(); ++slot) {
    if (records_[slot].position != kNoSlot) indices.push_back(static_cast<std::int64_t>(slot));
  }
  return indices;
}

std::size_t ReplayMemory::num_drawable() const {
  const std::shared_lock lock(mutex_);
  return drawable_.size();
}

std::size_t ReplayMemory::num_frames() const {
  const std::shared_lock lock(mutex_);
  return stored();
}

std::vector<std::uint64_t> ReplayMemory::age_quantiles(std::span<const double> fractions) const {
  for (const double fraction : fractions) {
    if (!(fraction >= 0.0 && fraction <= 1.0)) {
      throw std::invalid_argument("a fraction is " + std::to_string(fraction) +
                                  "; expected 0 to 1");
    }
  }
  std::vector<std::uint64_t> ages(fractions.size());
  const std::shared_lock lock(mutex_);
  if (stored() == 0) throw std::invalid_argument("no frame is stored, so none has an age");
  order_.age_quantiles_into(fractions, ages.data());
  return ages;
}

std::size_t ReplayMemory::nbytes() const {
  const std::shared_lock lock(mutex_);
  check_open();
  return store_->nbytes() + capacity() * kKnownNbytes + envs_.size() * sizeof(Env) +
         order_.nbytes();
}

std::size_t ReplayMemory::nbytes_now() const {
  const std::shared_lock lock(mutex_);
  check_open();
  return store_->nbytes_now(stored()) + capacity() * sizeof(SlotRecord) +
         drawable_.size() * sizeof(Slot) + envs_.size() * sizeof(Env) + order_.nbytes();
}

double ReplayMemory::frame_nbytes_mean() const {
  const std::shared_lock lock(mutex_);
  check_open();
  if (stored() == 0) return 0.0;
  return static_cast<double>(store_->frames_nbytes(stored())) / static_cast<double>(stored());
}

std::string ReplayMemory::why_nothing_can_be_drawn() const {
  std::size_t without_action = 0;
  std::size_t padded = 0;
  std::size_t overwritten = 0;
  std::size_t incomplete = 0;
  for (Slot slot = 0; slot < stored(); ++slot) {
    if (!records_[slot].has_action()) {
      ++without_action;
    } else if (!stack_can_be_read(slot)) {
      ++overwritten;
    } else if (!stack_can_be_drawn(slot)) {
      ++padded;
    } else {
      ++incomplete;
    }
  }
  std::string reasons;
  const auto add = [&](std::size_t count, const std::string& reason) {
    if (count == 0) return;
    reasons += (reasons.empty() ? "" : ", ") + std::to_string(count) + " " + reason;
  };
  add(without_action, "at which no action was taken");
  add(overwritten, "whose stack has lost older frames");
  add(padded, "whose stack would need padding (padding=\"reject\")");
  add(incomplete, "whose window of " + std::to_string(config_.n_step) + " steps is not complete");
  if (reasons.empty()) reasons = "nothing was stored yet; call begin, then append";
  return "0 of " + std::to_string(stored()) + " stored frames can be drawn: " + reasons;
}

// -- checking ---------------------------------------------------------------------------------

namespace {

[[noreturn]] void fail(const char* noun, std::size_t number, const char* what) {
  throw std::logic_error(std::string(noun) + " " + std::to_string(number) + ": " + what);
}

}  // namespace

void ReplayMemory::check_invariants() const {
  const std::shared_lock lock(mutex_);
  order_.check();
  for (std::size_t slot = 0; slot < stored(); ++slot) check_links(static_cast<Slot>(slot));
  check_envs();
  if (store_ != nullptr) store_->check_invariants(stored());
  if (drawable_.size() > stored()) fail("slot", stored(), "more are listed than stored");
  for (std::size_t position = 0; position < drawable_.size(); ++position) {
    const Slot slot = drawable_[position];
    if (slot >= stored() || records_[slot].position != position) {
      fail("slot", slot, "it is not where the list of what can be drawn has it");
    }
  }
  for (std::size_t number = 0; number < stored(); ++number) {
    const auto slot = static_cast<Slot>(number);
    const bool listed = records_[slot].position != kNoSlot;
    if (listed && (records_[slot].position >= drawable_.size() ||
                   drawable_[records_[slot].position] != slot)) {
      fail("slot", slot, "its place in the list of what can be drawn holds another");
    }
    if (listed && !can_be_drawn(slot)) fail("slot", slot, "it is listed but cannot be drawn");
    if (!listed && can_be_drawn(slot)) fail("slot", slot, "it can be drawn but is not listed");
  }
}

/// The links of one slot lead to its neighbours in its episode, and back.
void ReplayMemory::check_links(Slot slot) const {
  const SlotRecord& record = records_[slot];
  constexpr int kKnownFlags = SlotRecord::kHasAction | SlotRecord::kTerminated |
                              SlotRecord::kTruncated | SlotRecord::kLifeLost;
  if ((record.flags & ~kKnownFlags) != 0 || record.unused != 0) {
    fail("slot", slot, "it has flags that nothing sets");
  }
  if (record.flags != 0 && !record.has_action()) fail("slot", slot, "no action led to its end");
  if (static_cast<std::int64_t>(record.env) >= config_.num_envs) {
    fail("slot", slot, "its environment does not exist");
  }
  if (record.previous != kNoSlot) {
    if (record.previous >= stored() || records_[record.previous].next != slot) {
      fail("slot", slot, "the frame before does not lead to it");
    }
    const SlotRecord& previous = records_[record.previous];
    if (previous.env != record.env || one_older(previous.age) != record.age) {
      fail("slot", slot, "the frame before is of another time or environment");
    }
  }
  if (record.next != kNoSlot) {
    if (record.next >= stored() || records_[record.next].previous != slot) {
      fail("slot", slot, "the frame after does not lead back to it");
    }
    if (!record.has_action()) fail("slot", slot, "a frame follows without an action");
    if (record.ends_episode() && records_[record.next].has_action()) {
      fail("slot", slot, "the episode goes on after its end");
    }
  }
}

/// The newest frames of the environments are the open ends of their episodes.
void ReplayMemory::check_envs() const {
  for (std::size_t number = 0; number < envs_.size(); ++number) {
    const Env& env = envs_[number];
    if (env.newest == kNoSlot) continue;
    if (env.phase == Phase::kNotBegun) fail("environment", number, "it has frames but no episode");
    if (env.newest >= stored()) fail("environment", number, "its newest frame is not stored");
    const SlotRecord& newest = records_[env.newest];
    if (newest.env != number || newest.age != env.age || newest.next != kNoSlot ||
        newest.has_action()) {
      fail("environment", number, "its newest frame is not the end of its episode");
    }
    if (newest.previous != kNoSlot &&
        records_[newest.previous].ends_episode() != (env.phase == Phase::kEnded)) {
      fail("environment", number, "its last step and its phase disagree on the end");
    }
  }
}

}  // namespace fastdqn
