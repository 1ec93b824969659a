# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: auto_pickle=False, autotestdict=False
"""The per-frame loop: one emulator, one step, one preprocessed frame.

The rules of a step stand in `fastdqn.envs.atari`. The emulator is handed in: any object will do that
has the methods which `_rollout.pyi` lists.
"""

cimport cython
from cython.operator cimport dereference
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libcpp.memory cimport unique_ptr

from fastdqn._kernels cimport (
    AreaResize, CounterRng, GreyScreens, ResizeShape, RewardClip, clip_reward)

import numpy as np

cdef dict REWARD_CLIPS = {
    "none": <int>RewardClip.kNone, "sign": <int>RewardClip.kSign, "clip": <int>RewardClip.kClip}


cdef _choice(str name, value, choices):
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    return value


@cython.final
cdef class AtariStepper:
    """Steps one emulator and writes preprocessed frames into the caller's buffers. What the last
    step did is read from the attributes; `reward` is raw."""

    cdef readonly double reward
    cdef readonly float learning_reward
    cdef readonly int action_played, frames_used, lives
    cdef readonly int64_t episode_frames
    cdef readonly bint terminated, truncated, life_lost

    cdef object act, game_over, get_lives, reset_game, get_numbers, get_greys  # bound once
    cdef object actions, noop_action, held_action, numbers_array, greys_array
    cdef uint8_t[:, ::1] numbers, greys  # views of the two arrays
    cdef unique_ptr[GreyScreens] screens
    cdef unique_ptr[AreaResize] resize
    cdef unique_ptr[CounterRng] sticks  # draws whether the last action sticks
    cdef uint64_t sticky_below  # of 2^32 draws, those that let it
    cdef Py_ssize_t height, width
    cdef int fire_index, frame_skip
    cdef int64_t max_episode_frames
    cdef double penalty
    cdef RewardClip reward_clip
    cdef bint clip_frames, lost_life_is_terminal, fire_pending, ended

    def __init__(self, emulator, actions, *, screen_shape, frame_shape=(84, 84), noop_action=0,
                 fire_action=None, frame_skip=4, sticky_actions=0.0, life_loss="terminal",
                 life_loss_penalty=-1.0, reward_clip="sign", reward_clip_at="step",
                 max_episode_frames=108_000):
        if frame_skip < 1 or max_episode_frames < 1 or not 0 <= sticky_actions <= 1:
            raise ValueError("expected frame_skip >= 1, max_episode_frames >= 1 and sticky_actions "
                             f"of 0 to 1, got {frame_skip}, {max_episode_frames}, {sticky_actions}")
        self.sticky_below = round(sticky_actions * 2**32)
        self.seed(0)
        cdef ResizeShape shape
        shape.source_height, shape.source_width = screen_shape
        shape.height, shape.width = self.height, self.width = frame_shape
        self.resize.reset(new AreaResize(shape))
        self.screens.reset(new GreyScreens(shape.source_height * shape.source_width))
        self.numbers = self.numbers_array = np.zeros(screen_shape, dtype=np.uint8)
        self.greys = self.greys_array = np.zeros(screen_shape, dtype=np.uint8)
        self.act, self.game_over = emulator.act, emulator.game_over
        self.get_lives, self.reset_game = emulator.lives, emulator.reset_game
        self.get_numbers, self.get_greys = emulator.getScreen, emulator.getScreenGrayscale
        self.actions = tuple(actions)
        self.noop_action = self.held_action = noop_action
        self.fire_index = -1 if fire_action is None else self.actions.index(fire_action)
        self.frame_skip, self.max_episode_frames = frame_skip, max_episode_frames
        self.lost_life_is_terminal = life_loss == "terminal"
        _choice("life_loss", life_loss, ("terminal", "ignore", "penalty"))
        self.penalty = life_loss_penalty if life_loss == "penalty" else 0.0
        self.reward_clip = <RewardClip><int>REWARD_CLIPS[
            _choice("reward_clip", reward_clip, tuple(REWARD_CLIPS))]
        self.clip_frames = _choice("reward_clip_at", reward_clip_at, ("step", "frame")) == "frame"
        self.ended = True

    def seed(self, uint64_t seed):
        """Seeds the sticky actions."""
        self.sticks.reset(new CounterRng(seed, 0))

    def save_state(self):
        """All that decides what follows beside the emulator's own state, as JSON can hold it."""
        # The action's place in `actions`: the no-op, which may not be one of them, is behind them.
        held = (*self.actions, self.noop_action).index(self.held_action)
        sticky = [dereference(self.sticks).seed(), dereference(self.sticks).position()]
        return dict(lives=self.lives, episode_frames=self.episode_frames, ended=self.ended,
                    fire_pending=self.fire_pending, held_action=held, sticky=sticky)

    def load_state(self, state):
        """Goes on from such a state; what the last step did is not part of it."""
        self.held_action = (*self.actions, self.noop_action)[state["held_action"]]
        self.sticks.reset(new CounterRng(state["sticky"][0], state["sticky"][1]))
        self.lives, self.episode_frames = state["lives"], state["episode_frames"]
        self.fire_pending, self.ended = state["fire_pending"], state["ended"]

    def reset(self, uint8_t[:, ::1] out, int noops=0):
        """Starts a new game with `noops` frames of `noop_action`; writes the frame reached to `out`."""
        self._check(out)
        self.ended = True
        if not self._begin(noops) and not self._begin(0):
            self._start()  # FIRE alone ends this game
        self.lives = self.get_lives()
        self._see(0)
        self._write(0, 0, out)
        self.reward = self.learning_reward = self.frames_used = 0
        self.terminated = self.truncated = self.life_lost = self.fire_pending = self.ended = False

    cpdef int check(self, Py_ssize_t action) except -1:
        """Raises what `step` would: IndexError for the action, RuntimeError after an episode."""
        if self.ended:
            raise RuntimeError("the episode has ended: reset before the next step")
        if not 0 <= action < len(self.actions):
            raise IndexError(f"action must be in [0, {len(self.actions)}), got {action}")
        return 0

    def step(self, Py_ssize_t action, uint8_t[:, ::1] out):
        """Plays `actions[action]` for one step and writes the frame reached to `out`."""
        cdef double frame_reward, reward = 0.0, learning_reward = 0.0
        cdef int lives, frames = 0, lost = 0
        self._check(out)
        self.check(action)
        self.action_played = self.fire_index if self.fire_pending else <int>action
        played = self.actions[self.action_played]
        while not self.ended and frames < self.frame_skip:
            frame_reward = self._act(played)
            frames += 1
            self.episode_frames += 1
            reward += frame_reward
            if self.clip_frames:
                learning_reward += clip_reward(self.reward_clip, frame_reward)
            lives = self.get_lives()
            lost += lives < self.lives
            self.lives = lives
            # Any frame may turn out to be the last but one, so each is seen while it is there.
            self._see(frames % 2)
            self.terminated = self.game_over()
            self.truncated = self.episode_frames >= self.max_episode_frames
            self.ended = self.terminated or self.truncated
        if not self.clip_frames:
            learning_reward = clip_reward(self.reward_clip, reward)
        self._write(frames % 2, 1 if frames == 1 else 1 - frames % 2, out)
        self.frames_used, self.reward = frames, reward
        self.learning_reward = <float>(learning_reward + self.penalty * lost)
        self.life_lost = lost > 0 and self.lost_life_is_terminal
        self.fire_pending = lost > 0 and self.fire_index >= 0

    cdef int _start(self) except -1:
        self.reset_game()
        self.held_action, self.episode_frames = self.noop_action, 0
        return 0

    cdef double _act(self, action) except? -1:
        """Plays one frame of `action`, or of the last one where that sticks; its reward."""
        if dereference(self.sticks).next() >= self.sticky_below:
            self.held_action = action
        return self.act(self.held_action)

    cdef bint _begin(self, int noops) except -1:
        """Starts a game, with no-ops and FIRE; False where it ended during them."""
        self._start()
        return self._play(self.noop_action, noops) and (
            self.fire_index < 0 or self._play(self.actions[self.fire_index], self.frame_skip))

    cdef bint _play(self, action, int frames) except -1:
        """Plays `action` while a frame is left below the limit; False where the game ended."""
        while frames > 0 and self.episode_frames + 1 < self.max_episode_frames:
            self._act(action)
            self.episode_frames += 1
            frames -= 1
            if self.game_over():
                return False
        return True

    cdef int _see(self, int slot) except -1:
        """Takes the screen that the emulator shows into `slot`."""
        self.get_numbers(self.numbers_array)
        if not dereference(self.screens).update(slot, &self.numbers[0, 0]):
            self.get_greys(self.greys_array)
            if not dereference(self.screens).learn(&self.numbers[0, 0], &self.greys[0, 0]):
                raise ValueError("the emulator gives one palette number more than one grey")
            dereference(self.screens).update(slot, &self.numbers[0, 0])
        return 0

    cdef void _write(self, int a, int b, uint8_t[:, ::1] out) noexcept:
        dereference(self.resize).apply_max(
            dereference(self.screens).pixels(a), dereference(self.screens).pixels(b), &out[0, 0])

    cdef int _check(self, uint8_t[:, ::1] out) except -1:
        if out.shape[0] != self.height or out.shape[1] != self.width:
            raise ValueError(f"expected a frame of {self.height}x{self.width} pixels, "
                             f"got {out.shape[0]}x{out.shape[1]}")
