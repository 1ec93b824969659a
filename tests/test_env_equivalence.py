"""The Atari environment against what everybody else uses, on real games.

Resize: OpenCV's INTER_AREA weighs pixels in float32, ours in exact integers. They may round a mean
that lies within float32 error of a half to different neighbours, and nowhere else: one grey level
there, none elsewhere.

Steps: gymnasium's AtariPreprocessing agrees on everything, but for the frame of the step in which
an episode ends. It stops before it takes the last screen, even where that is the last of the skip,
and returns what its two buffers held: a frame of an earlier step. Ours returns the screens of this
step. The difference is shown, and ours is checked against the oracle.
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import ale_py
import cv2
import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import AtariPreprocessing
from numpy.testing import assert_array_equal
from oracle import OracleStepper, area_resize, area_resize_exact
from scripted_emulator import ScriptedEmulator, ScriptedFrame

from fastdqn._rollout import AtariStepper
from fastdqn.envs.atari import AtariEnv, AtariOptions
from fastdqn.envs.games import all_games, game_title, rom_path
from fastdqn.envs.vector import AtariVector

gymnasium.register_envs(ale_py)

FRAME = (84, 84)

# A game for every size of screen, [height, width].
GAME_OF_SCREEN = {
    (210, 160): "breakout",
    (214, 160): "carnival",
    (220, 160): "pooyan",
    (230, 160): "journey_escape",
    (250, 160): "air_raid",
}


@functools.cache
def emulator(game: str) -> ale_py.ALEInterface:
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.setInt("random_seed", 1)
    ale.loadROM(rom_path(game))
    return ale


def resized(screen: np.ndarray[Any, Any], shape: tuple[int, int]) -> np.ndarray[Any, Any]:
    as_it_is = np.arange(256, dtype=np.uint8)
    shows = ScriptedEmulator([[]], ScriptedFrame(screen), grey_of_palette=as_it_is)
    stepper = AtariStepper(shows, (0,), screen_shape=screen.shape, frame_shape=shape)
    out = np.zeros(shape, np.uint8)
    stepper.reset(out)
    return out


def assert_resized_like_opencv(screen: np.ndarray[Any, Any], found: np.ndarray[Any, Any]) -> int:
    """How many pixels differ from OpenCV's; all of them must be near ties of rounding."""
    theirs = cv2.resize(screen, found.shape[::-1], interpolation=cv2.INTER_AREA)
    numerators, denominator = area_resize_exact(screen, *found.shape)
    off = np.abs(found.astype(int) - theirs.astype(int))
    assert off.max() <= 1
    # Up to 15 products of float32 weights that add up to at most 255: errors below 1e-4.
    from_tie = np.abs(numerators / denominator % 1 - 0.5)
    assert (from_tie[off > 0] < 1e-4).all()
    return int((off > 0).sum())


@pytest.mark.parametrize("screen_shape", GAME_OF_SCREEN)
@pytest.mark.parametrize("shape", [(84, 84), (105, 80), (64, 64), (42, 42), (1, 1), (84, 160)])
def test_the_resize_is_opencvs(screen_shape: tuple[int, int], shape: tuple[int, int]) -> None:
    random = np.random.default_rng(0)
    screens = [random.integers(0, 256, screen_shape, dtype=np.uint8) for _ in range(3)]
    screens.append(random.integers(0, 2, screen_shape, dtype=np.uint8) * 255)
    ale = emulator(GAME_OF_SCREEN[screen_shape])
    ale.reset_game()
    actions = ale.getMinimalActionSet()
    for frame in range(400):
        ale.act(actions[int(random.integers(len(actions)))])
        if ale.game_over():
            ale.reset_game()
        if frame % 100 == 99:
            screens.append(ale.getScreenGrayscale())
    for screen in screens:
        assert screen.shape == screen_shape
        found = resized(screen, shape)
        assert_array_equal(found, area_resize(screen, *found.shape))
        assert_resized_like_opencv(screen, found)


@pytest.mark.slow
def test_no_game_has_another_size_of_screen() -> None:
    sizes = {emulator.__wrapped__(game).getScreenDims() for game in all_games()}
    assert sizes == set(GAME_OF_SCREEN)


# -- Steps ---------------------------------------------------------------------------------------


