"""Frames per second of emulation with preprocessing, on one core and on two.

Every contender plays the same games: Breakout, one table of random actions, 4 frames a step, no
sticky actions, no frame stacking, and no no-ops at a reset (EnvPool plays at least one). An ended
game is reset in the same turn, by EnvPool in the next step.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import ale_py
import harness
import numpy as np
import numpy.typing as npt
from ale_py import roms
from ale_py.vector_env import AtariVectorEnv
from baseline import make_env
from harness import OURS, Contender, Effort, Row, agree

from fastdqn.envs.make import make_envs
from fastdqn.envs.vector import VectorEnv

__all__ = ["bare_step", "emulation"]

GAME = "breakout"
FRAME_SKIP = 4
ALE = "ALE's vector environment"
ENVPOOL = "EnvPool"
LIMIT = "limit: act() alone"


def emulation(effort: Effort) -> Iterator[Row]:
    """Frames per second with preprocessing: 1 and 4 environments on one core, 4 and 16 on two."""
    for count in (1, 4):
        yield on_one_core(count, effort)
    for count in (4, 16):
        yield on_two_cores(count, effort)


Make = Callable[[ExitStack], "Step"]


def on_one_core(count: int, effort: Effort) -> Row:
    """A contender's threads share the core; ALE's and EnvPool's caller may also wait elsewhere."""
    environments = f"{count} environment{'s' * (count > 1)}"
    row = Row("emulation", f"Emulation with preprocessing, {environments}, one core", "frames/s")
    core = harness.cores(1)

    def elsewhere(make: Make) -> Make:
        def made(resources: ExitStack) -> Step:
            with harness.on_cores(core):  # the threads that it starts stay there
                return make(resources)

        return made

    loose = ", its caller on another core"
    ale, pool = ale_step(count, 1), envpool_step(count, 1)
    contenders = [
        Contender(OURS, play(our_step(count), count), core),
        Contender(ALE, play(ale, count), core),
        Contender(ALE + loose, play(elsewhere(ale), count)),
        Contender(ENVPOOL, play(pool, count), core, package="envpool"),
        Contender(ENVPOOL + loose, play(elsewhere(pool), count), package="envpool"),
        Contender("gymnasium's AtariPreprocessing", play(plain_step(count), count), core),
        Contender(LIMIT, play(lambda _: bare_step(count), count), core),
    ]
    row.add(harness.match(contenders, seconds=effort.seconds))
    row.notes.append(
        "all play the same games: Breakout, the same random actions, skip 4, no sticky "
        "actions; frames are emulator frames played, resets not counted"
    )
    row.require_ratio(row.best([ALE, ALE + loose]), 1.2, ALE)
    row.require_ratio(row.best([ENVPOOL, ENVPOOL + loose]), 1.2, ENVPOOL)
    return row


def on_two_cores(count: int, effort: Effort) -> Row:
    """Ours in two processes, this one among them; theirs in two threads."""
    title = f"Emulation with preprocessing, {count} environments, two cores"
    row = Row("emulation", title, "frames/s")
    try:
        two = harness.cores(2)
    except ValueError as error:
        row.absent[OURS] = str(error)
        return row
    alone, limit = "fastdqn, in one process on one core", "limit: twice one process"
    steps = effort.emulation_turn_steps
    contenders = [
        Contender(OURS, play(our_step(count, workers=2), count, steps), two),
        Contender(alone, play(our_step(count), count, steps), harness.cores(1)),
        Contender(ALE, play(ale_step(count, 2), count, steps), two),
        Contender(ENVPOOL, play(envpool_step(count, 2), count, steps), two, package="envpool"),
    ]
    row.add(harness.match(contenders, seconds=effort.seconds))
    row.figures[limit] = [2 * rate for rate in row.figures[alone]]
    row.ours[limit] = row.ours[alone]
    row.notes.append(
        f"{steps:,} steps a turn, which ends when the next game of each environment has been "
        "started: nothing is prepared while others have their turns"
    )
    row.require_ratio(alone, 1.9)
    row.require_ratio(ALE, 1.2)
    row.require_ratio(ENVPOOL, 1.2)
    return row


def random_actions(count: int) -> npt.NDArray[np.int64]:
    """[4096, count]: every contender plays these again and again."""
    return np.random.default_rng(0).integers(4, size=(4096, count))


Step = Callable[[npt.NDArray[np.int64]], object]
Prepare = Callable[[ExitStack], Callable[[], float]]


