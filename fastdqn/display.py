"""What a run looks like in a terminal: a live panel, or one line a report where there is none."""

from __future__ import annotations

import math
import textwrap
import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fastdqn.metrics import Counters, EvaluationReport, Report
from fastdqn.units import bytes_text, share_text

__all__ = ["Display", "LiveDisplay", "PlainDisplay", "describe", "make_display"]


class Display(Protocol):
    """Shows reports between entering and leaving it."""

    def __enter__(self) -> Display: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def show(self, report: Report) -> None:
        """Show a new report."""


def make_display(title: str, counters: Counters) -> Display:
    """The display that fits standard output; `counters` are watched as the run moves them."""
    console = Console()
    return LiveDisplay(title, counters, console) if console.is_terminal else PlainDisplay()


class PlainDisplay:
    """One line a report."""

    def __init__(self) -> None:
        self._forecast = _Forecast()

    def __enter__(self) -> PlainDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, report: Report) -> None:
        """See `Display`."""
        self._forecast.add(report)
        figures = [f"{name} {value}" for name, value in _figures(report).items()]
        done = f"{report.fraction:.1%}, {self._forecast.text} left"
        print(f"step {report.steps:,} ({done}):", ", ".join(figures), flush=True)
        for evaluation in report.evaluations:
            print(_evaluation_line(evaluation), flush=True)


class LiveDisplay:
    """A panel that is drawn anew twice a second, however rare reports are."""

    def __init__(self, title: str, counters: Counters, console: Console) -> None:
        self._title = title
        self._counters = counters
        self._report: Report | None = None
        self._evaluations: dict[bool, EvaluationReport] = {}  # the last of each policy
        self._forecast = _Forecast()
        self._live = Live(get_renderable=self._render, refresh_per_second=2, console=console)

    def __enter__(self) -> LiveDisplay:
        self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self, report: Report) -> None:
        """See `Display`."""
        self._forecast.add(report)
        self._report = report
        for evaluation in report.evaluations:
            self._evaluations[evaluation.baseline] = evaluation

    def _render(self) -> RenderableType:
        report = self._report
        fraction = 0.0 if report is None else report.fraction
        bar = Table.grid(padding=(0, 2))
        bar.add_row(
            Text(self._title, style="bold", no_wrap=True),
            ProgressBar(total=1, completed=fraction, width=24),
            f"{fraction:.1%}",
            f"step {self._counters.steps:,}",
            f"{self._forecast.text} left",
        )
        if report is None:
            return bar
        cells = [
            Text.assemble((f"{name} ", "dim"), value) for name, value in _figures(report).items()
        ]
        figures = Columns(cells, padding=(0, 2))  # as many a line as the terminal has room for
        lines = [Text(_evaluation_line(last)) for last in self._evaluations.values()]
        return Group(bar, figures, *lines)


class _Forecast:
    """The time that is left, by the pace of the last reports: the warm-up's pace misleads."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, float]] = deque(maxlen=20)

    def add(self, report: Report) -> None:
        if report.updates == 0:
            self._marks.clear()
        self._marks.append((time.monotonic(), report.fraction))

    @property
    def text(self) -> str:
        """Such as 2:13:05, or ? where nothing is known yet."""
        if not self._marks:
            return "?"
        (began, done_then), (now, done) = self._marks[0], self._marks[-1]
        if done <= done_then:
            return "?"
        seconds = int((1 - done) * (now - began) / (done - done_then))
        days, seconds = divmod(seconds, 86_400)
        clock = f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        return f"{days} d {clock}" if days else clock


def _figures(report: Report) -> dict[str, str]:
    """What a report shows, ready to print."""
    return {
        "frames": f"{report.frames:,}",
        "games": f"{report.episodes:,}",
        "mean of last 100 scores": _number(report.mean_score, ".2f"),
        "epsilon": f"{report.epsilon:.3f}",
        "loss": _number(report.loss, ".3g"),
        "mean Q": _number(report.mean_q, ".3g"),
        "frames/s": f"{report.frames_per_second:,.0f}",
        "updates/s": f"{report.updates_per_second:,.1f}",
        "memory": bytes_text(report.resident_bytes),
        "replay": share_text(report.replay_bytes, report.replay_full_bytes),
        "bytes/observation": f"{report.replay_frame_bytes:,.0f}",
        "median age": f"{report.replay_median_age:,}",
        "oldest": f"{report.replay_oldest_age:,}",
    }


def _evaluation_line(report: EvaluationReport) -> str:
    """Such as: evaluation at step 250,000: mean score 12.30 (9.10 to 15.20) of 10 games."""
    evaluation, (low, high) = report.evaluation, report.evaluation.interval
    who = "random policy" if report.baseline else f"evaluation at step {report.steps:,}"
    games = len(evaluation.counted)
    line = (
        f"{who}: mean score {evaluation.mean:,.2f} ({low:,.2f} to {high:,.2f}) of {games} "
        f"{'game' if games == 1 else 'games'}"
    )
    if evaluation.human_normalised is not None:
        line += f", {evaluation.human_normalised:.1%} human-normalised"
    if not (report.baseline or math.isnan(report.held_out_max_q)):
        line += f", held-out max Q {report.held_out_max_q:.3g}"
    return line


def _number(value: float, form: str) -> str:
    return "-" if math.isnan(value) else format(value, form)


def describe(protocol: Mapping[str, Any], *settings: Mapping[str, Any]) -> str:
    """The protocol, and the settings that it does not name: given, the preset's, the defaults."""
    played = {"game": protocol["game"], **protocol}
    del played["preset"]
    groups = {"played": played}
    for heading, values in zip(("given", "preset", "defaults"), settings, strict=True):
        groups[heading] = {name: values[name] for name in values if name not in played}
    return "\n".join(_paragraph(heading, values) for heading, values in groups.items() if values)


def _paragraph(heading: str, values: Mapping[str, Any]) -> str:
    """`name=value ...` in lines of at most 80 columns, behind the heading."""
    items = [f"{name}={_plain(value)}" for name, value in values.items()]
    # A value with spaces in it is broken only where it is a list.
    unbroken = [
        item if isinstance(value, (list, tuple)) else item.replace(" ", "\0")
        for item, value in zip(items, values.values(), strict=True)
    ]
    lines = textwrap.wrap(
        " ".join(unbroken),
        _COLUMNS,
        initial_indent=f"{heading:<10}",
        subsequent_indent=" " * 10,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace("\0", " ")


_COLUMNS = 80


def _plain(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    if value is None:
        return "none"
    return f"{value:,}" if type(value) is int and value >= 10_000 else str(value)