class FrameActions(gymnasium.ActionWrapper[Any, Any, Any]):
    """Plays, frame by frame, the actions in `coming`, while there are any."""

    coming: ClassVar[list[int]] = []

    def action(self, action: Any) -> Any:
        return self.coming.pop(0) if self.coming else action


def in_step(
    game: str, *, frame_skip: int, sticky_actions: float
) -> tuple[AtariEnv, Any, ale_py.ALEInterface]:
    """Ours, gymnasium's and a bare emulator, all at the same moment of the same game. Only ours
    lets actions stick: the others are told what was played."""
    ours = AtariEnv(game, frame_skip=frame_skip, sticky_actions=sticky_actions, noop_max=0, seed=3)
    theirs = AtariPreprocessing(
        FrameActions(
            gymnasium.make(f"ALE/{game_title(game)}-v5", frameskip=1, repeat_action_probability=0.0)
        ),
        noop_max=0,
        frame_skip=frame_skip,
        screen_size=FRAME,
    )
    bare = ale_py.ALEInterface()
    bare.setFloat("repeat_action_probability", 0.0)
    bare.loadROM(rom_path(game))
    return ours, theirs, bare


def align(ours: AtariEnv, *others: ale_py.ALEInterface) -> None:
    state = ours.ale.cloneState(include_rng=True)
    for other in others:
        other.restoreState(state)


@pytest.mark.parametrize(
    ("game", "frame_skip", "sticky_actions", "steps"),
    [
        ("breakout", 4, 0.0, 400),
        ("breakout", 1, 0.0, 300),
        ("breakout", 3, 0.25, 400),
        ("pong", 4, 0.25, 300),
        ("seaquest", 4, 0.0, 500),
        ("space_invaders", 4, 0.25, 500),
        ("space_invaders", 2, 0.0, 300),
        ("boxing", 5, 0.0, 200),
        ("freeway", 4, 0.0, 200),
        ("carnival", 4, 0.0, 200),
        ("journey_escape", 4, 0.0, 200),
        ("air_raid", 4, 0.0, 300),
    ],
)
def test_steps_are_gymnasiums_but_for_the_last_frame_of_a_game(
    game: str, frame_skip: int, sticky_actions: float, steps: int
) -> None:
    """And always the oracle's: the same screens, rewards, ends and lives, frame by frame."""
    ours, theirs, bare = in_step(game, frame_skip=frame_skip, sticky_actions=sticky_actions)
    ours.reset(seed=3)
    theirs.reset(seed=3)
    actions = bare.getMinimalActionSet()
    oracle = OracleStepper(
        bare,
        actions,
        frame_skip=frame_skip,
        noop_action=ale_py.Action.NOOP,
        fire_action=None,
        life_loss="terminal",
        life_loss_penalty=0.0,
        reward_clip="sign",
        reward_clip_at="step",
        max_episode_frames=108_000,
        sticky_actions=sticky_actions,
        sticky_seed=int(np.random.SeedSequence(3).generate_state(3)[2]),
    )
    oracle.reset(0)
    align(ours, theirs.unwrapped.ale, bare)
    assert ours.action_space == theirs.action_space
    random = np.random.default_rng(0)
    scores = [0.0, 0.0]
    for _ in range(steps):
        action = int(random.integers(len(actions)))
        frame, reward, terminated, truncated, info = ours.step(action)
        expected = oracle.step(action)
        FrameActions.coming[:] = map(actions.index, expected.frame_actions)
        their_frame, their_reward, their_end, their_cut, _ = theirs.step(action)
        assert (reward, terminated, truncated) == (float(their_reward), their_end, their_cut)
        scores[0] += reward
        scores[1] += float(their_reward)

        assert reward == expected.reward
        assert info["learning_reward"] == expected.learning_reward
        assert terminated == expected.terminated
        assert info["lives"] == expected.lives
        assert info["life_lost"] == (expected.lives_lost > 0)
        assert info["frames"] == expected.frames_used
        assert info["episode_frames"] == expected.episode_frames
        assert_array_equal(frame, area_resize(expected.screen, *frame.shape))

        if not (terminated or truncated):
            assert np.abs(frame.astype(int) - their_frame.astype(int)).max() <= 1
        if terminated or truncated:
            first, _ = ours.reset()
            their_first, _ = theirs.reset()
            oracle.reset(0)
            assert np.abs(first.astype(int) - their_first.astype(int)).max() <= 1
            align(ours, theirs.unwrapped.ale, bare)
    assert scores[0] == scores[1]


