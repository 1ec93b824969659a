# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: auto_pickle=False, autotestdict=False
# distutils: language = c++
"""The per-frame loop: one emulator, one step, one preprocessed frame.

The emulator is handed in. Any object will do that has these methods of ale_py's ALEInterface:

    act(action) -> reward       runs one frame; `action` is an element of `actions`, passed through
    game_over() -> bool         asked after every frame
    lives() -> int              asked after every frame; 0 where a game has no lives
    reset_game()                starts a new game
    getScreenGrayscale(buffer)  writes the grey screen into a uint8 array of `screen_shape`
    getScreen(buffer)           writes the same screen as palette numbers; two pixels of one
                                number have the same grey

Rules (one step):
- `action` is repeated `frame_skip` times; the step stops early where the game ends or the frame
  limit is reached. `act` is never called after the end of a game.
- The frame written is the pixel-wise maximum of the step's last two screens (of its only screen
  where it ran one frame), area-averaged. A reset writes its last screen alone.
- `truncated` counts emulator frames since `reset_game`, those of no-ops and FIRE included.
- `life_lost`: a life was lost in this step and `life_loss` is "terminal". In mode "penalty"
  `life_loss_penalty` is added to the learning reward for every life lost, after clipping.
- With `fire_action`, a reset plays it for `frame_skip` frames after the no-ops, and the first step
  after a life loss plays it in place of the given action (in every mode of `life_loss`).
- A reset leaves at least one frame below the limit: no-ops and FIRE stop before it. Where the game
  ends during them it is reset again, without further no-ops.
"""

cimport cython
from cython.operator cimport dereference
from libc.stdint cimport int64_t, uint8_t
from libcpp.memory cimport unique_ptr

from fastdqn._kernels cimport AreaResize, ResizeShape, RewardClip, clip_reward

import numpy as np

cdef dict REWARD_CLIPS = {
    "none": <int>RewardClip.kNone, "sign": <int>RewardClip.kSign, "clip": <int>RewardClip.kClip
}


cdef _choice(str name, value, choices):
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    return value


