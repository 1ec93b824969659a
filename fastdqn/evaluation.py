"""Playing games with a trained agent, apart from any training.

Own environments, own generators, own exploration: training is the same with and without it. A game
always ends, at the latest at a frame limit, and one that was cut is marked.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from fastdqn.actor import Actor
from fastdqn.agent import Agent
from fastdqn.envs.make import EnvFunction, make_envs
from fastdqn.errors import UserError
from fastdqn.networks import empty_stacks
from fastdqn.replay import ReplayMemory

__all__ = ["Evaluation", "Game", "evaluate"]


@dataclasses.dataclass(frozen=True)
class Game:
    """One game from its first frame with all lives to its end."""

    score: float
    """Sum of its raw rewards."""
    steps: int
    frames: int
    cut: bool
    """A limit ended it, not the game itself."""


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The games of one evaluation, at least one."""

    games: tuple[Game, ...]
    epsilon: float

    @property
    def mean(self) -> float:
        """Mean score."""
        return float(np.mean([game.score for game in self.games]))

    @property
    def standard_deviation(self) -> float:
        """Of the scores."""
        return float(np.std([game.score for game in self.games]))


def evaluate(
    agent: Agent,
    episodes: int = 30,
    max_frames: int | None = None,
    *,
    epsilon: float | None = None,
    seed: int = 0,
    env_fn: EnvFunction | None = None,
) -> Evaluation:
    """Play `episodes` games, each until the step that reaches `max_frames` frames at the latest
    (none: the run's own limit).

    `epsilon` is the probability of a random action (none: the config's `evaluation_epsilon`).
    Raises `UserError` for settings out of range.
    """
    limit = agent.config.max_episode_frames if max_frames is None else max_frames
    probability = agent.config.evaluation_epsilon if epsilon is None else epsilon
    if episodes < 1 or limit < 1:
        raise UserError(f"episodes={episodes}, max_frames={limit}: expected 1 or more of each")
    if not 0 <= probability <= 1:
        raise UserError(f"epsilon={probability}: expected a number from 0 to 1")
    environment_seed, action_seed = np.random.SeedSequence(seed).generate_state(2)
    config = agent.config
    envs = make_envs(
        env_fn or config.env, config.game, 1, seed=int(environment_seed), **config.game_options()
    )
    try:
        if (envs.frame_shape, envs.num_actions) != (agent.frame_shape, agent.num_actions):
            raise UserError(
                f"the agent takes observations {agent.frame_shape} and {agent.num_actions} "
                f"actions, the environment has {envs.frame_shape} and {envs.num_actions}"
            )
        # The agent sees what it saw in training: stacks of the same memory, which keeps no more
        # observations here than they need.
        stack = config.stack
        memory = ReplayMemory(
            stack + 2, envs.frame_shape, envs.dtype, stack=stack, padding=config.padding
        )
        actor = Actor(
            agent.network,
            memory,
            empty_stacks(1, stack, envs.frame_shape, envs.dtype),
            num_actions=envs.num_actions,
            device=agent.device,
            epsilon=lambda _: probability,
            reject_padding=config.padding == "reject",
            generator=np.random.default_rng(action_seed),
        )

        games = []
        for _ in range(episodes):
            memory.begin(envs.reset())
            score, steps, frames = 0.0, 0, 0
            ended = False
            while not ended and frames < limit:
                result = envs.step(actor.act(steps))
                memory.append(
                    actions=np.zeros(1, np.int64),
                    rewards=result.learning_rewards,
                    frames=result.frames,
                    terminated=result.terminated,
                    truncated=result.truncated,
                )
                score += float(result.rewards[0])
                steps += 1
                frames += int(result.frames_used[0])
                ended = bool(result.terminated[0] or result.truncated[0])
            games.append(Game(score, steps, frames, cut=not (ended and result.terminated[0])))
        return Evaluation(tuple(games), probability)
    finally:
        envs.close()
