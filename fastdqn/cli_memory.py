"""The command `fastdqn-memory`: how much memory replay takes for games, and what fits here.

Each game's rows are shown as soon as they are measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fastdqn.command import Parser, StopSignals, run_command, whole_number
from fastdqn.errors import UserError
from fastdqn.units import bytes_text

if TYPE_CHECKING:
    from fastdqn.memory_use import StoreUse

__all__ = ["memory_main"]

_PROGRAM = "fastdqn-memory"


def memory_main(argv: Sequence[str] | None = None) -> int:
    """Run the command with `argv` (none: the process's arguments); returns the exit status."""
    return run_command(_PROGRAM, _measure, argv)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog=_PROGRAM,
        description="Play games, at random or as a trained agent does, and measure what their "
        "frames take in a replay memory: raw, compressed, and compressed in files.",
    )
    add = parser.add_argument
    add("games", nargs="+", metavar="GAME", help="Atari games, such as Breakout")
    add("--frames", type=whole_number, default=10_000, metavar="N",
        help="frames to store of each game, one a step (default: 10,000)")  # fmt: skip
    add("--agent", type=Path, metavar="RUN",
        help="a run's folder, or a model's file, that plays (default: at random)")  # fmt: skip
    add("--seed", type=whole_number, default=0, metavar="S",
        help="determines what is played (default: 0)")  # fmt: skip
    add("--json", action="store_true", help="print JSON in place of the table")
    arguments = parser.parse_args(argv)
    for name, least in (("frames", 100), ("seed", 0)):
        if (value := getattr(arguments, name)) < least:
            raise UserError(f"--{name} {value}: expected {least} or more")
    return arguments


def _measure(argv: Sequence[str], stop: StopSignals) -> None:
    arguments = _parse(argv)
    from fastdqn.budget import transitions_that_fit
    from fastdqn.checkpoint import load_agent
    from fastdqn.envs.games import resolve_game
    from fastdqn.memory_use import measure_game

    games = [resolve_game(game) for game in arguments.games]  # all of them, before any is played
    agent = None if arguments.agent is None else load_agent(arguments.agent, "cpu")
    rows: list[dict[str, object]] = []
    for game in games:
        if stop():
            break
        uses = measure_game(game, arguments.frames, seed=arguments.seed, agent=agent, stop=stop)
        for use in uses:
            fits = transitions_that_fit(use.million_memory_bytes / 1e6)
            if not arguments.json:
                print(_row(use, fits, heading=not rows), flush=True)
            rows.append({**dataclasses.asdict(use), "fits_here": fits})
    if arguments.json:
        print(json.dumps(rows, indent=2))


_COLUMNS = f"{'game':<18}{'store':<11}{'bytes/frame':>12}{'sample(32)':>12}"
_HEADING = f"{_COLUMNS}{'a million':>11}{'fits here':>15}"


def _row(use: StoreUse, fits: int, *, heading: bool) -> str:
    row = (
        f"{use.game:<18}{use.store:<11}{use.frame_bytes:>12,.0f}"
        f"{use.sample_microseconds:>9,.0f} µs{bytes_text(use.million_bytes):>11}{fits:>15,}"
    )
    return f"{_HEADING}\n{row}" if heading else row
