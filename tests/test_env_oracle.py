"""AtariStepper against the oracle, on an emulator that plays scripts.

The scripts hold what real games do once in a million frames: a game that ends at each frame of a
skip, at the frame limit, during the no-ops or on FIRE; lives lost, several at once, and won back
within one skip; rewards that cancel out.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from numpy.typing import NDArray
from oracle import OracleStepper, area_resize
from scripted_emulator import GREY_OF_PALETTE, ScriptedEmulator, ScriptedFrame

from fastdqn._rollout import AtariStepper

SCREEN = (33, 21)
FRAME = (11, 8)
ACTIONS = ("noop", "fire", "left", "right")  # handed through to the emulator untouched


def palette_screen(seed: int) -> NDArray[np.uint8]:
    """Noise, or one of a few backgrounds with one to three pixels changed, as games show.

    The backgrounds are plain or noise; the changes lie anywhere, or where blocks of a size that is
    natural to compare at once begin and end.
    """
    random = np.random.default_rng(seed)
    if seed % 4 == 0:
        return random.integers(0, 256, SCREEN, dtype=np.uint8)
    background = np.random.default_rng(seed % 5).integers(0, 256, SCREEN, dtype=np.uint8)
    screen = background if seed % 2 else background * np.uint8(0) + np.uint8(seed % 3)
    edges = [place - step for place in range(0, screen.size, 32) for step in (0, 1)]
    changed = random.integers(0, screen.size, int(random.integers(1, 4)))
    if seed % 7 < 4:
        changed = random.choice(edges, len(changed))
    screen.flat[changed] = random.integers(0, 256, len(changed), dtype=np.uint8)
    return screen


class Pair:
    """The stepper and the oracle on the same scripts, each with its own emulator."""

    def __init__(self, games: Any, *, first_lives: int = 3, **options: Any) -> None:
        first = ScriptedFrame(palette_screen(2**40), lives=first_lives)
        self.emulators = [ScriptedEmulator(games, first) for _ in range(2)]
        self.life_loss = options["life_loss"]
        self.options = options
        self.stepper = self.new_stepper()
        self.stepper.seed(2**40 + 1)
        self.oracle = OracleStepper(self.emulators[1], ACTIONS, **options, sticky_seed=2**40 + 1)
        self.out = np.zeros(FRAME, np.uint8)

    def new_stepper(self) -> AtariStepper:
        return AtariStepper(
            self.emulators[0], ACTIONS, screen_shape=SCREEN, frame_shape=FRAME, **self.options
        )

    def restore(self) -> None:
        """Go on with another stepper, from what the first one saved as JSON."""
        state = json.loads(json.dumps(self.stepper.save_state()))
        self.stepper = self.new_stepper()
        self.stepper.load_state(state)

    def reset(self, noops: int) -> None:
        self.stepper.reset(self.out, noops)
        screen = self.oracle.reset(noops)
        assert_array_equal(self.out, area_resize(screen, *self.out.shape))
        assert self.stepper.episode_frames == self.oracle.episode_frames
        assert self.stepper.lives == self.emulators[1].lives()
        assert self.emulators[0].played == self.emulators[1].played
        assert not self.stepper.terminated
        assert not self.stepper.truncated

    def step(self, action: int) -> bool:
        """Whether the episode ended."""
        self.out[...] = 99
        self.stepper.step(action, self.out)
        expected = self.oracle.step(action)
        assert self.emulators[0].played == self.emulators[1].played
        assert_array_equal(self.out, area_resize(expected.screen, *self.out.shape))
        assert self.stepper.reward == expected.reward
        assert self.stepper.learning_reward == np.float32(expected.learning_reward)
        assert self.stepper.action_played == expected.action_played
        assert self.stepper.frames_used == expected.frames_used
        assert self.stepper.episode_frames == expected.episode_frames
        assert self.stepper.terminated == expected.terminated
        assert self.stepper.truncated == expected.truncated
        assert self.stepper.lives == expected.lives
        terminal = self.life_loss == "terminal" and expected.lives_lost > 0
        assert self.stepper.life_lost == terminal
        return expected.terminated or expected.truncated


OPTIONS = st.fixed_dictionaries(
    {
        "frame_skip": st.integers(1, 5),
        "noop_action": st.sampled_from(["noop", "none of the actions"]),
        "sticky_actions": st.sampled_from([0.0, 0.25, 0.9, 1.0]),
        "fire_action": st.sampled_from([None, None, "fire"]),
        "life_loss": st.sampled_from(["ignore", "terminal", "penalty"]),
        "life_loss_penalty": st.sampled_from([-1.0, -0.25, 3.0]),
        "reward_clip": st.sampled_from(["sign", "clip", "none"]),
        "reward_clip_at": st.sampled_from(["step", "frame"]),
        "max_episode_frames": st.sampled_from([1, 2, 3, 5, 8, 13, 21, 108_000]),
    }
)
SCRIPTED_FRAMES = st.builds(
    ScriptedFrame,
    screen=st.integers(0, 2**32).map(palette_screen),
    reward=st.sampled_from([0, 0, 0, 1, 1, -1, 5, -7, 400]),
    lives=st.sampled_from([3, 3, 3, 3, 2, 2, 1, 0, 4]),
    game_over=st.sampled_from([False] * 9 + [True]),
)


@given(
    games=st.lists(st.lists(SCRIPTED_FRAMES, max_size=30), min_size=1, max_size=4),
    options=OPTIONS,
    noops=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    actions=st.lists(st.integers(0, 3), min_size=1, max_size=30),
    first_lives=st.integers(0, 4),
    restores=st.booleans(),
)
def test_any_script(
    games: list[list[ScriptedFrame]],
    options: dict[str, Any],
    noops: list[int],
    actions: list[int],
    first_lives: int,
    restores: bool,
) -> None:
    pair = Pair(games, first_lives=first_lives, **options)
    openings = itertools.cycle(noops)
    pair.reset(next(openings))
    for action in actions:
        if restores:
            pair.restore()
        if pair.step(action):
            with pytest.raises(RuntimeError, match="reset"):
                pair.stepper.step(action, pair.out)
            pair.reset(next(openings))


@pytest.mark.parametrize("frame_skip", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("ends_at", [1, 2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6, 7, 8, 100])
def test_every_way_to_end_inside_a_skip(frame_skip: int, ends_at: int, limit: int) -> None:
    """Game over at each frame, the limit at each frame, and both at once; by hand, no oracle."""
    screens = [palette_screen(k) for k in range(9)]
    game = [ScriptedFrame(screens[k], reward=10**k, game_over=k == ends_at) for k in range(1, 9)]
    emulator = ScriptedEmulator([game], ScriptedFrame(screens[0]))
    stepper = AtariStepper(
        emulator,
        ACTIONS,
        screen_shape=SCREEN,
        frame_shape=FRAME,
        frame_skip=frame_skip,
        reward_clip="none",
        max_episode_frames=limit,
    )
    out = np.zeros(FRAME, np.uint8)
    stepper.reset(out)
    assert_array_equal(out, area_resize(GREY_OF_PALETTE[screens[0]], *out.shape))
    last = min(ends_at, limit)
    for first in range(1, last + 1, frame_skip):
        reached = min(first + frame_skip - 1, last)
        stepper.step(2, out)
        assert emulator.played[1:] == ["left"] * reached
        assert stepper.reward == sum(10**k for k in range(first, reached + 1))
        assert stepper.learning_reward == np.float32(stepper.reward)
        assert stepper.frames_used == reached - first + 1
        assert stepper.episode_frames == reached
        shown = screens[max(first, reached - 1) : reached + 1]
        assert_array_equal(
            out, area_resize(GREY_OF_PALETTE[np.array(shown)].max(axis=0), *out.shape)
        )
        assert stepper.terminated == (reached == ends_at)
        assert stepper.truncated == (reached == limit)


def play_one_step(rewards: list[int], lives: list[int], **options: Any) -> AtariStepper:
    screen = palette_screen(0)
    game = [
        ScriptedFrame(screen, reward=reward, lives=left)
        for reward, left in zip(rewards, lives, strict=True)
    ]
    stepper = AtariStepper(
        ScriptedEmulator([game], ScriptedFrame(screen, lives=3)),
        ACTIONS,
        screen_shape=SCREEN,
        frame_shape=FRAME,
        **options,
    )
    out = np.zeros(FRAME, np.uint8)
    stepper.reset(out)
    stepper.step(0, out)
    return stepper


@pytest.mark.parametrize(
    ("rule", "at", "learned"),
    [
        ("sign", "step", 1.0),  # of 7 - 1 + 0 + 1 = 7
        ("sign", "frame", 1.0 - 1.0 + 0.0 + 1.0),
        ("clip", "step", 1.0),
        ("clip", "frame", 1.0),
        ("none", "step", 7.0),
        ("none", "frame", 7.0),
    ],
)
def test_the_reward_rules(rule: str, at: str, learned: float) -> None:
    stepper = play_one_step([7, -1, 0, 1], [3] * 4, reward_clip=rule, reward_clip_at=at)
    assert stepper.reward == 7.0
    assert stepper.learning_reward == learned


def test_two_points_in_one_step_show_where_the_rules_differ() -> None:
    two = [1, 0, 1, 0]
    assert play_one_step(two, [3] * 4, reward_clip_at="step").learning_reward == 1.0
    assert play_one_step(two, [3] * 4, reward_clip_at="frame").learning_reward == 2.0
    # The sum is clipped and not its parts: 5 - 6 is a loss.
    assert play_one_step([5, -6, 0, 0], [3] * 4, reward_clip_at="step").learning_reward == -1.0
    assert play_one_step([5, -6, 0, 0], [3] * 4, reward_clip_at="frame").learning_reward == 0.0


@pytest.mark.parametrize(
    ("mode", "lives", "life_lost", "learned"),
    [
        ("terminal", [3, 3, 2, 2], True, 1.0),
        ("terminal", [3, 3, 3, 2], True, 1.0),
        ("terminal", [2, 3, 3, 3], True, 1.0),  # won back within the step: it was lost
        ("terminal", [3, 3, 4, 4], False, 1.0),
        ("ignore", [3, 3, 2, 2], False, 1.0),
        ("penalty", [3, 3, 3, 3], False, 1.0),
        ("penalty", [3, 3, 2, 2], False, 0.5),  # after clipping: 1 - 0.5
        ("penalty", [3, 4, 4, 4], False, 1.0),
    ],
)
def test_the_modes_of_losing_a_life(
    mode: str, lives: list[int], life_lost: bool, learned: float
) -> None:
    stepper = play_one_step([9, 0, 0, 0], lives, life_loss=mode, life_loss_penalty=-0.5)
    assert stepper.life_lost is life_lost
    assert stepper.learning_reward == learned
    assert not stepper.terminated
    assert stepper.lives == lives[-1]


@pytest.mark.parametrize("mode", ["ignore", "terminal", "penalty"])
def test_fire_follows_a_reset_and_a_lost_life(mode: str) -> None:
    screen = palette_screen(0)
    game = [ScriptedFrame(screen, lives=3 - (k >= 12)) for k in range(40)]
    emulator = ScriptedEmulator([game], ScriptedFrame(screen, lives=3))
    stepper = AtariStepper(
        emulator,
        ACTIONS,
        screen_shape=SCREEN,
        frame_shape=FRAME,
        frame_skip=4,
        noop_action="noop",
        fire_action="fire",
        life_loss=mode,
    )
    out = np.zeros(FRAME, np.uint8)
    stepper.reset(out, 3)
    for _ in range(4):
        stepper.step(2, out)
    expected = [None] + ["noop"] * 3 + ["fire"] * 4  # 7 frames; the life goes in the 13th
    expected += ["left"] * 8 + ["fire"] * 4 + ["left"] * 4
    assert emulator.played == expected


@pytest.mark.parametrize("sticky_actions", [0.0, 0.25, 0.5, 1.0])
def test_actions_stick_as_often_as_they_should(sticky_actions: float) -> None:
    """Each frame for itself: within five standard deviations, also right after one that stuck."""
    emulator = ScriptedEmulator([[]], ScriptedFrame(palette_screen(0)))
    stepper = AtariStepper(
        emulator,
        range(20_000),
        screen_shape=SCREEN,
        frame_shape=FRAME,
        frame_skip=1,
        sticky_actions=sticky_actions,
    )
    stepper.seed(1)
    out = np.zeros(FRAME, np.uint8)
    stepper.reset(out)
    for action in range(1, 20_000):  # no two are alike
        stepper.step(action, out)
    played = np.array(emulator.played[1:])
    stuck = played != np.arange(1, 20_000)
    assert (played[stuck] == np.concatenate([[0], played[:-1]])[stuck]).all()
    for chances in (stuck, stuck[1:][stuck[:-1]]):
        deviation = np.sqrt(sticky_actions * (1 - sticky_actions) * chances.size)
        assert abs(chances.sum() - sticky_actions * chances.size) <= 5 * deviation


@pytest.mark.parametrize("action", [-1, 4, 2**40])
def test_an_action_out_of_range_plays_no_frame(action: int) -> None:
    emulator = ScriptedEmulator([[]], ScriptedFrame(palette_screen(0)))
    stepper = AtariStepper(emulator, ACTIONS, screen_shape=SCREEN, frame_shape=FRAME)
    out = np.zeros(FRAME, np.uint8)
    stepper.reset(out)
    with pytest.raises(IndexError, match="action"):
        stepper.step(action, out)
    assert emulator.played == [None]


def test_out_must_be_the_right_array() -> None:
    emulator = ScriptedEmulator([[]], ScriptedFrame(palette_screen(0)))
    stepper = AtariStepper(emulator, ACTIONS, screen_shape=SCREEN, frame_shape=FRAME)
    good = np.zeros(FRAME, np.uint8)
    stepper.reset(good)
    frozen = good.copy()
    frozen.flags.writeable = False
    for out in (good.T, good[:2], good.astype(np.float32), frozen, good[None], np.zeros((3, 4))):
        with pytest.raises((ValueError, TypeError)):
            stepper.step(0, out)
    assert emulator.played == [None]


def test_an_emulator_that_fails_is_heard() -> None:
    """What it raises reaches the caller, from the middle of a skip too."""
    frame = ScriptedFrame(palette_screen(0))
    emulator = ScriptedEmulator([[]], frame)
    calls = itertools.count()
    act = emulator.act

    def failing(action: Any) -> int:
        if next(calls) == 2:
            raise OSError("the cartridge fell out")
        return act(action)

    emulator.act = failing  # type: ignore[method-assign]
    stepper = AtariStepper(emulator, ACTIONS, screen_shape=SCREEN, frame_shape=FRAME)
    out = np.zeros(FRAME, np.uint8)
    stepper.reset(out)
    with pytest.raises(OSError, match="cartridge"):
        stepper.step(0, out)


def resized(screen: NDArray[np.uint8], shape: tuple[int, int]) -> NDArray[np.uint8]:
    as_it_is = np.arange(256, dtype=np.uint8)
    emulator = ScriptedEmulator([[]], ScriptedFrame(screen), grey_of_palette=as_it_is)
    stepper = AtariStepper(emulator, ACTIONS, screen_shape=screen.shape, frame_shape=shape)
    out = np.zeros(shape, np.uint8)
    stepper.reset(out)
    return out


@given(
    source=st.tuples(st.integers(1, 130), st.integers(1, 130)),
    target=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    kind=st.sampled_from(["noise", "black", "white", "extremes", "ramp"]),
    seed=st.integers(0, 2**32),
)
def test_the_resize_is_exact(
    source: tuple[int, int], target: tuple[int, int], kind: str, seed: int
) -> None:
    """The mean of the area in exact fractions, rounded to nearest, for any pair of sizes."""
    shape = (max(source[0], target[0]), max(source[1], target[1]))
    random = np.random.default_rng(seed)
    if kind == "noise":
        screen = random.integers(0, 256, shape, dtype=np.uint8)
    elif kind == "extremes":
        screen = random.integers(0, 2, shape, dtype=np.uint8) * np.uint8(255)
    elif kind == "ramp":
        screen = np.arange(shape[0] * shape[1]).reshape(shape).astype(np.uint8)
    else:
        screen = np.full(shape, 0 if kind == "black" else 255, np.uint8)
    out = resized(screen, target)
    assert_array_equal(out, area_resize(screen, *target))
    if kind in ("black", "white"):
        assert (out == screen[0, 0]).all()


@pytest.mark.parametrize("rows", [*range(13, 21), 255, 256])
@pytest.mark.parametrize("columns", [*range(13, 21), 255, 256, 257])
def test_no_sum_of_the_resize_overflows(rows: int, columns: int) -> None:
    """Sizes at which a sum of the brightest pixels is about as large as its type can hold."""
    for grey in (255, 254, 1):
        screen = np.full((rows, columns), grey, np.uint8)
        assert resized(screen, (1, 1))[0, 0] == grey
        screen[0, 0] = 0
        assert_array_equal(resized(screen, (1, 1)), area_resize(screen, 1, 1))


def test_a_screen_that_cannot_be_averaged_is_refused() -> None:
    for screen_shape, frame_shape in [((7, 5), (8, 5)), ((7, 5), (7, 6)), ((7, 5), (0, 5))]:
        with pytest.raises(ValueError, match="average"):
            resized(np.zeros(screen_shape, np.uint8), frame_shape)


def test_greys_that_do_not_follow_from_palette_numbers_are_refused() -> None:
    """Rather than shown wrongly: only new numbers are looked up."""
    emulator = ScriptedEmulator([[]], ScriptedFrame(np.zeros(SCREEN, np.uint8)))
    noise = np.random.default_rng(0).integers(0, 256, SCREEN, dtype=np.uint8)
    emulator.getScreenGrayscale = lambda out: np.copyto(out, noise)  # type: ignore[method-assign]
    stepper = AtariStepper(emulator, ACTIONS, screen_shape=SCREEN, frame_shape=FRAME)
    with pytest.raises(ValueError, match="grey"):
        stepper.reset(np.zeros(FRAME, np.uint8))