def test_where_gymnasium_shows_a_stale_frame() -> None:
    """Whichever frame of the skip ends the game: theirs is the step before, ours is now.

    Should this fail because they differ no more, gymnasium has mended it: then the exception in
    the test above can go.
    """
    ours, theirs, bare = in_step("pong", frame_skip=4, sticky_actions=0.0)
    shown = 0
    for delay in range(4):
        ours.reset(seed=3)
        theirs.reset(seed=3)
        align(ours, theirs.unwrapped.ale)
        # Lost as fast as can be: the agent stands still; `delay` moves the end within the skip.
        for _ in range(delay):
            ours.ale.act(ale_py.Action.NOOP)
        align(ours, theirs.unwrapped.ale)
        terminated = False
        while not terminated:
            align(ours, bare)
            frame, _, terminated, _, info = ours.step(0)
            their_frame, _, their_end, _, _ = theirs.step(0)
            assert terminated == their_end
        screens = []
        for _ in range(info["frames"]):
            bare.act(ale_py.Action.NOOP)
            screens.append(bare.getScreenGrayscale())
        assert bare.game_over()
        assert_array_equal(frame, area_resize(np.max(screens[-2:], axis=0), *frame.shape))
        if np.abs(frame.astype(int) - their_frame.astype(int)).max() > 1:
            shown += 1
    assert shown > 0


