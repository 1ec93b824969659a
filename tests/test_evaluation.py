"""Evaluation: which games are played, what ends them, and what is said about them."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from small_envs import FixedLength
from torch import Tensor, nn

from fastdqn.agent import Agent
from fastdqn.config import Config
from fastdqn.errors import UserError
from fastdqn.evaluation import Evaluation, Game, evaluate
from fastdqn.networks import build_network
from fastdqn.scores import human_normalised, mean_interval


class Constant(nn.Module):
    """Values the actions the same whatever it sees: always the same action, greedily."""

    def __init__(self, values: list[float]) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.tensor(values))

    def forward(self, stacks: Tensor) -> Tensor:
        return self.values.expand(len(stacks), -1)


def always(action: int, config: Config, shape: tuple[int, ...], num_actions: int) -> Agent:
    values = [float(i == action) for i in range(num_actions)]
    return Agent(
        Constant(values),
        config,
        frame_shape=shape,
        dtype="uint8" if len(shape) == 2 else "float32",
        num_actions=num_actions,
        protocol={"game": config.game or config.env},
        device=torch.device("cpu"),
    )


def breakout(**settings: Any) -> Agent:
    """Never fires: no game of it ever ends by itself."""
    return always(0, Config(game="Breakout", **settings), (84, 84), 4)


def cartpole() -> Agent:
    """Seeded weights, so games of many lengths."""
    config = Config.preset("classic", env="CartPole-v1", evaluation_epsilon=0.1)
    torch.manual_seed(1)
    return Agent(
        build_network((4,), 2, **config.network_options()),
        config,
        frame_shape=(4,),
        dtype="float32",
        num_actions=2,
        protocol={"game": "CartPole-v1"},
        device=torch.device("cpu"),
    )


def countdown(lengths: list[int], **settings: Any) -> tuple[Evaluation, int]:
    """The evaluation of games of these lengths, whose steps are worth a game's number, and how many
    of them were begun."""
    made: list[FixedLength] = []

    def make() -> FixedLength:
        made.append(FixedLength(lengths[len(made) % len(lengths)], len(made) + 1))
        return made[-1]

    agent = always(0, Config(stack=1), (2,), 2)
    return evaluate(agent, env_fn=make, **settings), len(made)


def whole(number: int, length: int) -> Game:
    return Game(number * length, length, length, cut=False)


def stopped(number: int, length: int) -> Game:
    return Game(number * length, length, length, cut=True, interrupted=True)


LENGTHS = [5, 1, 40, 2, 7, 7, 1, 30, 3, 100] * 3


@pytest.mark.parametrize("side_by_side", [1, 2, 8, 30])
def test_games_asked_for_are_the_first_ones_not_the_short_ones(side_by_side: int) -> None:
    found, begun = countdown(LENGTHS, episodes=20, side_by_side=side_by_side)
    assert found.games == tuple(whole(i + 1, LENGTHS[i]) for i in range(20))
    assert begun == 20


@pytest.mark.parametrize("side_by_side", [1, 2, 8, 30])
@pytest.mark.parametrize("frames", [*range(1, 60), 92, 93, 94, 95, 99, 196, 197])
def test_a_budget_of_frames_is_that_of_the_games_one_after_another(
    frames: int, side_by_side: int
) -> None:
    expected, left = [], frames
    for i, length in enumerate(LENGTHS):
        if left <= 0:
            break
        expected.append(whole(i + 1, length) if length <= left else stopped(i + 1, left))
        left -= length
    found, _ = countdown(LENGTHS, episodes=None, max_frames=frames, side_by_side=side_by_side)
    assert found.games == tuple(expected)
    both, _ = countdown(LENGTHS, episodes=3, max_frames=frames, side_by_side=side_by_side)
    assert both.games == tuple(expected[:3])


def test_the_limit_of_a_game_and_of_the_evaluation_are_two_things() -> None:
    found, _ = countdown([3, 50, 2, 60], episodes=4, max_episode_frames=20)
    cut = [Game(2 * 20, 20, 20, cut=True), Game(4 * 20, 20, 20, cut=True)]
    assert found.games == (whole(1, 3), cut[0], whole(3, 2), cut[1])
    assert found.counted == found.games
    found, _ = countdown([3, 50, 2, 60], episodes=4, max_episode_frames=20, max_frames=30)
    assert found.games == (whole(1, 3), cut[0], whole(3, 2), stopped(4, 5))
    assert found.mean == (3 + 40 + 6) / 3
    alone, _ = countdown([50], episodes=1, max_frames=30)
    assert alone.games == alone.counted == (stopped(1, 30),)
    assert alone.mean == 30


@pytest.mark.parametrize("limits", [{"max_episode_frames": 100}, {"max_frames": 200}])
def test_a_policy_that_never_ends_a_game_ends_at_its_cap(limits: dict[str, int]) -> None:
    found = evaluate(breakout(noop_max=0), episodes=2, epsilon=0.0, **limits)
    (frames,) = limits.values()
    assert {game.frames for game in found.games} == {frames}
    assert all(game.cut for game in found.games)
    assert len(found.games) == (2 if frames == 100 else 1)
    assert found.mean == 0


def test_atari_games_are_whole_distinct_and_the_same_side_by_side() -> None:
    agent = breakout()
    found = evaluate(agent, episodes=5, epsilon=1.0)
    assert found == evaluate(agent, episodes=5, epsilon=1.0, side_by_side=1)
    assert found.games[:3] == evaluate(agent, episodes=3, epsilon=1.0, side_by_side=2).games
    assert found != evaluate(agent, episodes=5, epsilon=1.0, seed=1)
    assert len(set(found.games)) > 2
    for game in found.games:
        assert not game.cut
        assert 400 < game.frames < 5_000
        assert 4 * game.steps - 4 < game.frames <= 4 * game.steps


@pytest.mark.parametrize("make", ["network", "vector"])
def test_a_network_plays_the_same_games_side_by_side(make: str) -> None:
    if make == "vector":
        agent = cartpole()
        options: dict[str, Any] = {"episodes": 11}
    else:
        config = Config(game="Pong", stack=2)
        agent = Agent(
            build_network((84, 84), 6, **config.network_options()),
            config,
            frame_shape=(84, 84),
            dtype="uint8",
            num_actions=6,
            protocol={"game": "Pong"},
            device=torch.device("cpu"),
        )
        options = {"episodes": 3, "max_episode_frames": 400, "epsilon": 0.1}
    found = [evaluate(agent, side_by_side=n, **options) for n in (1, 3, 8, 9)]
    assert found == [found[0]] * 4


def test_stopping_marks_the_games_under_way() -> None:
    steps = 0

    def stop() -> bool:
        nonlocal steps
        steps += 1
        return steps == 8

    found, _ = countdown([5, 20, 3, 30, 9], episodes=5, side_by_side=2, stop=stop)
    # Seven steps: 1 is over after 5, 2 goes on, 3 has begun.
    assert found.games == (whole(1, 5), stopped(2, 7), stopped(3, 2))
    nothing, _ = countdown([5, 20], episodes=2, stop=lambda: True)
    assert nothing.games == (stopped(1, 0),)
    assert nothing.mean == 0


def test_games_are_told_in_order_as_they_end() -> None:
    told: list[Game] = []
    found, _ = countdown([9, 1, 2, 4], episodes=4, on_game=told.append)
    assert tuple(told) == found.games


def test_padding_that_was_refused_in_training_is_refused_here() -> None:
    """While a stack would need padding, the agent acts at random, not by its one action."""
    played: list[int] = []

    class Recorder(FixedLength):
        def step(self, action: Any) -> Any:
            played.append(int(action))
            return super().step(action)

    agent = always(0, Config(stack=4, padding="reject"), (2,), 2)
    evaluate(agent, episodes=40, epsilon=0.0, env_fn=lambda: Recorder(6), side_by_side=1)
    steps = np.array(played).reshape(40, 6)
    assert (steps[:, 3:] == 0).all()
    assert 30 < steps[:, :3].sum() < 90


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"episodes": 0}, "episodes=0: expected 1 or more"),
        ({"max_frames": 0}, "max_frames=0"),
        ({"max_episode_frames": -1}, "max_episode_frames=-1"),
        ({"side_by_side": 0}, "side_by_side=0"),
        ({"epsilon": 1.5}, "epsilon=1.5: expected a number from 0 to 1"),
        ({"episodes": None}, "never ends"),
        ({"env_fn": lambda: gymnasium.make("Acrobot-v1")}, "takes observations"),
    ],
)
def test_what_cannot_be_evaluated(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        evaluate(cartpole(), **settings)


def test_figures_by_hand() -> None:
    games = tuple(Game(score, 1, 4, cut=False) for score in (1.0, 2.0, 6.0))
    found = Evaluation((*games, stopped(100, 1)), 0.05, "Breakout")
    assert found.mean == 3
    assert found.median == 2
    assert found.standard_deviation == pytest.approx(math.sqrt((4 + 1 + 9) / 2))
    assert found.human_normalised == pytest.approx((3 - 1.7) / (30.5 - 1.7))
    assert Evaluation(games[:1], 0.0).standard_deviation == 0
    assert Evaluation(games[:1], 0.0).interval == (1, 1)
    assert Evaluation(games, 0.0, "CartPole-v1").human_normalised is None


def test_the_interval_holds_the_mean_as_often_as_it_says() -> None:
    generator = np.random.default_rng(3)
    held = 0
    for _ in range(200):
        low, high = mean_interval(generator.exponential(1.0, 40))
        held += low <= 1.0 <= high
    # 95 % in theory for many games; a little less for 40 of a skewed kind.
    assert 175 <= held <= 198


@pytest.mark.parametrize("title", ["SpaceInvaders", "space_invaders", "Space Invaders"])
def test_a_humans_scale(title: str) -> None:
    assert human_normalised(title, 148.0) == 0
    assert human_normalised(title, 1668.7) == pytest.approx(1)


def test_every_game_with_a_humans_score_exists() -> None:
    from fastdqn.envs.games import resolve_game
    from fastdqn.scores import _HUMAN

    assert len(_HUMAN) == 57
    for game in _HUMAN:
        resolve_game(game)
