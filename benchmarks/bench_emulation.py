"""Frames per second of emulation with preprocessing, on one core.

Every contender plays the same games: Breakout, one table of random actions, 4 frames a step, no
sticky actions, no no-ops at a reset, no frame stacking. An ended game is reset in
the same turn.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import ale_py
import harness
import numpy as np
import numpy.typing as npt
from ale_py import roms
from ale_py.vector_env import AtariVectorEnv
from baseline import make_env
from harness import OURS, Contender, Effort, Row, agree

from fastdqn.envs.atari import AtariOptions
from fastdqn.envs.vector import AtariVector

__all__ = ["bare_step", "emulation"]

GAME = "breakout"
FRAME_SKIP = 4


def emulation(effort: Effort) -> Iterator[Row]:
    """Frames per second with preprocessing, on one core, for 1 and 4 environments."""
    core = max(os.sched_getaffinity(0))
    for count in (1, 4):
        check_emulation(count)
        title = f"Emulation with preprocessing, {count} environment{'s' * (count > 1)}, one core"
        row = Row("emulation", title, "frames/s")
        actions = np.random.default_rng(0).integers(4, size=(4096, count))
        with harness.one_core(core):  # ALE's thread inherits the core that it is started on
            pinned = [
                Contender(OURS, play(our_step(count), actions), core),
                Contender("ALE's vector environment", play(ale_step(count), actions), core),
                Contender("gymnasium's AtariPreprocessing", play(plain_step(count), actions), core),
                Contender("limit: act() alone", play(bare_step(count), actions), core),
            ]
        loose = "ALE's vector environment, its caller on another core"
        contenders = [*pinned, Contender(loose, play(ale_step(count), actions))]
        harness.measure(row, contenders, seconds=effort.seconds)
        row.notes.append(
            "all play the same games: Breakout, the same random actions, skip 4, no sticky "
            "actions, no no-ops; frames are emulator frames played, resets not counted"
        )
        row.require_ratio("ALE's vector environment", 1.15)
        row.require_ratio(loose, 1.15)
        yield row


Step = Callable[[npt.NDArray[np.int64]], object]


def play(step: Step, actions: npt.NDArray[np.int64]) -> Callable[[], float]:
    """A turn of 100 steps in every environment; later turns go on where the last one ended."""
    state = {"next": 0}

    def run() -> float:
        start, stop = state["next"], state["next"] + 100
        for number in range(start, stop):
            step(actions[number % len(actions)])
        state["next"] = stop
        return float((stop - start) * FRAME_SKIP * actions.shape[1])

    return run


def our_env(count: int) -> AtariVector:
    """Ours, with the settings that all contenders share."""
    return AtariVector(GAME, count, AtariOptions(noop_max=0), seed=0)


def our_step(count: int) -> Step:
    """As the trainer steps: what has ended is reset by the caller."""
    envs = our_env(count)
    envs.reset()

    def step(actions: npt.NDArray[np.int64]) -> None:
        result = envs.step(actions)
        ended = np.flatnonzero(result.terminated | result.truncated)
        if ended.size:
            envs.reset(ended)

    return step


def ale_env(count: int) -> AtariVectorEnv:
    """ALE's own, on one thread, without its stacking; an ended game is reset in the same step."""
    return AtariVectorEnv(
        GAME,
        count,
        num_threads=1,
        stack_num=1,
        noop_max=0,
        use_fire_reset=False,
        autoreset_mode="SameStep",
    )


def ale_step(count: int) -> Step:
    """A step of ALE's vector environment."""
    envs = ale_env(count)
    envs.reset(seed=0)
    return envs.step  # type: ignore[no-any-return]


def plain_step(count: int) -> Step:
    """Gymnasium's own preprocessing around each game in turn."""
    envs = [make_env("ALE/Breakout-v5", noop_max=0) for _ in range(count)]
    for env in envs:
        env.reset(seed=0)

    def step(actions: npt.NDArray[np.int64]) -> None:
        for env, action in zip(envs, actions.tolist(), strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    return step


def bare_step(count: int) -> Step:
    """The emulator alone: no screen is fetched, no reward is used."""
    emulators = []
    for _ in range(count):
        ale = ale_py.ALEInterface()
        ale.setFloat("repeat_action_probability", 0.0)
        ale.setInt("random_seed", 0)
        ale.loadROM(roms.get_rom_path(GAME))
        emulators.append(ale)
    minimal = emulators[0].getMinimalActionSet()

    def step(actions: npt.NDArray[np.int64]) -> None:
        for ale, index in zip(emulators, actions.tolist(), strict=True):
            action = minimal[index]
            ale.act(action)
            ale.act(action)
            ale.act(action)
            ale.act(action)
            if ale.game_over():
                ale.reset_game()

    return step


def check_emulation(count: int) -> None:
    """Ours and ALE's show the same frames, within a grey level, and count the same rewards."""
    ours, ales = our_env(count), ale_env(count)
    first, (other, _) = ours.reset(), ales.reset(seed=0)
    agree("emulation: first frames", within_a_grey_level(first, other[:, 0]))
    generator = np.random.default_rng(1)
    lives = np.full(count, 5)
    for _ in range(120):  # shorter than any game
        actions = generator.integers(4, size=count)
        result = ours.step(actions)
        other, rewards, terminated, _, info = ales.step(actions)
        agree("emulation: frames", within_a_grey_level(result.frames, other[:, 0]))
        agree("emulation: rewards", np.array_equal(result.learning_rewards, rewards))
        agree("emulation: ends", np.array_equal(result.terminated, terminated))
        agree("emulation: lost lives", np.array_equal(result.life_lost, info["lives"] < lives))
        agree("emulation: frames of a step", (result.frames_used == FRAME_SKIP).all())
        lives = info["lives"]
    ours.close()
    ales.close()


def within_a_grey_level(ours: npt.NDArray[np.uint8], theirs: npt.NDArray[np.uint8]) -> bool:
    """Area averages round differently by at most one."""
    return bool((np.abs(ours.astype(np.int16) - theirs.astype(np.int16)) <= 1).all())
