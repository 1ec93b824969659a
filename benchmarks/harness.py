"""How this project measures: contenders take turns in one process, after their answers agree.

A contender does some work and says how much. A row lets contenders take turns, in alternating
order, so that whatever slows the machine down slows all of them; a ratio is formed turn by turn
and its median is given with its quartiles. The machine, the command and the unit stand beside every
number. A row whose answer is wrong is never timed.

It refuses to hide: a requirement that is missed is printed as missed, one whose contender could
not run is printed as not measured, and a busy machine is named.
"""

from __future__ import annotations

import gc
import importlib.metadata
import json
import operator
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

__all__ = [
    "OURS",
    "Contender",
    "Effort",
    "Requirement",
    "Row",
    "Spread",
    "WrongAnswer",
    "agree",
    "huge_page_bytes",
    "machine",
    "measure",
    "one_core",
    "print_machine",
    "print_requirements",
    "print_row",
    "repeat",
    "spread",
    "write_json",
]


OURS = "fastdqn"


class WrongAnswer(AssertionError):
    """A contender's result differs from the reference's."""


def agree(what: str, holds: bool | np.bool_) -> None:
    """Raises `WrongAnswer` naming `what` unless `holds`."""
    if not holds:
        raise WrongAnswer(what)


@dataclass(frozen=True)
class Effort:
    """How much time and memory to spend."""

    seconds: float
    """For the turns of one row."""
    training_seconds: float
    """For those of whole training runs."""
    training_turn_steps: int
    """Agent steps of one such turn."""
    capacities: tuple[int, ...]
    """Of the memories that are sampled from, in frames."""


@dataclass(frozen=True)
class Contender:
    """One way of doing a row's work."""

    name: str
    run: Callable[[], float]
    """Does the work once and returns how many of the row's units it did: frames, calls, steps."""
    core: int | None = None
    """The core to run on; None: wherever the process may."""


@dataclass(frozen=True)
class Spread:
    """A median with the quartiles around it."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """The median and quartiles of one or more values."""
    low, median, high = (float(v) for v in np.quantile(np.asarray(values), [0.25, 0.5, 0.75]))
    return Spread(median, low, high)


@dataclass(frozen=True)
class Requirement:
    """A bound on the median of some figures, which are formed turn by turn."""

    text: str
    figures: Callable[[], Sequence[float]]
    """The figures, none where they could not be measured."""
    bound: float
    at_most: bool
    unit: str

    def verdict(self) -> tuple[Spread | None, bool | None]:
        """The figures and whether the bound holds; None where not measured."""
        figures = self.figures()
        if not figures:
            return None, None
        found = spread(figures)
        compare = operator.le if self.at_most else operator.ge
        return found, compare(found.median, self.bound)


# What a row's figures are in. A rate is the inverse of a time: more is faster.
Unit = Literal["frames/s", "steps/s", "µs", "ms"]


@dataclass
class Row:
    """One question: how fast does fastdqn do this work, and how fast do the others?"""

    key: str
    title: str
    unit: Unit
    seconds: dict[str, list[float]] = field(default_factory=dict)
    """For each contender, the seconds per unit of work of every turn."""
    notes: list[str] = field(default_factory=list)
    requirements: list[Requirement] = field(default_factory=list)

    @property
    def is_rate(self) -> bool:
        """Whether a larger figure is a faster one."""
        return self.unit.endswith("/s")

    def figure(self, seconds: float) -> float:
        """The seconds per unit of work, in the row's unit."""
        return 1 / seconds if self.is_rate else {"µs": 1e6, "ms": 1e3}[self.unit] * seconds

    def figures(self, name: str) -> list[float]:
        """A contender's figure of every turn, in the row's unit; none where it did not run."""
        return [self.figure(seconds) for seconds in self.seconds.get(name, [])]

    def ratios(self, name: str) -> list[float]:
        """Our figure over another's, turn by turn."""
        return self._pairwise(operator.truediv, name)

    def differences(self, name: str) -> list[float]:
        """Our figure less another's, turn by turn."""
        return self._pairwise(operator.sub, name)

    def _pairwise(self, combine: Callable[[float, float], float], name: str) -> list[float]:
        theirs = self.figures(name)
        if not theirs:
            return []
        pairs = zip(self.figures(OURS), theirs, strict=True)
        return [combine(ours, other) for ours, other in pairs]

    def require_ratio(self, name: str, bound: float) -> None:
        """Our figure must be `bound` times the other's: at least (rates) or at most."""
        word = "at least" if self.is_rate else "at most"
        self.requirements.append(
            Requirement(
                f"{self.title}: {word} {bound:g} times {name}",
                lambda: self.ratios(name),
                bound,
                at_most=not self.is_rate,
                unit="times",
            )
        )


def measure(
    row: Row, contenders: Sequence[Contender], *, seconds: float, min_turns: int = 5
) -> None:
    """Lets the contenders take turns for about `seconds`, and writes their times into the row.

    Every contender runs once untimed first. Each round is one turn of each, every second round in
    reverse order. The garbage collector rests, as its runs would hit one contender by chance.
    """
    times: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for contender in contenders:
        _timed(contender)
    gc.collect()
    gc.disable()
    try:
        end = time.perf_counter() + seconds
        turns = 0
        while turns < min_turns or time.perf_counter() < end:
            for contender in contenders if turns % 2 == 0 else reversed(contenders):
                times[contender.name].append(_timed(contender))
            turns += 1
    finally:
        gc.enable()
    row.seconds.update(times)


def _timed(contender: Contender) -> float:
    with one_core(contender.core):
        start = time.perf_counter()
        amount = contender.run()
        return (time.perf_counter() - start) / amount


