"""The command `fastdqn-plot`: draws the curves of runs, with published ones beside them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fastdqn.command import Parser, StopSignals, run_command, whole_number
from fastdqn.errors import UserError

__all__ = ["plot_main"]

_PROGRAM = "fastdqn-plot"


def plot_main(argv: Sequence[str] | None = None) -> int:
    """Run the command with `argv` (none: the process's arguments); returns the exit status."""
    return run_command(_PROGRAM, _plot, argv)


def _plot(argv: Sequence[str], stop: StopSignals) -> None:
    parser = Parser(
        prog=_PROGRAM,
        description="Draw the curves of runs. Those that differ in their seed alone are one curve: "
        "their mean, and a band from the lowest to the highest.",
    )
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="a run's folder")
    add("--out", type=Path, required=True, metavar="FILE", help="the picture: .png, .pdf, .svg")
    add("--axis", choices=("frames", "steps"), default="frames", help="(default: frames)")
    add("--label", action="append", default=[], metavar="TEXT",
        help="name of a curve; once for each, in their order")  # fmt: skip
    add("--title", metavar="TEXT", help="above the picture (default: the game)")
    add("--reference", type=Path, metavar="FILE", help="CSV file of published curves to add")
    add("--game", metavar="NAME", help="of the published curves (default: the runs')")
    add("--algo", action="append", default=[], metavar="NAME", help="only this algorithm's")
    add("--source", default="", metavar="TEXT", help="only those whose source contains this")
    add("--iteration-frames", type=whole_number, metavar="N",
        help="add the runs' mean scores over each N frames, as published points are")  # fmt: skip
    arguments = parser.parse_args(argv)
    if arguments.iteration_frames is not None and arguments.iteration_frames < 1:
        raise UserError(f"--iteration-frames {arguments.iteration_frames}: expected 1 or more")

    from fastdqn.plots import draw, group_runs, read_references, read_run

    groups = group_runs([read_run(folder) for folder in arguments.runs], arguments.label)
    references = []
    if arguments.reference is not None:
        game = arguments.game or groups[0].runs[0].game
        references = read_references(arguments.reference, game, arguments.algo, arguments.source)
    draw(
        groups,
        arguments.out,
        references,
        axis=arguments.axis,
        iteration_frames=arguments.iteration_frames,
        title=arguments.title,
    )
    print(f"{len(groups)} {'curve' if len(groups) == 1 else 'curves'} in {arguments.out}")
