"""Does a preset solve classic control? Trains from several seeds and evaluates what came out.

    python benchmarks/classic_control.py                          # all, seeds 0 to 4
    python benchmarks/classic_control.py Acrobot-v1 --seeds 7 8 --set n_step=5

Every run is that of `fastdqn-train --env ENV --seed SEED`, to its end; the agent at its end, never
the best on the way, plays 100 games of `fastdqn.evaluate`, greedily. Prints a table in Markdown, a
row as soon as its run is over.
"""

from __future__ import annotations

import argparse
import ast
import platform
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import torch

import fastdqn

# An environment is solved at gymnasium's own threshold: 475, -100 and -110 for these.
ENVS = ("CartPole-v1", "Acrobot-v1", "MountainCar-v0")
GAMES = 100


def run(env: str, seed: int, changes: dict[str, Any]) -> tuple[int, float, fastdqn.Agent]:
    """Train; returns steps, minutes and the agent."""
    from fastdqn.trainer import Trainer

    given = {"out": None, "evaluation_period_steps": None, "log_period_steps": 10_000}
    trainer = Trainer(fastdqn.Config.preset("classic", env=env, seed=seed, **{**given, **changes}))
    began = time.monotonic()
    for _ in trainer.run():
        pass
    return trainer.counters.steps, (time.monotonic() - began) / 60, trainer.agent()


def main(
    argv: Sequence[str] | None = None, say: Callable[[str], None] = lambda line: print(line)
) -> int:
    """Returns the number of environments that fewer than four fifths of the seeds solved."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("envs", nargs="*", metavar="ENV", default=list(ENVS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    parser.add_argument("--games", type=int, default=GAMES)
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", dest="changes")
    arguments = parser.parse_args(argv)
    changes = {name: _value(text) for name, text in (c.split("=", 1) for c in arguments.changes)}

    command = ["python", "benchmarks/classic_control.py", *(sys.argv[1:] if argv is None else argv)]
    say(
        f"`{shlex.join(command)}` on {platform.machine()}, one thread a run, torch "
        f"{torch.__version__}, gymnasium {gymnasium.__version__}:\n"
    )
    say(f"| environment | seed | steps | minutes | mean of {arguments.games} games | solved |")
    say("| --- | ---: | ---: | ---: | ---: | --- |")
    failed = 0
    for env in arguments.envs:
        threshold = gymnasium.spec(env).reward_threshold
        assert threshold is not None, f"{env} has no threshold"
        solved = 0
        for seed in arguments.seeds:
            steps, minutes, agent = run(env, seed, changes)
            mean = fastdqn.evaluate(agent, episodes=arguments.games).mean
            solved += mean >= threshold
            said = "yes" if mean >= threshold else "no"
            say(f"| {env} | {seed} | {steps:,} | {minutes:.1f} | {mean:.1f} | {said} |")
        failed += solved < 0.8 * len(arguments.seeds)
    return failed


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.exit(main())
