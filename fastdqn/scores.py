"""The games of an evaluation and what they say: mean, median, spread, an interval, a human's scale.

Scores are raw and per game. A game that was interrupted says nothing about how games end, so it is
left out of every figure, unless there is no other. Nothing here plays or knows how it was played.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

__all__ = ["HUMAN_SOURCE", "Evaluation", "Game", "human_normalised", "mean_interval"]


@dataclass(frozen=True)
class Game:
    """One game from its first frame with all lives to its end."""

    score: float
    """Sum of its raw rewards."""
    steps: int
    frames: int
    cut: bool
    """A limit ended it, not the game itself."""
    interrupted: bool = False
    """That limit was the end of the evaluation, so the game might have gone on by its own rules."""


@dataclass(frozen=True)
class Evaluation:
    """The games of one evaluation, at least one, in the order of their numbers."""

    games: tuple[Game, ...]
    epsilon: float
    """Probability of a random action."""
    title: str = ""
    """The game's name; empty: not known."""

    @property
    def counted(self) -> tuple[Game, ...]:
        """The games that the figures are made of."""
        whole = tuple(game for game in self.games if not game.interrupted)
        return whole or self.games

    @property
    def scores(self) -> NDArray[np.float64]:
        """[number of games counted], raw."""
        return np.array([game.score for game in self.counted], np.float64)

    @property
    def mean(self) -> float:
        """Mean score."""
        return float(self.scores.mean())

    @property
    def median(self) -> float:
        """Median score."""
        return float(np.median(self.scores))

    @property
    def standard_deviation(self) -> float:
        """Of the scores, estimated from this sample of games (divisor n - 1); 0 for one game."""
        scores = self.scores
        return float(scores.std(ddof=1)) if len(scores) > 1 else 0.0

    @cached_property
    def interval(self) -> tuple[float, float]:
        """In which the mean of many more games lies, by `mean_interval`."""
        return mean_interval(self.scores)

    @property
    def human_normalised(self) -> float | None:
        """The mean where 0 is a random player's and 1 a human's (see `HUMAN_SOURCE`)."""
        return human_normalised(self.title, self.mean)


def mean_interval(scores: Sequence[float] | NDArray[np.float64]) -> tuple[float, float]:
    """A 95 % bootstrap interval of the mean: between what 2.5 % and 97.5 % of 10,000 resamples,
    drawn with replacement from the given scores by a generator of its own, have as their mean."""
    values = np.asarray(scores, np.float64)
    generator = np.random.default_rng(0)
    # In portions: some evaluations have very many games.
    portions = [generator.choice(values, (500, len(values))).mean(1) for _ in range(20)]
    low, high = np.quantile(np.concatenate(portions), (0.025, 0.975))
    return float(low), float(high)


def human_normalised(title: str, score: float) -> float | None:
    """The score where 0 is a random player's and 1 a human's; None for a game without figures.

    `title` is a game's name in any case, with or without spaces.
    """
    known = _HUMAN.get(re.sub(r"[^a-z0-9]", "", title.lower()))
    if known is None:
        return None
    random, human = known
    return (score - random) / (human - random)


HUMAN_SOURCE = "Wang et al. 2016 (Dueling network architectures), games with up to 30 no-ops"
"""Where the scores of a random player and of a human professional tester come from."""

# Game: mean score of a random player, of a human.
_HUMAN: dict[str, tuple[float, float]] = {
    "alien": (227.8, 7127.7),
    "amidar": (5.8, 1719.5),
    "assault": (222.4, 742.0),
    "asterix": (210.0, 8503.3),
    "asteroids": (719.1, 47388.7),
    "atlantis": (12850.0, 29028.1),
    "bankheist": (14.2, 753.1),
    "battlezone": (2360.0, 37187.5),
    "beamrider": (363.9, 16926.5),
    "berzerk": (123.7, 2630.4),
    "bowling": (23.1, 160.7),
    "boxing": (0.1, 12.1),
    "breakout": (1.7, 30.5),
    "centipede": (2090.9, 12017.0),
    "choppercommand": (811.0, 7387.8),
    "crazyclimber": (10780.5, 35829.4),
    "defender": (2874.5, 18688.9),
    "demonattack": (152.1, 1971.0),
    "doubledunk": (-18.6, -16.4),
    "enduro": (0.0, 860.5),
    "fishingderby": (-91.7, -38.7),
    "freeway": (0.0, 29.6),
    "frostbite": (65.2, 4334.7),
    "gopher": (257.6, 2412.5),
    "gravitar": (173.0, 3351.4),
    "hero": (1027.0, 30826.4),
    "icehockey": (-11.2, 0.9),
    "jamesbond": (29.0, 302.8),
    "kangaroo": (52.0, 3035.0),
    "krull": (1598.0, 2665.5),
    "kungfumaster": (258.5, 22736.3),
    "montezumarevenge": (0.0, 4753.3),
    "mspacman": (307.3, 6951.6),
    "namethisgame": (2292.3, 8049.0),
    "phoenix": (761.4, 7242.6),
    "pitfall": (-229.4, 6463.7),
    "pong": (-20.7, 14.6),
    "privateeye": (24.9, 69571.3),
    "qbert": (163.9, 13455.0),
    "riverraid": (1338.5, 17118.0),
    "roadrunner": (11.5, 7845.0),
    "robotank": (2.2, 11.9),
    "seaquest": (68.4, 42054.7),
    "skiing": (-17098.1, -4336.9),
    "solaris": (1236.3, 12326.7),
    "spaceinvaders": (148.0, 1668.7),
    "stargunner": (664.0, 10250.0),
    "surround": (-10.0, 6.5),
    "tennis": (-23.8, -8.3),
    "timepilot": (3568.0, 5229.2),
    "tutankham": (11.4, 167.6),
    "upndown": (533.4, 11693.2),
    "venture": (0.0, 1187.5),
    "videopinball": (16256.9, 17667.9),
    "wizardofwor": (563.5, 4756.5),
    "yarsrevenge": (3092.9, 54576.9),
    "zaxxon": (32.5, 9173.3),
}