@contextmanager
def one_core(core: int | None) -> Iterator[None]:
    """Keeps the calling thread, and the threads it starts inside, on one core."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def repeat(call: Callable[[], object], times: int) -> Callable[[], float]:
    """A turn of `times` calls."""

    def run() -> float:
        for _ in range(times):
            call()
        return times

    return run


def machine() -> dict[str, Any]:
    """What the figures depend on: hardware, versions, threads, load, command."""
    return {
        "command": "python " + " ".join(_command()),
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "transparent_huge_pages": _bracketed("/sys/kernel/mm/transparent_hugepage/enabled"),
        "load_at_start": round(os.getloadavg()[0], 2),
        "torch_threads": torch.get_num_threads(),
        "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
        "commit": _commit(),
    }


_PACKAGES = ("fastdqn", "torch", "numpy", "gymnasium", "ale-py", "stable-baselines3")


def _command() -> list[str]:
    script, *arguments = sys.argv
    path = Path(script).resolve()
    root = Path(__file__).resolve().parents[1]
    return [str(path.relative_to(root)) if path.is_relative_to(root) else script, *arguments]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _bracketed(path: str) -> str | None:
    """The choice in brackets of a kernel's "always [madvise] never"."""
    try:
        return Path(path).read_text().split("[")[1].split("]")[0]
    except (OSError, IndexError):
        return None


def _commit() -> str | None:
    """The commit that is measured, with "+" where files differ from it."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=here, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def huge_page_bytes() -> int:
    """Bytes of this process's memory that lie in huge pages; 0 where the kernel does not say."""
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    sizes = [line.split()[1] for line in lines if line.startswith("AnonHugePages:")]
    return sum(1024 * int(kib) for kib in sizes)


def print_machine(console: Console, about: Mapping[str, Any]) -> None:
    """The machine line, and a warning where something else is running."""
    console.print(
        f"[bold]{about['command']}[/bold]\n"
        f"{about['cpu']}, {about['cores']} cores, {about['memory_gib']} GiB, "
        f"huge pages: {about['transparent_huge_pages']}; torch {about['torch']} "
        f"({about['torch_threads']} threads, {about['torch_cpu_capability']}), "
        f"numpy {about['numpy']}, ale-py {about['ale-py']}, python {about['python']}, "
        f"commit {about['commit']}",
        highlight=False,
    )
    if about["load_at_start"] > 0.5:
        console.print(
            f"[yellow]load {about['load_at_start']} at the start: something else is running, and "
            "these figures may not be quoted[/yellow]"
        )


def print_row(console: Console, row: Row) -> None:
    """One table: every contender's figure, and ours against it."""
    console.print(f"\n[bold]{escape(row.title)}[/bold]", highlight=False)
    if row.seconds:
        better = "more is faster" if row.is_rate else "less is faster"
        table = Table()
        table.add_column("")
        table.add_column(f"{row.unit} ({better})", justify="right")
        table.add_column("quartiles", justify="right")
        table.add_column(f"{OURS} / this", justify="right")
        table.add_column("quartiles", justify="right")
        for name in row.seconds:
            figure, ratio = spread(row.figures(name)), spread(row.ratios(name))
            ours = name == OURS
            table.add_row(
                escape(name),
                _number(figure.median),
                f"{_number(figure.low)} to {_number(figure.high)}",
                "" if ours else f"{ratio.median:.2f}",
                "" if ours else f"{ratio.low:.2f} to {ratio.high:.2f}",
                style="bold" if ours else None,
            )
        console.print(table)
        console.print(f"  {len(row.seconds[OURS])} turns each", highlight=False)
    for note in row.notes:
        console.print(f"  {note}", highlight=False, markup=False)


def print_requirements(console: Console, rows: Sequence[Row]) -> None:
    """One line for each requirement: held, missed, or not measured."""
    requirements = [requirement for row in rows for requirement in row.requirements]
    if requirements:
        console.print("\n[bold]Required[/bold]")
    for requirement in requirements:
        found, holds = requirement.verdict()
        if found is None:
            console.print(f"  [yellow]NOT MEASURED[/yellow]  {escape(requirement.text)}")
            continue
        word = "[green]HELD[/green]        " if holds else "[red]MISSED[/red]      "
        console.print(
            f"  {word}  {escape(requirement.text)}: {_number(found.median)} {requirement.unit} "
            f"(quartiles {_number(found.low)} to {_number(found.high)})",
            highlight=False,
        )


def _number(value: float) -> str:
    """Four significant digits, thousands marked."""
    if value == 0:
        return "0"
    digits = max(0, 3 - int(np.floor(np.log10(abs(value)))))
    return f"{value:,.{digits}f}"


def write_json(path: Path, about: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Everything that was measured, turn by turn; seconds are per unit of work."""
    path.write_text(
        json.dumps({"machine": about, "rows": [_as_json(row) for row in rows]}, indent=1) + "\n"
    )


def _as_json(row: Row) -> dict[str, Any]:
    def verdict(requirement: Requirement) -> dict[str, Any]:
        found, holds = requirement.verdict()
        return {
            "text": requirement.text,
            "median": None if found is None else found.median,
            "bound": requirement.bound,
            "at_most": requirement.at_most,
            "unit": requirement.unit,
            "holds": holds,
        }

    return {
        "key": row.key,
        "title": row.title,
        "unit": row.unit,
        "medians": {name: statistics.median(row.figures(name)) for name in row.seconds},
        "seconds": row.seconds,
        "notes": row.notes,
        "requirements": [verdict(requirement) for requirement in row.requirements],
    }
