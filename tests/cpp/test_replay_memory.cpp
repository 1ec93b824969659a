// The replay memory: every kind of end and edge by hand, then random play against a model that
// answers every question by a walk over everything that ever happened.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <thread>

#include "replay_support.hpp"

namespace fastdqn {

struct ReplayMemoryTest {
  /// Which slots are written next, for a model that is told so.
  static WriteOrder order(const ReplayMemory& memory) { return memory.order_; }

  /// Evicts frames anywhere, which no order of writing does.
  static void evict(ReplayMemory& memory, Slot slot) { memory.evict(slot); }
};

}  // namespace fastdqn

namespace {

using namespace fastdqn;
using Indices = std::vector<std::int64_t>;
using Stack = std::vector<std::uint32_t>;

// -- by hand ----------------------------------------------------------------------------------

void an_episode_with_padding() {
  Player player(small_config());
  player.begin();
  CHECK((player.stack_of(0) == Stack{0, 0, 1}));
  player.append({{.action = 7, .reward = 2}});
  CHECK((player.stack_of(0) == Stack{0, 1, 2}));
  player.append({{.action = 8, .reward = -3, .terminated = true}});
  CHECK((player.memory.valid_indices() == Indices{0, 1}));
  CHECK((player.row(0) == Row{{0, 0, 1}, {0, 1, 2}, 7, 2, 0.5F}));
  CHECK((player.row(1) == Row{{0, 1, 2}, {1, 2, 3}, 8, -3, 0}));
  // The next episode begins with padding, not with frames of this one.
  player.begin();
  CHECK((player.stack_of(0) == Stack{0, 0, 4}));
  player.append({{.truncated = true}});
  CHECK((player.row(3) == Row{{0, 0, 4}, {0, 4, 5}, 0, 0, 0.5F}));
  CHECK(player.memory.num_drawable() == 3);
  CHECK(player.memory.num_frames() == 5);
}

void the_first_frame_repeated() {
  ReplayConfig config = small_config();
  config.padding = Padding::kRepeat;
  Player player(config);
  player.begin();
  player.append({{}});
  CHECK((player.stack_of(0) == Stack{1, 1, 2}));
  CHECK((player.row(0) == Row{{1, 1, 1}, {1, 1, 2}, 0, 0, 0.5F}));
}

void padding_rejected() {
  ReplayConfig config = small_config();
  config.padding = Padding::kReject;
  Player player(config);
  const auto needs_padding = [&] {
    std::uint8_t needs = 9;
    const Indices envs{0};
    player.memory.needs_padding_into(envs, &needs);
    return needs;
  };
  player.begin();
  CHECK(needs_padding() == 1);
  CHECK((player.stack_of(0) == Stack{0, 0, 1}));
  player.append({{}});
  CHECK(needs_padding() == 1);
  CHECK_THROWS(player.memory.sample(1, StackLayout::kPlanar), std::invalid_argument,
               "0 of 2 stored frames can be drawn: 1 at which no action was taken, 1 whose stack "
               "would need padding");
  player.append({{}});
  CHECK(needs_padding() == 0);
  player.append({{.terminated = true}});
  CHECK((player.memory.valid_indices() == Indices{2}));
}

/// The reward of the last step of a short episode is in every window that reaches it.
void short_windows() {
  ReplayConfig config = small_config();
  config.stack = 4;
  config.n_step = 3;
  Player player(config);
  player.begin();
  player.append({{.reward = 1}});
  CHECK(player.memory.num_drawable() == 0);
  CHECK_THROWS(player.memory.sample(1, StackLayout::kPlanar), std::invalid_argument,
               "1 whose window of 3 steps is not complete");
  player.append({{.reward = 8, .truncated = true}});
  CHECK((player.row(0) == Row{{0, 0, 0, 1}, {0, 1, 2, 3}, 0, 1 + 0.5F * 8, 0.25F}));
  CHECK((player.row(1) == Row{{0, 0, 1, 2}, {0, 1, 2, 3}, 0, 8, 0.5F}));
  player.begin();
  player.append({{.reward = 1}});
  player.append({{.reward = 1}});
  player.append({{.reward = 1}});
  CHECK((player.row(3) == Row{{0, 0, 0, 4}, {4, 5, 6, 7}, 0, 1.75F, 0.125F}));
  CHECK((player.memory.valid_indices() == Indices{0, 1, 3}));
}

void a_termination_goes_before_a_truncation() {
  Player player(small_config());
  player.begin();
  player.append({{.terminated = true, .truncated = true}});
  CHECK(player.row(0).discount == 0.0F);
}

/// A lost life ends the window, not the stack.
void a_lost_life() {
  ReplayConfig config = small_config();
  config.n_step = 2;
  Player player(config);
  player.begin();
  player.append({{.reward = 1}});
  player.append({{.reward = 1, .life_lost = true}});
  CHECK((player.memory.valid_indices() == Indices{0, 1}));
  player.append({{.reward = 1}});
  player.append({{.reward = 1}});
  CHECK((player.memory.valid_indices() == Indices{0, 1, 2}));
  CHECK((player.row(0) == Row{{0, 0, 1}, {1, 2, 3}, 0, 1.5F, 0}));
  CHECK((player.row(1) == Row{{0, 1, 2}, {1, 2, 3}, 0, 1, 0}));
  CHECK((player.row(2) == Row{{1, 2, 3}, {3, 4, 5}, 0, 1.5F, 0.25F}));
}

void an_interrupted_episode() {
  ReplayConfig config = small_config();
  config.n_step = 2;
  Player player(config);
  player.begin();
  player.append({{}});
  player.append({{}});
  player.begin();
  player.append({{}});
  player.append({{.terminated = true}});
  // Frame 2's window never reaches its second step; frame 3 had no action.
  CHECK((player.memory.valid_indices() == Indices{0, 3, 4}));
  CHECK((player.row(3).state == Stack{0, 0, 4}));
}

/// At every position of the head: nothing reaches across it, and nothing whole is missing.
void the_head_of_the_ring() {
  for (const std::int64_t capacity : {4, 5, 6, 7}) {
    ReplayConfig config = small_config();
    config.capacity = capacity;
    Player player(config);
    player.begin();
    for (std::uint32_t newest = 2; newest < 30; ++newest) {
      player.append({{.action = newest}});
      const auto oldest = std::max<std::int64_t>(1, std::int64_t{newest} - capacity + 1);
      Indices expected;
      for (std::int64_t frame = oldest == 1 ? 1 : oldest + 2; frame < newest; ++frame) {
        expected.push_back((frame - 1) % capacity);
        const Row row = player.row(expected.back());
        CHECK(row.state.back() == frame && row.next_state.back() == frame + 1);
        CHECK(row.action == frame + 1);
      }
      std::sort(expected.begin(), expected.end());
      CHECK(player.memory.valid_indices() == expected);
    }
  }
}

/// Where an idle environment's frames were overwritten, its episode goes on behind a gap.
void an_idle_environment() {
  ReplayConfig config = small_config();
  config.num_envs = 2;
  config.capacity = 8;
  Player player(config);
  player.begin({0, 1});
  for (int i = 0; i < 5; ++i) player.append({{.env = 1}});
  CHECK((player.stack_of(0) == Stack{0, 0, 1}));
  player.append({{.env = 1}});
  player.append({{.env = 1}});  // frame 9 goes where frame 1 was
  CHECK_THROWS(player.stack_of(0), std::invalid_argument,
               "environment 0: frames of its current stack were overwritten");
  player.append({{.env = 0, .reward = 9}});  // 10: the step from frame 1 is lost
  CHECK_THROWS(player.stack_of(0), std::invalid_argument, "were overwritten");
  player.append({{.env = 0}});  // 11
  CHECK_THROWS(player.stack_of(0), std::invalid_argument, "were overwritten");
  player.append({{.env = 0}});  // 12
  CHECK((player.stack_of(0) == Stack{10, 11, 12}));
  player.append({{.env = 0}});  // 13
  CHECK((player.row(12 - 1 - 8) == Row{{10, 11, 12}, {11, 12, 13}, 0, 0, 0.5F}));
  const Indices indices = player.memory.valid_indices();
  CHECK(std::find(indices.begin(), indices.end(), 11 - 1 - 8) == indices.end());
}

/// The frame that an action was taken at is overwritten by the frame that it leads to.
void a_step_that_overwrites_its_own_start() {
  ReplayConfig config = small_config();
  config.num_envs = 2;
  config.capacity = 8;
  Player player(config);
  player.begin({0, 1});
  for (int i = 0; i < 6; ++i) player.append({{.env = 1}});
  player.append({{.env = 0, .terminated = true}});  // frame 9 in slot 0
  CHECK_THROWS(player.row(0), std::invalid_argument, "index 0 cannot be drawn");
  CHECK_THROWS(player.append({{.env = 0}}), std::invalid_argument, "its episode has ended");
  player.begin({0});
  CHECK((player.stack_of(0) == Stack{0, 0, 10}));
}

void rewards_are_clipped_step_by_step() {
  for (const auto& [clip, expected] :
       {std::pair{RewardClip::kNone, 3.0F + 0.5F * -0.25F},
        std::pair{RewardClip::kSign, 1.0F - 0.5F}, std::pair{RewardClip::kClip, 1.0F - 0.125F}}) {
    ReplayConfig config = small_config();
    config.n_step = 2;
    config.reward_clip = clip;
    Player player(config);
    player.begin();
    player.append({{.reward = 3}});
    player.append({{.reward = -0.25F}});
    CHECK(player.row(0).reward == expected);
  }
}

void refusals_change_nothing() {
  ReplayConfig config = small_config();
  config.num_envs = 3;
  Player player(config);
  ReplayMemory& memory = player.memory;
  player.begin({0, 1});
  const auto refuse = [&](const std::vector<Step>& steps, const char* part) {
    CHECK_THROWS(player.append(steps), std::invalid_argument, part);
    CHECK(memory.num_frames() == 2);
    memory.check_invariants();
  };
  refuse({{.env = 0}, {.env = 2}}, "environment 2: no episode was begun; call begin");
  refuse({{.env = 0}, {.env = 1}, {.env = 0}}, "environment 0 is named twice");
  refuse({{.env = 0}, {.env = 1, .action = std::int64_t{1} << 31}},
         "the action of row 1 is 2147483648; expected an integer of 32 bits");
  refuse({{.env = 0, .reward = NAN}}, "the reward of row 0 is nan");
  refuse({{.env = 0, .reward = INFINITY}}, "the reward of row 0 is inf");
  CHECK_THROWS(player.append({{.env = 3}}), std::out_of_range,
               "environment 3 does not exist; expected 0 to 2");
  CHECK_THROWS(player.begin({0, -1}), std::out_of_range, "environment -1 does not exist");
  CHECK_THROWS(player.begin({1, 1}), std::invalid_argument, "environment 1 is named twice");
  CHECK_THROWS(player.stack_of(2), std::invalid_argument, "no episode was begun");
  CHECK_THROWS(player.stack_of(3), std::out_of_range, "environment 3 does not exist");
  CHECK_THROWS(player.row(20), std::out_of_range, "index 20 does not exist; expected 0 to 19");
  CHECK_THROWS(player.row(-1), std::out_of_range, "index -1");
  CHECK_THROWS(player.row(0), std::invalid_argument, "index 0 cannot be drawn now");
  CHECK_THROWS(memory.sample(0, StackLayout::kPlanar), std::invalid_argument, "batch_size is 0");
  CHECK(memory.num_frames() == 2);
  player.append({{.env = 0, .action = 2147483647}, {.env = 1, .action = -2147483648}});
  CHECK(player.row(0).action == 2147483647);
  CHECK(player.row(1).action == -2147483648);
  CHECK_THROWS(ReplayMemory(small_config()).sample(1, StackLayout::kPlanar),
               std::invalid_argument, "0 of 0 stored frames can be drawn: nothing was stored");
}

void settings_out_of_range() {
  const auto refuse = [](auto change, const char* part) {
    ReplayConfig config = small_config();
    change(config);
    CHECK_THROWS(ReplayMemory(config), std::invalid_argument, part);
  };
  refuse([](auto& c) { c.capacity = 3; }, "capacity is 3 frames; expected at least 4");
  refuse([](auto& c) { c.num_envs = 6; }, "capacity is 20 frames; expected at least 24");
  refuse([](auto& c) { c.capacity = std::int64_t{1} << 32; }, "at most 4294967295");
  refuse([](auto& c) { c.capacity = -1; }, "capacity is -1");
  refuse([](auto& c) { c.num_envs = 0; }, "num_envs is 0; expected 1 to");
  refuse([](auto& c) { c.stack = 0; }, "stack is 0; expected 1 to 256");
  refuse([](auto& c) { c.stack = 257; }, "stack is 257");
  refuse([](auto& c) { c.n_step = 0; }, "n_step is 0");
  refuse([](auto& c) { c.discount = 1.01; }, "discount is 1.01");
  refuse([](auto& c) { c.discount = -0.1; }, "discount is -0.1");
  refuse([](auto& c) { c.discount = NAN; }, "discount is nan");
  refuse([](auto& c) { c.frame.shape = {3, 0}; }, "frame_shape is (3, 0)");
  refuse([](auto& c) { c.frame.shape = {1 << 20, 1 << 20}; }, "frame_shape is (1048576, 1048576)");
  refuse([](auto& c) { c.frame.shape.assign(9, 1); }, "frame_shape has 9 dimensions");
  ReplayConfig least = small_config();
  least.capacity = 4;
  CHECK(ReplayMemory(least).num_frames() == 0);
}

void memory_beside_the_frames_is_small() {
  ReplayConfig config = small_config();
  config.frame = {{84, 84}, DType::kUint8};
  config.capacity = 150'000;
  const std::size_t most = 150'000 * (84 * 84 + 32);
  // Noise costs at most 2 % more compressed than raw.
  CHECK(ReplayMemory(config).nbytes() <=
        (storage_under_test == Storage::kRaw ? most : most / 100 * 102) + 10'000);
}

// -- sampling ---------------------------------------------------------------------------------

std::vector<std::int64_t> drawn(ReplayMemory& memory, std::int64_t count) {
  const Batch batch = memory.sample(count, StackLayout::kPlanar);
  return {batch.target().indices, batch.target().indices + count};
}

ReplayConfig seeded(std::uint64_t seed) {
  ReplayConfig config = small_config();
  config.seed = seed;
  return config;
}

/// Takes a ring of 20 round, with an episode's end in it.
void play(Player& player) {
  player.begin();
  for (int i = 0; i < 30; ++i) player.append({{.reward = static_cast<float>(i)}});
  player.append({{.terminated = true}});
  player.begin();
  for (int i = 0; i < 5; ++i) player.append({{.action = i}});
}

void draws_are_uniform() {
  Player player(seeded(3));
  play(player);
  const Indices valid = player.memory.valid_indices();
  constexpr std::int64_t kDraws = 40'000;
  std::map<std::int64_t, double> counts;
  for (const std::int64_t index : drawn(player.memory, kDraws)) ++counts[index];
  CHECK(counts.size() == valid.size());
  const double expected = static_cast<double>(kDraws) / static_cast<double>(valid.size());
  double chi_squared = 0.0;
  for (const std::int64_t index : valid) {
    chi_squared += (counts[index] - expected) * (counts[index] - expected) / expected;
  }
  const double freedom = static_cast<double>(valid.size() - 1);
  CHECK(chi_squared < freedom + 5.0 * std::sqrt(2.0 * freedom));  // 5 sigma
}

void a_seed_fixes_the_draws() {
  Player one(seeded(3));
  Player same(seeded(3));
  Player other(seeded(4));
  for (Player* player : {&one, &same, &other}) play(*player);
  const auto draws = drawn(one.memory, 50);
  CHECK(drawn(same.memory, 50) == draws);
  CHECK(drawn(other.memory, 50) != draws);
  CHECK(drawn(one.memory, 50) != draws);
}

/// Whatever memory a batch is written to, the same numbers are in it.
void every_target_gets_the_same() {
  for (const std::int64_t n_step : {1, 3}) {
    ReplayConfig config = small_config();
    config.frame = {{3, 2}, DType::kUint32};
    config.stack = 4;
    config.n_step = n_step;
    ReplayMemory memory(config);
    const Indices envs{0};
    std::vector<std::uint32_t> frame(6, 1);
    const FrameRows rows{reinterpret_cast<const std::byte*>(frame.data()), 24};
    memory.begin(envs, rows);
    for (int i = 0; i < 40; ++i) {
      for (std::uint32_t& pixel : frame) ++pixel;
      const std::uint8_t end = i % 7 == 6;
      const std::vector<float> rewards{static_cast<float>(i)};
      const std::vector<std::uint8_t> no{0};
      memory.append({envs, envs, rewards, rows, {&end, 1}, no, no});
      if (end) memory.begin(envs, rows);
    }
    const Indices indices = memory.valid_indices();
    const Batch planar = memory.gather(indices, StackLayout::kPlanar);
    const Batch channels_last = memory.gather(indices, StackLayout::kChannelsLast);
    const auto one_run = [&](const Batch& batch) {
      return is_window(batch.target().states, batch.target().next_states, indices.size(), 4,
                       config.frame);
    };
    CHECK(one_run(planar) == (n_step == 1));
    CHECK(!one_run(channels_last));
    std::vector<std::uint32_t> memory_of_states(2 * indices.size() * 4 * 6, 0);
    BatchTarget apart = planar.target();  // planar, but not a window
    std::vector<std::int64_t> integers(2 * indices.size());
    std::vector<float> floats(2 * indices.size());
    apart.states = contiguous_target(reinterpret_cast<std::byte*>(memory_of_states.data()),
                                     config.frame, 4, StackLayout::kPlanar);
    apart.next_states = apart.states;
    apart.next_states.data += indices.size() * 4 * 24;
    apart.actions = integers.data();
    apart.indices = integers.data() + indices.size();
    apart.rewards = floats.data();
    apart.discounts = floats.data() + indices.size();
    memory.gather_into(indices, apart);
    const auto element = [](const StackTarget& target, std::size_t row, std::size_t k,
                            std::size_t i) {
      const std::byte* data = target.row(row);
      data += target.layout == StackLayout::kPlanar
                  ? static_cast<std::ptrdiff_t>(k) * target.frame_stride +
                        static_cast<std::ptrdiff_t>(4 * i)
                  : static_cast<std::ptrdiff_t>(4 * (i * 4 + k));
      std::uint32_t value = 0;
      std::memcpy(&value, data, sizeof(value));
      return value;
    };
    for (std::size_t row = 0; row < indices.size(); ++row) {
      for (std::size_t k = 0; k < 4; ++k) {
        for (std::size_t i = 0; i < 6; ++i) {
          const auto state = element(planar.target().states, row, k, i);
          const auto next_state = element(planar.target().next_states, row, k, i);
          CHECK(element(channels_last.target().states, row, k, i) == state);
          CHECK(element(channels_last.target().next_states, row, k, i) == next_state);
          CHECK(element(apart.states, row, k, i) == state);
          CHECK(element(apart.next_states, row, k, i) == next_state);
        }
      }
      CHECK(apart.rewards[row] == planar.target().rewards[row]);
      CHECK(channels_last.target().discounts[row] == planar.target().discounts[row]);
    }

    BatchTarget wrong = apart;
    wrong.next_states = wrong.states;
    CHECK_THROWS(memory.sample_into(wrong), std::invalid_argument, "share memory");
    wrong.next_states.data += wrong.states.frame_stride;
    // One frame apart, but without room for it between the rows.
    CHECK_THROWS(memory.sample_into(wrong), std::invalid_argument, "share memory");
    wrong.rows = 1;
    if (n_step == 1) {
      memory.sample_into(wrong);
    } else {
      CHECK_THROWS(memory.sample_into(wrong), std::invalid_argument, "only with n_step=1");
    }
  }
}

void a_batch_is_never_written_again() {
  Player player(seeded(3));
  play(player);
  std::optional<Batch> batch(player.memory.sample(1, StackLayout::kPlanar));
  const Row row = Player::first_row(*batch);
  for (int i = 0; i < 50; ++i) {
    player.append({{.action = 100 + i}});
    (void)player.memory.sample(1, StackLayout::kPlanar);
  }
  CHECK(Player::first_row(*batch) == row);
  const std::int64_t* freed = batch->target().actions;
  batch.reset();
  CHECK(player.memory.sample(1, StackLayout::kPlanar).target().actions == freed);
}

// -- against the model ------------------------------------------------------------------------

/// Everything that ever happened, and the rules applied to it one question at a time.
class Model {
 public:
  Model(ReplayConfig config, WriteOrder order)
      : config_(std::move(config)),
        order_(std::move(order)),
        episodes_(static_cast<std::size_t>(config_.num_envs)) {}

  void begin(std::int64_t env) { of(env).push_back({{store()}, {}}); }
  void append(const Step& step) {
    of(step.env).back().frames.push_back(store());
    of(step.env).back().steps.push_back(step);
  }
  bool is_open(std::int64_t env) {
    if (of(env).empty()) return false;
    const auto& steps = of(env).back().steps;
    return steps.empty() || !(steps.back().terminated || steps.back().truncated);
  }

  /// What can be drawn, by index.
  std::map<std::int64_t, Row> rows() const {
    std::map<std::int64_t, Row> rows;
    for (const auto& episodes : episodes_) {
      for (const Episode& episode : episodes) {
        for (std::size_t t = 0; t < episode.steps.size(); ++t) {
          const auto row = row_at(episode, t);
          if (row) rows.emplace(places_[episode.frames[t]], *row);
        }
      }
    }
    return rows;
  }

  std::optional<Stack> stack_of(std::int64_t env) {
    return stack_at(of(env).back(), of(env).back().frames.size() - 1);
  }

 private:
  struct Episode {
    std::vector<std::uint32_t> frames;
    std::vector<Step> steps;
  };

  std::vector<Episode>& of(std::int64_t env) { return episodes_[static_cast<std::size_t>(env)]; }

  std::uint32_t store() {
    const auto frame = static_cast<std::uint32_t>(places_.size());
    places_.push_back(order_.head());
    held_[order_.head()] = frame;
    order_.advance();
    return frame;
  }

  bool is_stored(std::uint32_t frame) const { return held_.at(places_[frame]) == frame; }

  std::optional<Stack> stack_at(const Episode& episode, std::size_t t) const {
    Stack stack;
    for (std::int64_t k = config_.stack - 1; k >= 0; --k) {
      const auto time = static_cast<std::int64_t>(t) - k;
      if (time < 0) {
        stack.push_back(config_.padding == Padding::kRepeat ? episode.frames[0] : 0);
        continue;
      }
      stack.push_back(episode.frames[static_cast<std::size_t>(time)]);
      if (!is_stored(stack.back())) return std::nullopt;
    }
    return stack;
  }

  std::optional<Row> row_at(const Episode& episode, std::size_t t) const {
    const auto state = stack_at(episode, t);
    if (!state) return std::nullopt;
    if (config_.padding == Padding::kReject && static_cast<std::int64_t>(t) < config_.stack - 1) {
      return std::nullopt;
    }
    double reward = 0.0;
    for (std::size_t k = 0; t + k < episode.steps.size(); ++k) {
      if (!is_stored(episode.frames[t + k + 1])) return std::nullopt;
      const Step& step = episode.steps[t + k];
      reward += std::pow(config_.discount, static_cast<double>(k)) *
                static_cast<double>(clip_reward(config_.reward_clip, step.reward));
      const bool terminal = step.terminated || step.life_lost;
      const std::size_t steps = k + 1;
      if (terminal || step.truncated || static_cast<std::int64_t>(steps) == config_.n_step) {
        const double discount = std::pow(config_.discount, static_cast<double>(steps));
        return Row{*state, *stack_at(episode, t + steps), episode.steps[t].action,
                   static_cast<float>(reward), terminal ? 0.0F : static_cast<float>(discount)};
      }
    }
    return std::nullopt;
  }

  ReplayConfig config_;
  WriteOrder order_;
  std::vector<std::vector<Episode>> episodes_;
  std::vector<Slot> places_{kNoSlot};   // by frame; there is no frame 0
  std::map<Slot, std::uint32_t> held_;  // the frame in each slot
};

using Random = std::mt19937;

bool chance(Random& random, double probability) {
  return std::uniform_real_distribution<>()(random) < probability;
}

std::int64_t one_of(Random& random, std::int64_t least, std::int64_t most) {
  return std::uniform_int_distribution<std::int64_t>(least, most)(random);
}

ReplayConfig random_config(Random& random) {
  ReplayConfig config = small_config();
  config.num_envs = one_of(random, 1, 3);
  config.stack = one_of(random, 1, 5);
  config.n_step = one_of(random, 1, 4);
  config.capacity = config.num_envs * (config.stack + config.n_step) +
                    one_of(random, 0, 6) * one_of(random, 0, 12);
  config.discount = 0.9;
  config.padding = static_cast<Padding>(one_of(random, 0, 2));
  config.reward_clip = static_cast<RewardClip>(one_of(random, 0, 2));
  config.eviction = static_cast<Eviction>(one_of(random, 0, 1));
  config.seed = static_cast<std::uint64_t>(one_of(random, 0, 1000));
  return config;
}

Step random_step(Random& random, std::int64_t env, double ends) {
  return {.env = env,
          .action = one_of(random, -3, 17),
          .reward = static_cast<float>(one_of(random, -8, 8)) / 4.0F,
          .terminated = chance(random, ends),
          .truncated = chance(random, ends),
          .life_lost = chance(random, ends)};
}

void random_play(Random& random) {
  const ReplayConfig config = random_config(random);
  Player player(config);
  Model model(config, ReplayMemoryTest::order(player.memory));
  const double ends = chance(random, 0.5) ? 0.03 : 0.2;
  for (int round = 0; round < 60; ++round) {
    std::vector<Step> steps;
    for (std::int64_t env = 0; env < config.num_envs; ++env) {
      if (!chance(random, 0.6)) continue;
      if (!model.is_open(env) || chance(random, ends)) {
        player.begin({env});
        model.begin(env);
      }
      steps.push_back(random_step(random, env, ends));
    }
    std::shuffle(steps.begin(), steps.end(), random);
    player.append(steps);
    for (const Step& step : steps) model.append(step);

    const auto rows = model.rows();
    Indices indices;
    for (const auto& [index, row] : rows) {
      indices.push_back(index);
      CHECK(player.row(index, StackLayout::kPlanar) == row);
      CHECK(player.row(index, StackLayout::kChannelsLast) == row);
    }
    CHECK(player.memory.valid_indices() == indices);
    CHECK(player.memory.num_drawable() == indices.size());
    for (const Step& step : steps) {
      const auto stack = model.stack_of(step.env);
      if (stack) {
        CHECK(player.stack_of(step.env) == *stack);
      } else {
        CHECK_THROWS(player.stack_of(step.env), std::invalid_argument, "were overwritten");
      }
    }
  }
}

/// Environments that step together find their stacks whatever is evicted, and every one has
/// transitions that can be drawn.
void lockstep_loses_no_current_stack(Random& random) {
  ReplayConfig config = random_config(random);
  config.eviction = Eviction::kRandom;
  config.capacity = std::max(config.capacity, 2 * config.num_envs * (config.stack + config.n_step));
  Player player(config);
  Indices all;
  for (std::int64_t env = 0; env < config.num_envs; ++env) all.push_back(env);
  player.begin(all);
  const double ends = chance(random, 0.5) ? 0.02 : 0.6;
  for (int round = 0; round < 150; ++round) {
    std::vector<Step> steps;
    Indices ended;
    for (const std::int64_t env : all) {
      steps.push_back(random_step(random, env, ends));
      if (steps.back().terminated || steps.back().truncated) ended.push_back(env);
    }
    player.append(steps);
    if (!ended.empty()) player.begin(ended);
    for (const std::int64_t env : all) CHECK(player.stack_of(env).back() != 0);
    CHECK(round < config.n_step + config.stack || player.memory.num_drawable() > 0 ||
          config.padding == Padding::kReject);
  }
}

/// Frames evicted anywhere: check_invariants applies the rules to what is left.
void random_evictions(Random& random) {
  ReplayConfig config = random_config(random);
  config.capacity += 30;
  Player player(config);
  std::vector<std::int64_t> all;
  for (std::int64_t env = 0; env < config.num_envs; ++env) all.push_back(env);
  player.begin(all);
  for (int round = 0; round < 80; ++round) {
    for (const std::int64_t env : all) {
      const Step step = random_step(random, env, 0.05);
      player.append({step});
      if (step.terminated || step.truncated) player.begin({env});
    }
    const auto stored = static_cast<std::int64_t>(player.memory.num_frames());
    ReplayMemoryTest::evict(player.memory, static_cast<Slot>(one_of(random, 0, stored - 1)));
    player.memory.check_invariants();
    for (const std::int64_t index : player.memory.valid_indices()) {
      const Row row = player.row(index);
      CHECK(row.state.back() != 0 && row.next_state.back() > row.state.back());
    }
  }
}

// -- threads ----------------------------------------------------------------------------------

/// Frames of 64 equal numbers: a torn frame shows, and so does a stack of frames that do not
/// follow each other.
void threads_never_see_a_torn_row() {
  ReplayConfig config = small_config();
  config.frame = {{64}, DType::kUint32};
  config.capacity = 50;
  ReplayMemory memory(config);
  const Indices envs{0};
  std::vector<std::uint32_t> frame(64, 1);
  const FrameRows rows{reinterpret_cast<const std::byte*>(frame.data()), 256};
  memory.begin(envs, rows);
  const auto append = [&] {
    for (std::uint32_t& pixel : frame) ++pixel;
    const std::vector<float> rewards{1};
    const std::vector<std::uint8_t> no{0};
    memory.append({envs, envs, rewards, rows, no, no, no});
  };
  append();

  std::atomic<bool> done{false};
  const auto check = [&](const Batch& batch) {
    for (std::size_t row = 0; row < batch.rows(); ++row) {
      const auto* numbers =
          reinterpret_cast<const std::uint32_t*>(batch.target().states.row(row));
      const std::uint32_t newest = numbers[4 * 64 - 1];
      for (std::uint32_t k = 0; k < 4; ++k) {
        for (std::size_t i = 0; i < 64; ++i) {
          const std::uint32_t expected = newest + k < 4 ? 0 : newest + k - 3;
          CHECK(numbers[k * 64 + i] == expected);
        }
      }
    }
  };
  const auto sample = [&] {
    while (!done) check(memory.sample(8, StackLayout::kPlanar));
  };
  const auto look = [&] {
    std::vector<std::uint32_t> stack(3 * 64);
    while (!done) {
      memory.stacks_into(envs, contiguous_target(reinterpret_cast<std::byte*>(stack.data()),
                                                 config.frame, 3, StackLayout::kPlanar));
      CHECK(stack.back() == stack[128]);
      memory.check_invariants();
      CHECK(memory.num_drawable() > 0 && memory.num_frames() > 1);
      CHECK(!memory.valid_indices().empty());
    }
  };
  std::thread samplers[] = {std::thread(sample), std::thread(sample), std::thread(look)};
  // Samplers that never pause must not keep the appender waiting.
  for (int i = 0; i < 3'000; ++i) append();
  done = true;
  for (std::thread& thread : samplers) thread.join();
}

}  // namespace

int main() {
  for (const Storage storage : {Storage::kRaw, Storage::kCompressed}) {
    storage_under_test = storage;
    an_episode_with_padding();
    the_first_frame_repeated();
    padding_rejected();
    short_windows();
    a_termination_goes_before_a_truncation();
    a_lost_life();
    an_interrupted_episode();
    the_head_of_the_ring();
    an_idle_environment();
    a_step_that_overwrites_its_own_start();
    rewards_are_clipped_step_by_step();
    refusals_change_nothing();
    settings_out_of_range();
    memory_beside_the_frames_is_small();
    draws_are_uniform();
    a_seed_fixes_the_draws();
    every_target_gets_the_same();
    a_batch_is_never_written_again();
    Random random(20240607);
    for (int game = 0; game < 150; ++game) random_play(random);
    for (int game = 0; game < 50; ++game) lockstep_loses_no_current_stack(random);
    for (int game = 0; game < 50; ++game) random_evictions(random);
    threads_never_see_a_torn_row();
  }
}
