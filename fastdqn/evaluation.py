"""Playing games with a trained agent, apart from any training.

Own environments, own generators, own exploration: training is the same with and without it. Games
are numbered; its number and the seed determine a game, so it is the same game however many are
played side by side. Every game ends, at the latest at a limit, and one that was cut is marked.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from fastdqn.agent import Agent
from fastdqn.envs.make import EnvFunction, make_envs
from fastdqn.envs.vector import VectorEnv
from fastdqn.errors import UserError
from fastdqn.networks import empty_stacks
from fastdqn.replay import ReplayMemory
from fastdqn.scores import Evaluation, Game

__all__ = ["Evaluation", "Game", "Play", "Policy", "Spectator", "evaluate"]


def evaluate(
    agent: Agent,
    episodes: int | None = 30,
    max_frames: int | None = None,
    *,
    max_episode_frames: int | None = None,
    epsilon: float | None = None,
    seed: int = 0,
    env_fn: EnvFunction | None = None,
    side_by_side: int = 4,
    stop: Callable[[], bool] = lambda: False,
    on_game: Callable[[Game], None] = lambda game: None,
    spectator: Spectator | None = None,
) -> Evaluation:
    """Play whole games until `episodes` have been played or the evaluation has taken `max_frames`
    frames, whichever comes first; either may be None, not both.

    The frames of an evaluation are those of its games one after another, by their numbers: a game
    in which they reach `max_frames` is interrupted there. `max_episode_frames` is another thing:
    the limit of each single game (None: the run's own), a rule of the protocol, so a game that it
    cuts counts like any other. So do games that an environment's own limit cuts.

    `epsilon` is the probability of a random action (None: the config's `evaluation_epsilon`).
    `env_fn` is called once a game. `side_by_side` games are played at a time, which is quicker and
    changes none of them. `stop` is asked after every step; True interrupts all games under way.
    `on_game` is told each game, by their numbers, once it and those before it have ended. A
    `spectator` sees every step of one game after another.

    Raises `UserError` for settings out of range, or environments that do not suit the agent.
    """
    limit = agent.config.max_episode_frames if max_episode_frames is None else max_episode_frames
    if episodes is None and max_frames is None:
        raise UserError("episodes=None and max_frames=None: without one of them it never ends")
    for name, value in (
        ("episodes", episodes),
        ("max_frames", max_frames),
        ("max_episode_frames", limit),
        ("side_by_side", side_by_side),
    ):
        if value is not None and value < 1:
            raise UserError(f"{name}={value}: expected 1 or more")
    policy = Policy(agent, epsilon, spectator)
    make = None
    if spectator is not None:
        side_by_side, make = 1, spectator.make
    most = math.inf if episodes is None else episodes
    left = math.inf if max_frames is None else max_frames
    games: list[Game] = []
    # The games after those, by their numbers. Some of them have ended, before a game in front has.
    plays: list[Play] = []

    def take() -> None:
        nonlocal left
        games.append(plays.pop(0).game(left))
        left -= games[-1].frames
        on_game(games[-1])

    try:
        while True:
            active = [play for play in plays if play.is_under_way]
            while (
                len(active) < side_by_side
                and len(games) + len(plays) < most
                and sum(play.frames for play in plays) < left
            ):
                number = len(games) + len(plays)
                replays = max_frames is not None
                play = Play(agent, number, seed, limit, env_fn, make=make, replays=replays)
                plays.append(play)
                active.append(play)
            if not active or stop():
                break
            policy.step(active)
            while plays and plays[0].ended and left > 0:
                take()
            # What lies beyond the frames is called off. Games in front only ever get longer, so
            # what would be too many frames now would be so in the end.
            before = 0
            for place, play in enumerate(plays):
                if before >= left:
                    for beyond in plays[place:]:
                        beyond.close()
                    del plays[place:]
                    break
                before += play.frames
                if before >= left:
                    play.close()
        while plays and left > 0 and (plays[0].steps > 0 or not games):
            take()
    finally:
        for play in plays:
            play.close()
    return Evaluation(tuple(games), policy.epsilon, str(agent.protocol.get("game", "")))


class Spectator(Protocol):
    """Watches games, and gives them the environments in which they can be watched."""

    def make(self, seed: int) -> VectorEnv:
        """The environment of a new game."""

    def see(self, play: Play, values: NDArray[np.float32], action: int) -> None:
        """One step was played: what the agent had thought of each action, and the one chosen."""


class Play:
    """One game under way, with an environment, a generator and a stack of its own.

    `make` makes that environment from a seed, in place of the one that the agent's config or
    `env_fn` describes.
    With `replays`, `game` can tell of any of its frames; that takes memory for each step.
    """

    def __init__(
        self,
        agent: Agent,
        number: int,
        seed: int,
        limit: int,
        env_fn: EnvFunction | None = None,
        *,
        make: Callable[[int], VectorEnv] | None = None,
        replays: bool = False,
    ) -> None:
        config = agent.config
        environment_seed, action_seed = game_seeds(seed, number)
        if make is not None:
            envs = make(environment_seed)
        else:
            options = {**config.env_options(), "max_episode_frames": limit}
            envs = make_envs(env_fn or config.env, config.game, 1, seed=environment_seed, **options)
        if (envs.frame_shape, envs.num_actions) != (agent.frame_shape, agent.num_actions):
            raise UserError(
                f"the agent takes observations {agent.frame_shape} and {agent.num_actions} "
                f"actions, the environment has {envs.frame_shape} and {envs.num_actions}"
            )
        self.generator = np.random.default_rng(action_seed)
        self.score = 0.0
        self.steps = 0
        self.frames = 0
        self.ended = False
        """It is over, or a limit of single games has cut it."""
        self.is_under_way = True
        self._cut = False
        self._envs = envs
        self._limit = limit
        # The agent sees what it saw in training: stacks of the same memory, which keeps no more
        # observations here than they need.
        self._memory = ReplayMemory(
            config.stack + 2,
            envs.frame_shape,
            envs.dtype,
            stack=config.stack,
            padding=config.padding,
        )
        self._memory.begin(envs.reset())
        self._after: list[tuple[int, float]] | None = [] if replays else None

    def write_stack(self, out: NDArray[np.generic]) -> None:
        """Write what the agent must see now to `out` [1, stack, *frame_shape]."""
        self._memory.stacks_into(out)

    @property
    def must_explore(self) -> bool:
        """Whether the stack would need padding, and the run had none."""
        return self._memory.padding == "reject" and bool(self._memory.needs_padding()[0])

    def step(self, action: int) -> None:
        """Play one step."""
        result = self._envs.step(np.array([action]))
        self._memory.append(
            result.actions,
            result.learning_rewards,
            result.frames,
            result.terminated,
            result.truncated,
        )
        self.score += float(result.rewards[0])
        self.steps += 1
        self.frames += int(result.frames_used[0])
        if self._after is not None:
            self._after.append((self.frames, self.score))
        over = bool(result.terminated[0])
        self.ended = over or bool(result.truncated[0]) or self.frames >= self._limit
        self._cut = self.ended and not over
        if self.ended:
            self.close()

    def game(self, frames: float = math.inf) -> Game:
        """The game up to the step that reached `frames` frames, or as far as it was played."""
        steps = self.steps
        if self._after is not None and frames < self.frames:
            steps = 1 + bisect_left(self._after, (frames, -math.inf))
        if steps < self.steps:
            reached, score = self._after[steps - 1]  # type: ignore[index]
            return Game(score, steps, reached, cut=True, interrupted=True)
        return Game(
            self.score,
            steps,
            self.frames,
            cut=self._cut or not self.ended,
            interrupted=not self.ended,
        )

    def close(self) -> None:
        """No more steps follow."""
        if self.is_under_way:
            self.is_under_way = False
            self._envs.close()


def game_seeds(seed: int, number: int) -> tuple[int, int]:
    """The seeds of the environment and of the exploration in game `number` of an evaluation."""
    environment, actions = np.random.SeedSequence(seed, spawn_key=(number,)).generate_state(2)
    return int(environment), int(actions)


class Policy:
    """Epsilon-greedy steps of several games at once.

    The network sees them in blocks of always the same size: the last bits of what it computes
    depend on the size of a batch, but not on what else is in it, nor on the place in it.
    """

    _BLOCK = 4

    def __init__(
        self, agent: Agent, epsilon: float | None, spectator: Spectator | None = None
    ) -> None:
        self.epsilon = agent.config.evaluation_epsilon if epsilon is None else epsilon
        if not 0 <= self.epsilon <= 1:
            raise UserError(f"epsilon={self.epsilon}: expected a number from 0 to 1")
        self._agent = agent
        self._spectator = spectator
        self._block = empty_stacks(
            self._BLOCK, agent.config.stack, agent.frame_shape, agent.dtype
        ).zero_()
        self._rows = self._block.numpy()

    def step(self, plays: Sequence[Play]) -> None:
        """Choose and play one action in each game."""
        explores = [(play.generator.random() < self.epsilon) | play.must_explore for play in plays]
        actions = [int(play.generator.integers(self._agent.num_actions)) for play in plays]
        if self._spectator is None:
            asked = [i for i, random in enumerate(explores) if not random]
        else:
            asked = list(range(len(plays)))
        values = self.values([plays[i] for i in asked])
        for i, greatest in zip(asked, values.argmax(1).tolist(), strict=True):
            if not explores[i]:
                actions[i] = greatest
        for i, (play, action) in enumerate(zip(plays, actions, strict=True)):
            play.step(action)
            if self._spectator is not None:
                self._spectator.see(play, values[i], action)

    @torch.inference_mode()
    def values(self, plays: Sequence[Play]) -> NDArray[np.float32]:
        """What the agent thinks of each action in each game now: [len(plays), A]."""
        values = np.empty((len(plays), self._agent.num_actions), np.float32)
        for start in range(0, len(plays), self._BLOCK):
            block = plays[start : start + self._BLOCK]
            for row, play in enumerate(block):
                play.write_stack(self._rows[row : row + 1])
            out = self._agent.network(self._block.to(self._agent.device))
            values[start : start + len(block)] = out[: len(block)].cpu().numpy()
        return values
