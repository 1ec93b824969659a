"""How this project measures: contenders take turns in one process, after their answers agree.

A contender does some work and says how much. Contenders of a match take turns, in alternating
order, so that whatever slows the machine down slows all of them; a ratio is formed turn by turn
and its median is given with its quartiles. The machine, the command and the unit stand beside every
number. A contender whose answer is wrong is never timed.

It refuses to hide: a requirement that is missed is printed as missed, one whose contender could
not run is printed as not measured, a contender that could not run stays in the table with the
reason, and a busy machine is named.
"""

from __future__ import annotations

import gc
import importlib.metadata
import json
import operator
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

__all__ = [
    "BUSY_LOAD",
    "OURS",
    "Contender",
    "Effort",
    "Requirement",
    "Row",
    "Spread",
    "Turns",
    "WrongAnswer",
    "agree",
    "as_json",
    "cores",
    "huge_page_bytes",
    "machine",
    "match",
    "number",
    "on_cores",
    "print_machine",
    "print_requirements",
    "print_row",
    "read_json",
    "repeat",
    "spread",
    "write_json",
]


OURS = "fastdqn"
SCHEMA = 2
BUSY_LOAD = 0.5  # from which something else is running
Turn = Callable[[], float]


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
    peer_seconds: float
    """For those of one more match of a row, where not all its contenders fit in memory at once."""
    emulation_turn_steps: int
    """Steps of one turn where games are played by several processes."""
    training_seconds: float
    """For those of whole training runs."""
    training_turn_steps: int
    """Agent steps of one such turn."""
    storage_matches: int
    """Of runs with compressed and with raw frames."""
    storage_seconds: float
    """For the turns of one of them."""
    processes: bool
    """Whether other systems' environments are also put in processes of their own, which takes them
    long to start."""
    capacities: tuple[int, ...]
    """Of the memories that are sampled from, in frames."""
    peer_capacity: int
    """The largest of those that other systems' memories are filled to."""


@dataclass(frozen=True)
class Contender:
    """One way of doing a row's work."""

    name: str
    prepare: Callable[[ExitStack], Turn]
    """Makes what is needed, checks its answers and returns a turn: a function that does the work
    once and returns how many of the row's units it did (frames, calls, steps). What it leaves in
    the stack is called when the match is over."""
    cores: frozenset[int] | None = None
    """The cores to prepare and run on; None: wherever the process may."""
    package: str | None = None
    """What the contender is made by, where that is another project: it may be missing or fail."""


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
    """A bound on the median of some figures; `found` is None where they could not be measured."""

    text: str
    found: Spread | None
    bound: float
    at_most: bool
    unit: str

    @property
    def holds(self) -> bool | None:
        """Whether the bound holds; None where not measured."""
        if self.found is None:
            return None
        compare = operator.le if self.at_most else operator.ge
        return bool(compare(self.found.median, self.bound))


@dataclass
class Turns:
    """What a match found: seconds per unit of work of every turn, and who could not run, why."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)


# What a row's figures are in. A rate is the inverse of a time: more is better.
Unit = Literal["frames/s", "steps/s", "µs", "ms", "GB", "instructions"]
# What stands beside a figure: ours over it, its share of ours, or nothing.
Beside = Literal["ratio", "share", "nothing"]


@dataclass
class Row:
    """One question: how fast, or how small, is fastdqn at this work, and how are the others?"""

    key: str
    title: str
    unit: Unit
    beside: Beside = "ratio"
    figures: dict[str, list[float]] = field(default_factory=dict)
    """For each contender its figure of every turn, in the row's unit."""
    ours: dict[str, list[float]] = field(default_factory=dict)
    """For each contender our own figures of the same turns."""
    absent: dict[str, str] = field(default_factory=dict)
    """Contenders that could not run, and why."""
    notes: list[str] = field(default_factory=list)
    requirements: list[Requirement] = field(default_factory=list)

    @property
    def is_rate(self) -> bool:
        """Whether a larger figure is a better one."""
        return self.unit.endswith("/s")

    def add(self, turns: Turns, names: Mapping[str, str] | None = None) -> None:
        """Adds a match. `names` chooses and renames contenders; one must then be `OURS`."""
        chosen = names or {name: name for name in [*turns.seconds, *turns.absent]}
        found = {
            new: [self._in_unit(seconds) for seconds in turns.seconds[old]]
            for old, new in chosen.items()
            if old in turns.seconds
        }
        ours = found.get(OURS, [])
        for name, figures in found.items():
            self.figures[name] = [*self.figures.get(name, []), *figures]
            self.ours[name] = [*self.ours.get(name, []), *ours]
        self.absent |= {chosen[old]: why for old, why in turns.absent.items() if old in chosen}

    def put(self, name: str, figure: float) -> None:
        """Adds a figure that repeats exactly: bytes, instructions. `OURS` comes first."""
        self.figures[name] = [figure]
        self.ours[name] = self.figures.get(OURS, [])

    def _in_unit(self, seconds: float) -> float:
        return 1 / seconds if self.is_rate else {"µs": 1e6, "ms": 1e3}[self.unit] * seconds

    def ratios(self, name: str) -> list[float]:
        """Our figure over another's, turn by turn; none where it did not run."""
        pairs = zip(self.ours.get(name, []), self.figures.get(name, []), strict=False)
        return [ours / theirs for ours, theirs in pairs]

    def differences(self, name: str) -> list[float]:
        """Our figure less another's, turn by turn."""
        pairs = zip(self.ours.get(name, []), self.figures.get(name, []), strict=False)
        return [ours - theirs for ours, theirs in pairs]

    def best(self, names: Sequence[str]) -> str | None:
        """Which of these that ran has the best median; None where none ran."""
        medians = {
            name: float(np.median(self.figures[name])) for name in names if name in self.figures
        }
        pick = max if self.is_rate else min
        return pick(medians, key=lambda name: medians[name]) if medians else None

    def require(
        self, text: str, figures: Sequence[float], bound: float, *, at_most: bool, unit: str
    ) -> None:
        """The median of these figures must be within a bound; no figures: not measured."""
        found = spread(figures) if len(figures) else None
        self.requirements.append(Requirement(text, found, bound, at_most, unit))

    def require_ratio(self, name: str | None, bound: float, called: str | None = None) -> None:
        """Our figure must be `bound` times another's: at least (rates) or at most."""
        word = "at least" if self.is_rate else "at most"
        self.require(
            f"{self.title}: {word} {bound:g} times {called or name}"
            + (f" ({name})" if called and name else ""),
            self.ratios(name) if name else [],
            bound,
            at_most=not self.is_rate,
            unit="times",
        )