@cython.final
cdef class AtariStepper:
    """Steps one emulator and writes preprocessed frames into the caller's buffers."""

    cdef object act, game_over, get_lives, reset_game, get_screen
    cdef tuple actions
    cdef object noop_action, fire_action
    cdef object screen_objects
    cdef uint8_t[:, :, ::1] screens
    cdef unique_ptr[AreaResize] resize
    cdef Py_ssize_t height, width
    cdef int frame_skip, latest
    cdef int64_t max_episode_frames
    cdef bint lost_life_is_terminal, clip_frames, fire_pending, ended
    cdef double penalty
    cdef RewardClip reward_clip
    cdef readonly double reward
    cdef readonly float learning_reward
    cdef readonly int frames_used, lives
    cdef readonly int64_t episode_frames
    cdef readonly bint terminated, truncated, life_lost

    def __init__(self, emulator, actions, *, screen_shape, frame_shape=(84, 84), noop_action=0,
                 fire_action=None, frame_skip=4, life_loss="terminal", life_loss_penalty=-1.0,
                 reward_clip="sign", reward_clip_at="step", max_episode_frames=108_000):
        if frame_skip < 1 or max_episode_frames < 1:
            raise ValueError("frame_skip and max_episode_frames must be at least 1, got "
                             f"{frame_skip} and {max_episode_frames}")
        cdef ResizeShape shape
        shape.source_height, shape.source_width = screen_shape
        shape.height, shape.width = frame_shape
        self.resize.reset(new AreaResize(shape))
        self.height, self.width = frame_shape
        self.act = emulator.act
        self.game_over = emulator.game_over
        self.get_lives = emulator.lives
        self.reset_game = emulator.reset_game
        self.get_screen = emulator.getScreenGrayscale
        self.actions = tuple(actions)
        self.noop_action = noop_action
        self.fire_action = fire_action
        screens = np.zeros((2, *screen_shape), dtype=np.uint8)
        self.screens = screens
        self.screen_objects = (screens[0], screens[1])
        self.frame_skip = frame_skip
        self.max_episode_frames = max_episode_frames
        _choice("life_loss", life_loss, ("ignore", "terminal", "penalty"))
        self.lost_life_is_terminal = life_loss == "terminal"
        self.penalty = life_loss_penalty if life_loss == "penalty" else 0.0
        self.reward_clip = <RewardClip><int>REWARD_CLIPS[_choice("reward_clip", reward_clip,
                                                                 tuple(REWARD_CLIPS))]
        self.clip_frames = _choice("reward_clip_at", reward_clip_at, ("step", "frame")) == "frame"
        self.ended = True

    def reset(self, uint8_t[:, ::1] out, int noops=0):
        """Starts a new game and writes its first frame to `out` [*frame_shape].

        `noops`: frames of `noop_action` that are played before it.
        """
        self._check(out)
        self.reset_game()
        self.episode_frames = 0
        self.fire_pending = False
        if self._play(self.noop_action, noops) or (
                self.fire_action is not None and self._play(self.fire_action, self.frame_skip)):
            self.reset_game()
            self.episode_frames = 0
            if self.fire_action is not None and self._play(self.fire_action, self.frame_skip):
                self.reset_game()
                self.episode_frames = 0
        self.lives = self.get_lives()
        self.get_screen(self.screen_objects[0])
        dereference(self.resize).apply(&self.screens[0, 0, 0], &out[0, 0])
        self.reward = self.learning_reward = 0.0
        self.frames_used = 0
        self.terminated = self.truncated = self.life_lost = self.ended = False

    def step(self, Py_ssize_t action, uint8_t[:, ::1] out):
        """Plays `actions[action]` for one step and writes the frame reached to `out`.

        What happened is read from the attributes: `reward` (raw), `learning_reward`,
        `frames_used`, `terminated`, `truncated`, `life_lost`, `lives`, `episode_frames`.
        """
        self._check(out)
        if self.ended:
            raise RuntimeError("the episode has ended: reset before the next step")
        if not 0 <= action < len(self.actions):
            raise IndexError(f"action must be in [0, {len(self.actions)}), got {action}")
        played = self.actions[action]
        if self.fire_pending:
            played = self.fire_action
            self.fire_pending = False
        cdef double raw = 0.0, reward, learned = 0.0
        cdef int frames = 0, lost = 0, lives
        cdef int latest = 0
        self.truncated = False
        while True:
            reward = self.act(played)
            frames += 1
            raw += reward
            if self.clip_frames:
                learned += clip_reward(self.reward_clip, reward)
            lives = self.get_lives()
            if lives < self.lives:
                lost += self.lives - lives
            self.lives = lives
            self.terminated = self.game_over()
            latest = 1 - latest
            self.get_screen(self.screen_objects[latest])
            self.truncated = self.episode_frames + frames >= self.max_episode_frames
            if self.terminated or self.truncated or frames == self.frame_skip:
                break
        self.episode_frames += frames
        self.frames_used = frames
        self.reward = raw
        if not self.clip_frames:
            learned = clip_reward(self.reward_clip, raw)
        self.learning_reward = <float>(learned + self.penalty * lost)
        self.life_lost = lost > 0 and self.lost_life_is_terminal
        self.fire_pending = lost > 0 and self.fire_action is not None
        self.ended = self.terminated or self.truncated
        if frames == 1:
            dereference(self.resize).apply(&self.screens[latest, 0, 0], &out[0, 0])
        else:
            dereference(self.resize).apply_max(
                &self.screens[0, 0, 0], &self.screens[1, 0, 0], &out[0, 0])

    cdef bint _play(self, action, int frames) except -1:
        """Plays `action` while a frame is left below the limit; whether the game ended."""
        cdef int i
        for i in range(frames):
            if self.episode_frames + 1 >= self.max_episode_frames:
                break
            self.act(action)
            self.episode_frames += 1
            if self.game_over():
                return True
        return False

    cdef int _check(self, uint8_t[:, ::1] out) except -1:
        if out.shape[0] != self.height or out.shape[1] != self.width:
            raise ValueError(f"expected a frame of {self.height}x{self.width} pixels, "
                             f"got {out.shape[0]}x{out.shape[1]}")
        return 0
