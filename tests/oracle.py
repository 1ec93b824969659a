"""Slow, obvious answers to compare the fast code with.

Everything here is written from the meaning of the words alone and imports nothing of fastdqn:
plain lists, plain loops, exact integers where a rounding would have to be explained. No answer is
kept up to date, so that a mistake of the fast code (an index kept up to date wrongly, a
wall forgotten) cannot be repeated here. It refuses to be quick, and to be configured.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Frame = NDArray[Any]


def clip_reward(rule: str, reward: float) -> float:
    """What the agent learns from: the sign, the value clipped to [-1, 1], or the value itself."""
    if rule == "sign":
        return 1.0 if reward > 0 else -1.0 if reward < 0 else 0.0
    if rule == "clip":
        return min(1.0, max(-1.0, reward))
    assert rule == "none"
    return reward


# --------------------------------------------------------------------------------------------
# Replay memory
# --------------------------------------------------------------------------------------------


@dataclass
class StoredFrame:
    """A frame, its slot, and its number: how many frames the memory was given before it."""

    number: int
    slot: int
    pixels: Frame


@dataclass
class Transition:
    """What was done at a frame and what came of it, apart from the frame that was reached."""

    action: int
    reward: np.float32
    terminated: bool
    truncated: bool
    life_lost: bool

    @property
    def ends_episode(self) -> bool:
        return self.terminated or self.truncated

    @property
    def terminal_for_learning(self) -> bool:
        return self.terminated or self.life_lost


@dataclass
class Episode:
    """`frames[t]` is the t-th frame; `transitions[t]` led from `frames[t]` to `frames[t + 1]`."""

    frames: list[StoredFrame]
    transitions: list[Transition] = field(default_factory=list)

    @property
    def open(self) -> bool:
        return not self.transitions or not self.transitions[-1].ends_episode


@dataclass
class Row:
    """One transition as a batch shows it."""

    index: int
    state: Frame
    next_state: Frame
    action: int
    reward: np.float32
    discount: np.float32


class OracleReplay:
    """The replay memory by brute force: every episode ever played, in full, for ever.

    A frame counts as stored until another was put into its slot; every question is answered by a
    walk over everything. Calls that the memory must refuse raise the same type of exception here,
    before anything is changed.
    """

    def __init__(
        self,
        capacity: int,
        frame_shape: tuple[int, ...],
        dtype: str,
        *,
        num_envs: int,
        stack: int,
        n_step: int,
        discount: float,
        padding: str,
        reward_clip: str,
        eviction: str,
        seed: int,
    ) -> None:
        self.capacity = capacity
        self.frame_shape = frame_shape
        self.dtype = np.dtype(dtype)
        self.num_envs = num_envs
        self.stack = stack
        self.n_step = n_step
        self.discount = discount
        self.padding = padding
        self.reward_clip = reward_clip
        self.slots = (
            itertools.cycle(range(capacity))
            if eviction == "fifo"
            else random_slots(capacity, num_envs * (stack + n_step), num_envs, seed)
        )
        self.held: dict[int, int] = {}  # slot: the number of the frame in it
        self.frames_appended = 0
        self.episodes: list[list[Episode]] = [[] for _ in range(num_envs)]

    # -- what was played ---------------------------------------------------------------------

    def begin(self, frames: Frame, env_ids: Sequence[int] | None = None) -> None:
        envs = self._checked_envs(env_ids)
        self._check_frames(frames, len(envs))
        for env, pixels in zip(envs, frames, strict=True):
            self.episodes[env].append(Episode([self._store(pixels)]))

    def append(
        self,
        actions: NDArray[Any],
        rewards: NDArray[Any],
        frames: Frame,
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        env_ids: Sequence[int] | None = None,
        *,
        life_lost: NDArray[np.bool_] | None = None,
    ) -> None:
        envs = self._checked_envs(env_ids)
        if life_lost is None:
            life_lost = np.zeros(len(envs), np.bool_)
        self._check_frames(frames, len(envs))
        if not np.issubdtype(actions.dtype, np.integer):
            raise TypeError("actions are integers")
        if not np.issubdtype(rewards.dtype, np.floating):
            raise TypeError("rewards are floats")
        for flags in (terminated, truncated, life_lost):
            if flags.dtype != np.bool_:
                raise TypeError("flags are bools")
        for column in (actions, rewards, terminated, truncated, life_lost):
            if column.shape != (len(envs),):
                raise ValueError("one value for each environment")
        if any(not -(2**31) <= int(action) < 2**31 for action in actions):
            raise ValueError("actions fit 32 bits")
        largest = float(np.finfo(np.float32).max)
        if any(not abs(float(reward)) <= largest for reward in rewards):
            raise ValueError("rewards are finite as float32")
        for env in envs:
            if not self.episodes[env] or not self.episodes[env][-1].open:
                raise ValueError("no episode is open")
        for row, env in enumerate(envs):
            episode = self.episodes[env][-1]
            episode.frames.append(self._store(frames[row]))
            episode.transitions.append(
                Transition(
                    int(actions[row]),
                    np.float32(rewards[row]),
                    bool(terminated[row]),
                    bool(truncated[row]),
                    bool(life_lost[row]),
                )
            )

    def _store(self, pixels: Frame) -> StoredFrame:
        frame = StoredFrame(self.frames_appended, next(self.slots), pixels.copy())
        self.held[frame.slot] = frame.number
        self.frames_appended += 1
        return frame

    def _checked_envs(self, env_ids: Sequence[int] | None) -> list[int]:
        envs = list(range(self.num_envs)) if env_ids is None else [int(env) for env in env_ids]
        if any(not 0 <= env < self.num_envs for env in envs):
            raise IndexError("no such environment")
        if len(set(envs)) != len(envs):
            raise ValueError("environments are named once")
        return envs

    def _check_frames(self, frames: Frame, count: int) -> None:
        if frames.dtype != self.dtype:
            raise TypeError("another dtype")
        if frames.shape != (count, *self.frame_shape):
            raise ValueError("another shape")

    # -- what is there -----------------------------------------------------------------------

    @property
    def num_frames(self) -> int:
        return len(self.held)

    def is_stored(self, frame: StoredFrame) -> bool:
        return self.held[frame.slot] == frame.number

    def age_quantile(self, fraction: float) -> int:
        """The least age that this share of the stored frames does not exceed."""
        if not self.held:
            raise ValueError("nothing is stored")
        ages = sorted(self.frames_appended - 1 - number for number in self.held.values())
        return next(age for older, age in enumerate(ages, start=1) if older >= fraction * len(ages))

    def needs_padding(self, env: int) -> bool:
        """Whether the current stack shows a time before the episode began."""
        return len(self._current(env).frames) < self.stack

    def acting_stack(self, env: int) -> Frame:
        """What the policy must see now: [stack, *frame_shape]."""
        episode = self._current(env)
        t = len(episode.frames) - 1
        if not self._stack_is_stored(episode, t):
            raise ValueError("the frames were overwritten")
        return self.stack_at(episode, t)

    def _current(self, env: int) -> Episode:
        if not 0 <= env < self.num_envs:
            raise IndexError("no such environment")
        if not self.episodes[env]:
            raise ValueError("no episode was begun")
        return self.episodes[env][-1]

    def stack_at(self, episode: Episode, t: int) -> Frame:
        """Frames t - stack + 1 to t of an episode, with padding before its first frame."""
        before_the_first = (
            episode.frames[0].pixels
            if self.padding == "repeat"
            else np.zeros(self.frame_shape, self.dtype)
        )
        return np.array(
            [
                episode.frames[s].pixels if s >= 0 else before_the_first
                for s in range(t - self.stack + 1, t + 1)
            ],
            self.dtype,
        )

    def _stack_is_stored(self, episode: Episode, t: int) -> bool:
        return all(
            self.is_stored(episode.frames[s]) for s in range(t - self.stack + 1, t + 1) if s >= 0
        )

    def window_length(self, episode: Episode, t: int) -> int | None:
        """How many steps the window that starts at frame t has; None where it is incomplete."""
        for steps in range(1, self.n_step + 1):
            if t + steps >= len(episode.frames):
                return None  # not played yet, or interrupted
            if not self.is_stored(episode.frames[t + steps]):
                return None
            last = episode.transitions[t + steps - 1]
            if last.ends_episode or last.terminal_for_learning:
                return steps
        return self.n_step

    def can_be_drawn(self, episode: Episode, t: int) -> bool:
        if t >= len(episode.transitions):
            return False  # no action was taken here
        if not self._stack_is_stored(episode, t):
            return False
        if self.padding == "reject" and t < self.stack - 1:
            return False
        return self.window_length(episode, t) is not None

    def drawable(self) -> dict[int, tuple[int, int, int]]:
        """Every index that can be drawn, sorted, with its (environment, episode, t)."""
        found = {}
        for env, episodes in enumerate(self.episodes):
            for number, episode in enumerate(episodes):
                for t, frame in enumerate(episode.frames):
                    if self.can_be_drawn(episode, t):
                        assert frame.slot not in found
                        found[frame.slot] = (env, number, t)
        return dict(sorted(found.items()))

    def rows(self) -> list[Row]:
        """Every transition that can be drawn, sorted by index."""
        return [self._row(index, *where) for index, where in self.drawable().items()]

    def row(self, index: int) -> Row:
        """The transition at an index that can be drawn."""
        if not 0 <= index < self.capacity:
            raise IndexError("no such index")
        drawable = self.drawable()
        if index not in drawable:
            raise ValueError("cannot be drawn")
        return self._row(index, *drawable[index])

    def _row(self, index: int, env: int, number: int, t: int) -> Row:
        episode = self.episodes[env][number]
        steps = self.window_length(episode, t)
        assert steps is not None
        reward = 0.0
        for k in range(steps):
            clipped = clip_reward(self.reward_clip, float(episode.transitions[t + k].reward))
            reward += self.discount**k * clipped
        terminal = episode.transitions[t + steps - 1].terminal_for_learning
        return Row(
            index,
            self.stack_at(episode, t),
            self.stack_at(episode, t + steps),
            episode.transitions[t].action,
            np.float32(reward),
            np.float32(0.0 if terminal else self.discount**steps),
        )


def random_slots(capacity: int, window: int, num_envs: int, seed: int) -> Iterator[int]:
    """The slots in the order in which random eviction writes them.

    Blocks of consecutive slots, as equal in size as can be, are filled one after the other: first
    each of them once, then any but the one just filled, drawn from the second stream of the seed.
    A block has 256 frames an environment, but at most a sixteenth of the capacity, but room for at
    least two windows of every environment.
    """
    block = max(1, 2 * window, min(256 * num_envs, capacity // 16))
    count = max(1, capacity // block)
    words = philox_words(seed, stream=1)
    for number in range(count):
        yield from range(number * capacity // count, (number + 1) * capacity // count)
    number = count - 1
    while True:
        others = [other for other in range(count) if other != number]
        number = others[below(len(others), words)] if others else 0
        yield from range(number * capacity // count, (number + 1) * capacity // count)


def philox_words(seed: int, stream: int = 0) -> Iterator[int]:
    """Philox-4x32 with ten rounds (Salmon et al. 2011), counting from 0, 32 bits at a time."""
    ones = 0xFFFFFFFF
    for block in itertools.count():
        a, b, c, d = block & ones, block >> 32, stream, 0
        key_a, key_b = seed & ones, seed >> 32
        for _ in range(10):
            first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
            a, b, c, d = (
                (second >> 32) ^ b ^ key_a,
                second & ones,
                (first >> 32) ^ d ^ key_b,
                first & ones,
            )
            key_a, key_b = (key_a + 0x9E3779B9) & ones, (key_b + 0xBB67AE85) & ones
        yield from (a, b, c, d)


def below(bound: int, words: Iterator[int]) -> int:
    """Uniform over range(bound); words that would make some results likelier are skipped."""
    while True:
        product = next(words) * bound
        if product % 2**32 >= 2**32 % bound:
            return product >> 32


# --------------------------------------------------------------------------------------------
# Atari
# --------------------------------------------------------------------------------------------


@functools.cache
def _overlaps(source: int, target: int) -> NDArray[np.int64]:
    """How much of source pixel i lies under target pixel y: [target, source].

    The unit is 1 / target of a source pixel, in which all borders are integers: source pixel i
    covers [i * target, (i + 1) * target) and target pixel y covers [y * source, (y + 1) * source).
    """
    overlaps = np.zeros((target, source), np.int64)
    for y in range(target):
        for i in range(source):
            begin = max(i * target, y * source)
            end = min((i + 1) * target, (y + 1) * source)
            overlaps[y, i] = max(0, end - begin)
    return overlaps


def area_resize_exact(
    screen: NDArray[np.uint8], height: int, width: int
) -> tuple[NDArray[np.int64], int]:
    """The mean of the source area under each target pixel: numerators and their denominator."""
    rows, columns = screen.shape
    numerators = _overlaps(rows, height) @ screen.astype(np.int64) @ _overlaps(columns, width).T
    return numerators, rows * columns


def area_resize(screen: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """The exact mean of the area under each target pixel, rounded half up."""
    numerators, denominator = area_resize_exact(screen, height, width)
    return ((2 * numerators + denominator) // (2 * denominator)).astype(np.uint8)


@dataclass
class OracleStep:
    """What one agent step came to; `screen` is what the frame is an area average of."""

    action_played: int
    frame_actions: list[Any]
    """What was played in each frame, where actions stick."""
    screen: NDArray[np.uint8]
    reward: float
    learning_reward: float
    frames_used: int
    episode_frames: int
    terminated: bool
    truncated: bool
    lives_lost: int
    lives: int


class OracleStepper:
    """One Atari step by the letter, on anything that behaves like ale_py.ALEInterface.

    All screens and rewards of a step are kept in lists and judged when the step is over.
    """

    def __init__(
        self,
        emulator: Any,
        actions: Sequence[Any],
        *,
        frame_skip: int,
        noop_action: Any,
        fire_action: Any | None,
        life_loss: str,
        life_loss_penalty: float,
        reward_clip: str,
        reward_clip_at: str,
        max_episode_frames: int,
        sticky_actions: float = 0.0,
        sticky_seed: int = 0,
    ) -> None:
        self.sticky_actions = sticky_actions
        self.sticky_draws = philox_words(sticky_seed)
        self.held_action = noop_action
        self.emulator = emulator
        self.actions = actions
        self.frame_skip = frame_skip
        self.noop_action = noop_action
        self.fire_action = fire_action
        self.life_loss = life_loss
        self.life_loss_penalty = life_loss_penalty
        self.reward_clip = reward_clip
        self.reward_clip_at = reward_clip_at
        self.max_episode_frames = max_episode_frames
        self.episode_frames = 0
        self.fire_next = False

    def reset(self, noops: int) -> NDArray[np.uint8]:
        """A new game, `noops` no-ops and FIRE; the screen reached.

        The frames played here count towards the limit, and one frame below it is always left to
        play. A game that ends here is begun again, without no-ops, and at last without FIRE.
        """
        fire = [self.fire_action] * self.frame_skip if self.fire_action is not None else []
        for opening in ([self.noop_action] * noops + fire, fire, []):
            self.emulator.reset_game()
            self.held_action = self.noop_action
            self.episode_frames = 0
            for action in opening[: self.max_episode_frames - 1]:
                self._act(action)
                self.episode_frames += 1
                if self.emulator.game_over():
                    break
            if not self.emulator.game_over():
                break
        self.fire_next = False
        return self._screen()

    def step(self, action: int) -> OracleStep:
        if self.fire_next:
            action = list(self.actions).index(self.fire_action)
        played = self.actions[action]
        screens: list[NDArray[np.uint8]] = []
        frame_actions: list[Any] = []
        rewards: list[float] = []
        lives = [self.emulator.lives()]
        terminated = truncated = False
        while len(screens) < self.frame_skip and not terminated and not truncated:
            rewards.append(self._act(played))
            frame_actions.append(self.held_action)
            screens.append(self._screen())
            lives.append(self.emulator.lives())
            self.episode_frames += 1
            terminated = bool(self.emulator.game_over())
            truncated = self.episode_frames >= self.max_episode_frames
        lives_lost = sum(after < before for before, after in itertools.pairwise(lives))
        self.fire_next = self.fire_action is not None and lives_lost > 0
        if self.reward_clip_at == "step":
            learning_reward = clip_reward(self.reward_clip, sum(rewards))
        else:
            learning_reward = sum(clip_reward(self.reward_clip, reward) for reward in rewards)
        if self.life_loss == "penalty":
            learning_reward += lives_lost * self.life_loss_penalty
        return OracleStep(
            action_played=action,
            frame_actions=frame_actions,
            screen=np.max(screens[-2:], axis=0),
            reward=sum(rewards),
            learning_reward=learning_reward,
            frames_used=len(screens),
            episode_frames=self.episode_frames,
            terminated=terminated,
            truncated=truncated,
            lives_lost=lives_lost,
            lives=lives[-1],
        )

    def _act(self, action: Any) -> float:
        sticks = self.sticky_actions > 0 and next(self.sticky_draws) / 2**32 < self.sticky_actions
        if not sticks:
            self.held_action = action
        return float(self.emulator.act(self.held_action))

    def _screen(self) -> NDArray[np.uint8]:
        return np.array(self.emulator.getScreenGrayscale())