def match(contenders: Sequence[Contender], *, seconds: float, min_turns: int = 5) -> Turns:
    """Lets the contenders take turns for about `seconds`.

    Every contender is prepared and runs once untimed first. Each round is one turn of each, every
    second round in reverse order. The garbage collector rests, as its runs would hit one contender
    by chance. A contender of another project that cannot be imported or raises drops out, with the
    reason; ours must not.
    """
    turns = Turns()
    with ExitStack() as resources:
        ready: list[tuple[Contender, Turn]] = []
        for contender in contenders:
            with _may_fail(contender, turns), on_cores(contender.cores):
                turn = contender.prepare(resources)
                turn()
                ready.append((contender, turn))
                turns.seconds[contender.name] = []
        _take_turns(ready, turns, seconds, min_turns)
    for name in turns.absent:
        turns.seconds.pop(name, None)
    return turns


def _take_turns(
    ready: Sequence[tuple[Contender, Turn]], turns: Turns, seconds: float, min_turns: int
) -> None:
    gc.collect()
    gc.disable()
    try:
        end = time.perf_counter() + seconds
        rounds = 0
        while rounds < min_turns or time.perf_counter() < end:
            for contender, turn in ready if rounds % 2 == 0 else reversed(ready):
                if contender.name in turns.absent:
                    continue
                with _may_fail(contender, turns), on_cores(contender.cores):
                    start = time.perf_counter()
                    amount = turn()
                    elapsed = time.perf_counter() - start
                    turns.seconds[contender.name].append(elapsed / amount)
            rounds += 1
    finally:
        gc.enable()


@contextmanager
def _may_fail(contender: Contender, turns: Turns) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if contender.package is None:
            raise
        missing = isinstance(error, ImportError)
        what = "not installed or not importable" if missing else type(error).__name__
        first_line = (str(error).splitlines() or [""])[0]
        fix = "; pip install 'fastdqn[bench]'" if missing else ""
        turns.absent[contender.name] = f"{what}: {first_line}{fix}"


def cores(count: int) -> frozenset[int]:
    """The last `count` cores that this process may use. ValueError where it has fewer."""
    available = sorted(os.sched_getaffinity(0))
    if len(available) < count:
        raise ValueError(f"needs {count} cores, this process may use {len(available)}")
    return frozenset(available[-count:])


@contextmanager
def on_cores(chosen: frozenset[int] | None) -> Iterator[None]:
    """Keeps the calling thread, and the threads and processes it starts inside, on these cores."""
    before = os.sched_getaffinity(0)
    if chosen is not None:
        os.sched_setaffinity(0, chosen)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def repeat(call: Callable[[], object], times: int) -> Turn:
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
        "versions": {name: _version(name) for name in _PACKAGES},
        "commit": _commit(),
    }


_PACKAGES = (
    "fastdqn",
    "torch",
    "numpy",
    "gymnasium",
    "ale-py",
    "opencv-python-headless",
    "stable-baselines3",
    "tianshou",
    "torchrl",
    "tensordict",
    "cpprb",
    "envpool",
)


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
    versions = ", ".join(f"{name} {at}" for name, at in about["versions"].items() if at)
    console.print(
        f"[bold]{about['command']}[/bold]\n"
        f"{about['cpu']}, {about['cores']} cores, {about['memory_gib']} GiB, "
        f"huge pages: {about['transparent_huge_pages']}; torch with {about['torch_threads']} "
        f"threads, {about['torch_cpu_capability']}; python {about['python']}, {versions}, "
        f"commit {about['commit']}",
        highlight=False,
    )
    if about["load_at_start"] > BUSY_LOAD:
        console.print(
            f"[yellow]load {about['load_at_start']} at the start: something else is running, and "
            "these figures may not be quoted[/yellow]"
        )


