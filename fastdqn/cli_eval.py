"""The command `fastdqn-eval`: plays games with a trained agent and says how good it is.

Each game is shown as soon as it and those before it are over. Ctrl-C ends it with what was played.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastdqn.command import Parser, StopSignals, or_none, run_command, whole_number
from fastdqn.errors import UserError
from fastdqn.scores import HUMAN_SOURCE, Evaluation, Game, human_normalised

if TYPE_CHECKING:
    from fastdqn.agent import Agent

__all__ = ["eval_main"]

_PROGRAM = "fastdqn-eval"
_EPISODES = 30


def eval_main(argv: Sequence[str] | None = None) -> int:
    """Run the command with `argv` (none: the process's arguments); returns the exit status."""
    return run_command(_PROGRAM, _evaluate, argv)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog=_PROGRAM,
        description="Play whole games with a trained agent. Scores are raw. Ctrl-C ends it with "
        "what was played.",
    )
    number = or_none(whole_number, "a whole number")
    probability = or_none(float, "a number")
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="a run's folder, or a model's file")
    add("--episodes", type=number, default=argparse.SUPPRESS, metavar="N",
        help=f"games to play (default: {_EPISODES}; with --frames as many as it takes, with "
        "--video 1)")  # fmt: skip
    add("--frames", type=number, metavar="M",
        help="end after this many frames of all games together")  # fmt: skip
    add("--max-episode-frames", type=number, metavar="M",
        help="limit of each single game (default: as in the run)")  # fmt: skip
    add("--epsilon", type=probability, metavar="E",
        help="probability of a random action (default: the run's evaluation_epsilon)")  # fmt: skip
    add("--seed", type=whole_number, default=0, metavar="S",
        help="determines every game (default: 0)")  # fmt: skip
    add(
        "--device", default="auto", help="cpu, cuda, cuda:1, ... (default: CUDA where there is one)"
    )
    add("--video", type=Path, metavar="FILE",
        help="film the games, with the agent's values beside the screen: a name that ends in .mp4 "
        "or .gif")  # fmt: skip
    add("--csv", type=Path, metavar="FILE", help="write a row a game to this file")
    add("--json", action="store_true", help="print JSON in place of the table")
    arguments = parser.parse_args(argv)
    if arguments.seed < 0:
        raise UserError(f"--seed {arguments.seed}: expected 0 or more")
    if not hasattr(arguments, "episodes"):
        unbounded = arguments.frames is not None
        arguments.episodes = 1 if arguments.video else None if unbounded else _EPISODES
    return arguments


def _evaluate(argv: Sequence[str], stop: StopSignals) -> None:
    arguments = _parse(argv)
    import torch

    from fastdqn.checkpoint import load_agent
    from fastdqn.evaluation import evaluate
    from fastdqn.video import record

    agent = load_agent(arguments.run, arguments.device)
    config = agent.config
    if config.game is None and config.env is None:
        raise UserError(
            f"{arguments.run}: it was trained in an environment that a script made; evaluate it "
            "in a script too, with fastdqn.evaluate(agent, env_fn=...)"
        )
    torch.set_num_threads(config.threads or torch.get_num_threads())
    epsilon = config.evaluation_epsilon if arguments.epsilon is None else arguments.epsilon
    if not arguments.json:
        print(_heading(agent, arguments.episodes, epsilon, arguments.seed), flush=True)
    table = _Table(shown=not arguments.json)
    play = evaluate if arguments.video is None else partial(record, path=arguments.video)
    evaluation = play(
        agent,
        episodes=arguments.episodes,
        max_frames=arguments.frames,
        max_episode_frames=arguments.max_episode_frames,
        epsilon=epsilon,
        seed=arguments.seed,
        stop=stop,
        on_game=table.add,
    )
    if arguments.csv is not None:
        _write_csv(arguments.csv, evaluation)
    if arguments.json:
        print(json.dumps(_as_json(evaluation, arguments.seed), indent=2))
    else:
        print(_summary(evaluation), flush=True)


def _heading(agent: Agent, episodes: int | None, epsilon: float, seed: int) -> str:
    protocol = agent.protocol
    games = "" if episodes is None else f"{episodes} game{'s' * (episodes != 1)}, "
    shown = [f"{protocol.get('game')}: {games}epsilon {epsilon:g}, seed {seed}"]
    for name in ("frame_skip", "sticky_actions", "noop_max", "max_episode_frames"):
        if name in protocol:
            shown.append(f"{name} {protocol[name]:,}")
    return ", ".join(shown)


class _Table:
    """A row a game, printed at once: evaluations may take hours."""

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown
        self._rows = 0

    def add(self, game: Game) -> None:
        if not self._shown:
            return
        if not self._rows:
            print(f"\n{'game':>6}{'score':>12}{'steps':>10}{'frames':>11}")
        self._rows += 1
        row = f"{self._rows:>6}{game.score:>12,.6g}{game.steps:>10,}{game.frames:>11,}"
        print(f"{row}  {_ending(game)}".rstrip(), flush=True)


def _ending(game: Game) -> str:
    """A note on how the game ended; empty where it was over."""
    if game.interrupted:
        return "interrupted"
    return "cut at its limit" if game.cut else ""


def _summary(evaluation: Evaluation) -> str:
    counted = evaluation.counted
    low, high = evaluation.interval
    interval = f"   (95 % interval {low:,.4g} to {high:,.4g})" if len(counted) > 1 else ""
    lines = [
        "",
        f"{len(counted):,} {'game' if len(counted) == 1 else 'games'}, "
        f"{sum(game.frames for game in evaluation.games):,} frames",
        f"mean                {evaluation.mean:,.6g}{interval}",
        f"median              {evaluation.median:,.6g}",
        f"standard deviation  {evaluation.standard_deviation:,.4g}",
        f"lowest, highest     {evaluation.scores.min():,.6g}, {evaluation.scores.max():,.6g}",
    ]
    scaled = evaluation.human_normalised
    if scaled is not None:
        lines.append(
            f"human-normalised    {scaled:.1%}   (0 % random, 100 % human: {HUMAN_SOURCE})"
        )
    cut = sum(game.cut and not game.interrupted for game in evaluation.games)
    if cut:
        were = "was cut at its limit" if cut == 1 else "were cut at their limit"
        lines.append(f"{cut} of them {were}" if len(counted) > 1 else f"it {were}")
    interrupted = len(evaluation.games) - len(counted)
    if interrupted:
        lines.append(f"games interrupted at the end, and not counted: {interrupted}")
    elif counted[0].interrupted:
        lines.append("no game was played to its end")
    return "\n".join(lines)


def _as_json(evaluation: Evaluation, seed: int) -> dict[str, Any]:
    low, high = evaluation.interval
    return {
        "game": evaluation.title,
        "epsilon": evaluation.epsilon,
        "seed": seed,
        "episodes": len(evaluation.counted),
        "mean": evaluation.mean,
        "median": evaluation.median,
        "standard_deviation": evaluation.standard_deviation,
        "mean_interval_95": [low, high],
        "human_normalised": evaluation.human_normalised,
        "human_normalised_source": None
        if human_normalised(evaluation.title, 0) is None
        else HUMAN_SOURCE,
        "games": [vars(game) for game in evaluation.games],
    }


def _write_csv(path: Path, evaluation: Evaluation) -> None:
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(("game", "score", "steps", "frames", "cut", "interrupted"))
            for number, game in enumerate(evaluation.games, 1):
                writer.writerow(
                    (number, f"{game.score:.10g}", game.steps, game.frames, int(game.cut),
                     int(game.interrupted))
                )  # fmt: skip
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None