@pytest.mark.parametrize("frame_skip", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("game", ["breakout", "pong", "space_invaders"])
def test_a_step_moves_the_emulator_by_frame_skip(game: str, frame_skip: int) -> None:
    """Once, not squared: nothing below the stepper skips as well."""
    env = AtariEnv(game, frame_skip=frame_skip, noop_max=0, seed=0)
    env.reset()
    for _ in range(50):
        before = env.ale.getFrameNumber()
        _, _, terminated, _, info = env.step(env.action_space.n - 1)
        assert not terminated
        assert env.ale.getFrameNumber() - before == frame_skip == info["frames"]
        assert env.ale.getEpisodeFrameNumber() == info["episode_frames"]


@pytest.mark.slow
def test_the_limit_is_108_000_frames_whatever_the_skip() -> None:
    """A Breakout in which nobody serves: truncated, not terminated, in the middle of a skip."""
    env = AtariEnv("breakout", frame_skip=7, noop_max=30, seed=5)
    env.reset()
    terminated = truncated = False
    while not (terminated or truncated):
        _, _, terminated, truncated, info = env.step(0)
    assert truncated
    assert not terminated
    assert info["episode_frames"] == 108_000 == env.ale.getEpisodeFrameNumber()


@pytest.mark.parametrize("life_loss", ["terminal", "ignore", "penalty"])
def test_a_lost_life_resets_nothing(life_loss: Any) -> None:
    """One reset and one end a game, with all lives at its start and none at its end."""
    env = AtariEnv("breakout", life_loss=life_loss, fire_reset=True, seed=1)
    for _ in range(2):
        _, info = env.reset()
        assert info["lives"] == 5
        lives, losses, frames, learned, raw = 5, 0, env.ale.getEpisodeFrameNumber(), 0.0, 0.0
        terminated = False
        while not terminated:
            _, reward, terminated, truncated, info = env.step(0)
            assert not truncated
            frames += info["frames"]
            assert env.ale.getEpisodeFrameNumber() == frames
            assert info["lives"] in (lives, lives - 1)
            assert info["life_lost"] == (life_loss == "terminal" and info["lives"] < lives)
            losses += info["lives"] < lives
            lives = info["lives"]
            raw += reward
            learned += info["learning_reward"] - min(reward, 1.0)
        assert (lives, losses) == (0, 5)
        assert learned == (-5.0 if life_loss == "penalty" else 0.0)


def test_a_reset_plays_up_to_noop_max_no_ops() -> None:
    """0 to that many frames, the last included; all of them after reset_game, none before."""
    env = AtariEnv("breakout", noop_max=5, seed=0)
    counts = []
    for _ in range(150):
        _, info = env.reset()
        assert env.ale.getEpisodeFrameNumber() == info["episode_frames"]
        counts.append(info["episode_frames"])
    assert set(counts) == {0, 1, 2, 3, 4, 5}
    assert max(counts.count(n) for n in range(6)) < 50  # 25 expected each


# -- Several environments --------------------------------------------------------------------------


def play(vector: AtariVector, actions: np.ndarray[Any, Any]) -> list[list[Any]]:
    """What each environment showed, step by step."""
    shown: list[list[Any]] = [[] for _ in range(vector.num_envs)]
    for env, frame in enumerate(vector.reset()):
        shown[env].append(frame.tobytes())
    for row in actions:
        result = vector.step(row)
        ended = np.flatnonzero(result.terminated | result.truncated)
        for env in range(vector.num_envs):
            shown[env].append(
                (
                    result.frames[env].tobytes(),
                    int(result.actions[env]),
                    float(result.rewards[env]),
                    float(result.learning_rewards[env]),
                    bool(result.terminated[env]),
                    bool(result.truncated[env]),
                    bool(result.life_lost[env]),
                    int(result.frames_used[env]),
                )
            )
        if ended.size:
            for env, frame in zip(ended, vector.reset(ended), strict=True):
                shown[env].append(frame.tobytes())
    return shown


def test_environments_do_not_mix() -> None:
    """Each of several behaves as it would alone; all differ; the same seed plays the same."""
    options = AtariOptions(sticky_actions=0.25, max_episode_frames=150)
    actions = np.random.default_rng(0).integers(0, 4, (80, 4))
    together = play(AtariVector("breakout", 4, options, seed=7), actions)
    again = play(AtariVector("breakout", 4, options, seed=7), actions)
    assert together == again
    alone = play(AtariVector("breakout", 1, options, seed=7), actions[:, :1])
    assert alone[0] == together[0]
    same_actions = np.repeat(actions[:, :1], 4, axis=1)
    streams = play(AtariVector("breakout", 4, options, seed=7), same_actions)
    streams += play(AtariVector("breakout", 4, options, seed=8), same_actions)
    for one in range(len(streams)):
        for other in range(one):
            assert streams[one] != streams[other]


def test_a_step_that_is_refused_plays_no_frame() -> None:
    """Not even in the environments before the one with the wrong action, or before the one that
    has ended."""
    vector = AtariVector("breakout", 2, AtariOptions(max_episode_frames=40, noop_max=0), seed=0)
    vector.reset()
    emulators = [game.playing.ale for game in vector._games]
    frames = [ale.getFrameNumber() for ale in emulators]
    for actions, error in [([0, 9], IndexError), ([0, -1], IndexError), ([0], ValueError)]:
        with pytest.raises(error):
            vector.step(np.array(actions))
    assert [ale.getFrameNumber() for ale in emulators] == frames
    while not vector.step(np.zeros(2, np.int64)).truncated[1]:
        pass
    vector.reset(np.array([0]))
    emulators = [game.playing.ale for game in vector._games]
    frames = [ale.getFrameNumber() for ale in emulators]
    with pytest.raises(RuntimeError, match="reset"):
        vector.step(np.zeros(2, np.int64))
    assert [ale.getFrameNumber() for ale in emulators] == frames


def test_what_a_vector_shows_is_what_its_environments_show() -> None:
    """Every column is filled, of every row, in every step."""
    vector = AtariVector("breakout", 3, AtariOptions(noop_max=0, life_loss="penalty"), seed=0)
    single = AtariEnv("breakout", noop_max=0, life_loss="penalty", seed=0)
    single.reset()
    vector.reset()
    for step in range(150):
        actions = np.array([step % 4, 1, 3])
        result = vector.step(actions)
        frame, reward, terminated, truncated, info = single.step(step % 4)
        # Without sticky actions Breakout does not depend on its seed.
        assert_array_equal(result.frames[0], frame)
        assert result.rewards[0] == reward
        assert result.learning_rewards[0] == info["learning_reward"]
        assert result.terminated[0] == terminated
        assert result.truncated[0] == truncated
        assert result.frames_used[0] == info["frames"]
        if terminated:
            break
        ended = np.flatnonzero(result.terminated | result.truncated)
        if ended.size:
            vector.reset(ended)
    assert terminated