def print_row(console: Console, row: Row) -> None:
    """One table: every contender's figure, and ours against it."""
    console.print(f"\n[bold]{escape(row.title)}[/bold]", highlight=False)
    better = "more" if row.is_rate else "less"
    table = Table()
    table.add_column("")
    table.add_column(f"{row.unit} ({better} is better)", justify="right")
    table.add_column("quartiles", justify="right")
    if row.beside != "nothing":
        beside = {"ratio": f"{OURS} / this", "share": "share of the whole"}[row.beside]
        table.add_column(beside, justify="right")
        table.add_column("quartiles", justify="right")
    for cells in _lines(row):
        text = [escape(cells["name"]), *_cells(cells, row.beside)]
        table.add_row(*text, style="bold" if cells["name"] == OURS else None)
    console.print(table)
    for note in row.notes:
        console.print(f"  {note}", highlight=False, markup=False)


def _lines(row: Row) -> list[dict[str, Any]]:
    """What a row's table says of each contender."""

    def beside(name: str) -> Spread | None:
        if row.beside == "nothing" or name == OURS or not row.ratios(name):
            return None
        ratios = row.ratios(name)
        return spread(ratios if row.beside == "ratio" else [1 / ratio for ratio in ratios])

    ran = [
        {
            "name": name,
            "turns": len(figures),
            "figure": spread(figures),
            "beside": beside(name),
            "absent": None,
        }
        for name, figures in row.figures.items()
    ]
    absent = [
        {"name": name, "turns": 0, "figure": None, "beside": None, "absent": why}
        for name, why in row.absent.items()
    ]
    return ran + absent


def _cells(line: Mapping[str, Any], beside: Beside) -> list[str]:
    if line["figure"] is None:
        return ["-", str(line["absent"])]
    figure, ratio = line["figure"], line["beside"]
    exact = line["turns"] == 1
    cells = [number(figure.median), "" if exact else _quartiles(figure)]
    if beside == "nothing" or ratio is None:
        return cells
    if beside == "share":
        return [*cells, f"{ratio.median:.1%}", f"{ratio.low:.1%} to {ratio.high:.1%}"]
    return [*cells, f"{ratio.median:.3g}", "" if exact else f"{ratio.low:.3g} to {ratio.high:.3g}"]


def _quartiles(found: Spread) -> str:
    return f"{number(found.low)} to {number(found.high)}"


def print_requirements(console: Console, rows: Sequence[Row]) -> None:
    """One line for each requirement: held, missed, or not measured."""
    requirements = [requirement for row in rows for requirement in row.requirements]
    if requirements:
        console.print("\n[bold]Required[/bold]")
    for requirement in requirements:
        found = requirement.found
        if found is None:
            console.print(f"  [yellow]NOT MEASURED[/yellow]  {escape(requirement.text)}")
            continue
        word = "[green]HELD[/green]        " if requirement.holds else "[red]MISSED[/red]      "
        console.print(
            f"  {word}  {escape(requirement.text)}: {number(found.median)} {requirement.unit} "
            f"(quartiles {_quartiles(found)})",
            highlight=False,
        )


def number(value: float) -> str:
    """Four significant digits, thousands marked."""
    if value == 0:
        return "0"
    digits = max(0, 3 - int(np.floor(np.log10(abs(value)))))
    return f"{value:,.{digits}f}"


def as_json(about: Mapping[str, Any], rows: Sequence[Row], wrong: Sequence[str]) -> dict[str, Any]:
    """All that the tables say: medians, quartiles, numbers of turns, reasons, verdicts."""
    return {
        "schema": SCHEMA,
        "machine": dict(about),
        "rows": [_row_as_json(row) for row in rows],
        "wrong": list(wrong),
    }


def write_json(path: Path, result: Mapping[str, Any]) -> None:
    """Writes what `as_json` gave."""
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """What `write_json` wrote. ValueError where it is of another version."""
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if result.get("schema") != SCHEMA:
        found = result.get("schema")
        raise ValueError(f"{path}: schema {found}, expected {SCHEMA}; run throughput.py anew")
    return result


def _row_as_json(row: Row) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        return asdict(value) if isinstance(value, Spread) else value

    return {
        "key": row.key,
        "title": row.title,
        "unit": row.unit,
        "beside": row.beside,
        "contenders": [{k: plain(v) for k, v in line.items()} for line in _lines(row)],
        "notes": row.notes,
        "requirements": [
            {**asdict(requirement), "holds": requirement.holds} for requirement in row.requirements
        ],
    }