def play(make: Make, count: int, turn_steps: int = 100) -> Prepare:
    """Turns of so many steps, split over the environments; a turn goes on where the last one ended,
    and ends with the step's `settle` where it has one."""
    actions, steps = random_actions(count), max(1, turn_steps // count)

    def prepare(resources: ExitStack) -> Callable[[], float]:
        step, turns = make(resources), itertools.count()
        settle = getattr(step, "settle", lambda: None)

        def turn() -> float:
            start = steps * next(turns)
            for number in range(start, start + steps):
                step(actions[number % len(actions)])
            settle()
            return float(steps * FRAME_SKIP * count)

        return turn

    return prepare


def our_envs(count: int, resources: ExitStack, workers: int = 0) -> VectorEnv:
    """Ours, with the settings that all contenders share."""
    envs = make_envs(None, GAME, count, seed=0, noop_max=0, workers=workers)
    resources.callback(envs.close)
    return envs


def our_step(count: int, workers: int = 0) -> Make:
    """As the trainer steps: what has ended is reset by the caller."""

    def make(resources: ExitStack) -> Step:
        check_ours(min(count, 2), workers)
        return OurStep(our_envs(count, resources, workers))

    return make


class OurStep:
    """A step of ours, which also can settle what workers may do between steps."""

    def __init__(self, envs: VectorEnv) -> None:
        self._envs = envs
        envs.reset()
        if envs.protocol()["workers"]:
            self.settle = envs.save_state  # it starts every game that comes next

    def __call__(self, actions: npt.NDArray[np.int64]) -> None:
        result = self._envs.step(actions)
        ended = np.flatnonzero(result.terminated | result.truncated)
        if ended.size:
            self._envs.reset(ended)


def ale_envs(count: int, threads: int) -> AtariVectorEnv:
    """ALE's own, without its stacking; an ended game is reset in the same step."""
    return AtariVectorEnv(
        GAME,
        count,
        num_threads=threads,
        stack_num=1,
        noop_max=0,
        use_fire_reset=False,
        autoreset_mode="SameStep",
    )


def ale_step(count: int, threads: int) -> Make:
    """A step of ALE's vector environment."""

    def make(resources: ExitStack) -> Step:
        envs = ale_envs(count, threads)
        resources.callback(envs.close)
        envs.reset(seed=0)
        return envs.step  # type: ignore[no-any-return]

    return make


def envpool_envs(count: int, threads: int) -> Any:
    """EnvPool's, without its stacking; an ended game is reset by the next step."""
    import envpool

    return envpool.make(
        "Breakout-v5",
        env_type="gymnasium",
        num_envs=count,
        num_threads=threads,
        stack_num=1,
        frame_skip=FRAME_SKIP,
        noop_max=1,  # the least that it takes: one no-op frame is played at every reset
        use_fire_reset=False,
        repeat_action_probability=0.0,
        reward_clip=True,
    )


def envpool_step(count: int, threads: int) -> Make:
    """A step of EnvPool's Atari environment."""

    def make(resources: ExitStack) -> Step:
        check_envpool(min(count, 2), threads)
        envs = envpool_envs(count, threads)
        resources.callback(envs.close)
        envs.reset()
        return envs.step  # type: ignore[no-any-return]

    return make


def plain_step(count: int) -> Make:
    """Gymnasium's own preprocessing around each game in turn."""

    def make(resources: ExitStack) -> Step:
        envs = [make_env("ALE/Breakout-v5", noop_max=0) for _ in range(count)]
        for env in envs:
            resources.callback(env.close)
            env.reset(seed=0)

        def step(actions: npt.NDArray[np.int64]) -> None:
            for env, action in zip(envs, actions.tolist(), strict=True):
                _, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    env.reset()

        return step

    return make


def bare_emulator() -> ale_py.ALEInterface:
    """A game alone, without sticky actions."""
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.setInt("random_seed", 0)
    ale.loadROM(roms.get_rom_path(GAME))
    return ale


def bare_step(count: int) -> Step:
    """The emulator alone: no screen is fetched, no reward is used."""
    emulators = [bare_emulator() for _ in range(count)]
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


CHECKED_STEPS = 120  # shorter than any game


def check_ours(count: int, workers: int) -> None:
    """Ours and ALE's show the same frames, within a grey level, and count the same rewards."""
    with ExitStack() as resources:
        ours, ales = our_envs(count, resources, workers), ale_envs(count, 1)
        resources.callback(ales.close)
        first, (other, _) = ours.reset(), ales.reset(seed=0)
        agree("emulation: first frames", within_a_grey_level(first, other[:, 0]))
        lives = np.full(count, 5)
        for actions in np.random.default_rng(1).integers(4, size=(CHECKED_STEPS, count)):
            result = ours.step(actions)
            other, rewards, terminated, _, info = ales.step(actions)
            agree("emulation: frames", within_a_grey_level(result.frames, other[:, 0]))
            agree("emulation: rewards", np.array_equal(result.learning_rewards, rewards))
            agree("emulation: ends", np.array_equal(result.terminated, terminated))
            agree("emulation: lost lives", np.array_equal(result.life_lost, info["lives"] < lives))
            agree("emulation: frames of a step", (result.frames_used == FRAME_SKIP).all())
            lives = info["lives"]


def check_envpool(count: int, threads: int) -> None:
    """EnvPool's games are those of the bare emulator after one no-op, preprocessed."""
    import cv2  # gymnasium's preprocessing needs it too

    envs = envpool_envs(count, threads)
    emulators = [bare_emulator() for _ in range(count)]
    minimal = emulators[0].getMinimalActionSet()
    for ale in emulators:
        ale.act(minimal[0])
    envs.reset()
    for actions in np.random.default_rng(1).integers(4, size=(CHECKED_STEPS, count)):
        frames, rewards, terminated, _, _ = envs.step(actions)
        for i, ale in enumerate(emulators):
            action = minimal[actions[i]]
            reward, screens = 0, []
            for _ in range(FRAME_SKIP):
                reward += ale.act(action)
                screens.append(ale.getScreenGrayscale())
            shown = cv2.resize(np.maximum(*screens[-2:]), (84, 84), interpolation=cv2.INTER_AREA)
            agree("EnvPool: frames", within_a_grey_level(shown, frames[i, 0]))
            agree("EnvPool: rewards", bool(np.sign(reward) == rewards[i]))
            agree("EnvPool: ends", bool(ale.game_over() == terminated[i]))
    envs.close()


def within_a_grey_level(ours: npt.NDArray[np.uint8], theirs: npt.NDArray[np.uint8]) -> bool:
    """Area averages round differently by at most one."""
    return bool((np.abs(ours.astype(np.int16) - theirs.astype(np.int16)) <= 1).all())
