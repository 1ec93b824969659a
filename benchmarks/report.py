"""Writes a run's figures into the documentation, so that none is typed by hand.

    python benchmarks/throughput.py --json docs/performance.json     # on a machine that is idle
    python benchmarks/report.py docs/performance.json                # tables and picture

Replaces what stands between `<!-- figures: NAME -->` and `<!-- end -->` in the README and the docs,
where NAME is a row of throughput.py, `machine`, `required` or `summary`, and draws the picture. The
tests compare both with the file.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import harness
from harness import OURS, number

__all__ = [
    "DOCUMENTS",
    "FIGURES",
    "PICTURE",
    "blocks",
    "fill",
    "is_busy",
    "main",
    "markdown",
    "plot",
    "replace",
    "table",
]

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "docs/performance.json"
PICTURE = ROOT / "docs/images/performance.png"
DOCUMENTS = (ROOT / "README.md", ROOT / "docs/performance.md")
BLOCK = re.compile(r"<!-- figures: (\S+) -->\n.*?<!-- end -->", re.DOTALL)
Result = Mapping[str, Any]


def replace(text: str, result: Result) -> str:
    """The text with every marked block written anew. KeyError where a block's name is unknown."""
    written = blocks(result)
    for name in BLOCK.findall(text):
        text = fill(text, name, written[name])
    return text


def fill(text: str, name: str, written: str) -> str:
    """The text with the marked block of that name written anew. KeyError where there is none."""
    if name not in BLOCK.findall(text):
        raise KeyError(name)

    def block(found: re.Match[str]) -> str:
        if found[1] != name:
            return found[0]
        return f"<!-- figures: {name} -->\n{written}\n<!-- end -->"

    return BLOCK.sub(block, text)


def blocks(result: Result) -> dict[str, str]:
    """Markdown for every name that a document may ask for."""
    tables: dict[str, list[str]] = {}
    for row in result["rows"]:
        tables.setdefault(row["key"], []).append(markdown(row))
    named = {key: "\n\n".join(tables[key]) for key in tables}
    return {
        **named,
        "machine": _machine(result["machine"]),
        "required": _required(result["rows"]),
        "summary": _summary(result),
    }


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """In markdown: what stands first in a line is its name, the rest are figures."""
    rule = ["---", *["---:" for _ in head[1:]]]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *lines))


def markdown(row: Result) -> str:
    """A row as `harness.as_json` gives it: title, table, notes."""
    head = ["", row["unit"], "quartiles", "fastdqn / this", "quartiles"]
    if row["beside"] == "share":
        head[3] = "share"
    if row["beside"] == "nothing":
        head = head[:3]
    if row["unit"] == "instructions":
        head = head[:2]
    lines = []
    for line in row["contenders"]:
        cells = [line["name"], *_cells(line, row["beside"])][: len(head)]
        lines.append([*cells, *[""] * (len(head) - len(cells))])
    notes = [f"{note[0].upper()}{note[1:]}." for note in row["notes"]]
    parts = [f"**{row['title']}**", table(head, lines), *(["\n".join(notes)] if notes else [])]
    return "\n\n".join(parts)


def _cells(line: Result, beside: str) -> list[str]:
    figure, ratio = line["figure"], line["beside"]
    if figure is None:
        return ["-", line["absent"]]
    exact = line["turns"] == 1
    cells = [number(figure["median"]), "" if exact else _quartiles(figure, number)]
    if ratio is None:
        return cells
    show = (lambda x: f"{x:.1%}") if beside == "share" else _factor
    return [*cells, show(ratio["median"]), "" if exact else _quartiles(ratio, show)]


def _factor(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def _quartiles(found: Mapping[str, float], show: Callable[[float], str]) -> str:
    return f"{show(found['low'])} to {show(found['high'])}"


def is_busy(about: Result) -> bool:
    """Whether something else was running when this was measured."""
    return bool(about["load_at_start"] > harness.BUSY_LOAD)


def _machine(about: Result) -> str:
    versions = ", ".join(f"{name} {at}" for name, at in about["versions"].items() if at)
    warning = (
        f"\n\n**Load {about['load_at_start']} at the start: something else was running.**"
        if is_busy(about)
        else ""
    )
    minutes = sum(about["seconds"].values()) / 60
    return (
        f"`{about['command']}`, {minutes:.1f} minutes on {about['cores']} cores of "
        f"{about['cpu']}, {about['memory_gib']} GiB, huge pages: "
        f"{about['transparent_huge_pages']}; PyTorch with {about['torch_threads']} threads, "
        f"{about['torch_cpu_capability']}; Python {about['python']}, {versions}; commit "
        f"{about['commit']}.{warning}"
    )


def _required(rows: Sequence[Result]) -> str:
    lines = []
    for row in rows:
        for requirement in row["requirements"]:
            found = requirement["found"]
            verdict = {True: "held", False: "**missed**", None: "not measured"}
            shown = "-" if found is None else f"{number(found['median'])} {requirement['unit']}"
            lines.append([requirement["text"], shown, verdict[requirement["holds"]]])
    return table(["required", "found", ""], lines)


# What the summary and the picture show: a name for people, and the start of a row's title.
HIGHLIGHTS = (
    ("Emulation with preprocessing, one core", "Emulation with preprocessing, 4 environments, one"),
    ("A batch of 32 from 100,000 frames", "sample(32) of 4-stacks from 100,000"),
    ("Storing one step", "append of one step"),
    ("Memory of a million transitions", "Memory of 1,000,000"),
    ("Training, 1 environment, float32", "Training on Breakout, 1 environment, float32"),
    ("Training, 8 environments, bfloat16", "Training on Breakout, 8 environments, bfloat16"),
)


def _highlights(result: Result) -> list[tuple[str, Result]]:
    """The rows that stand for the rest; a quick run has smaller ones in their place."""
    found = []
    for name, start in HIGHLIGHTS:
        rows = [row for row in result["rows"] if row["title"].startswith(start)]
        if rows and _by_name(rows[0]).get(OURS):
            found.append((name, rows[0]))
    return found


def _by_name(row: Result) -> dict[str, Mapping[str, float]]:
    """Every contender that ran, and its figure."""
    return {line["name"]: line["figure"] for line in row["contenders"] if line["figure"]}


def _is_limit(name: str) -> bool:
    return name.startswith("limit")


def _is_peer(name: str) -> bool:
    return not _is_limit(name) and not name.startswith((OURS, "our ", "plain"))


def _summary(result: Result) -> str:
    lines = []
    for name, row in _highlights(result):
        figures = _by_name(row)
        peers = {peer: found["median"] for peer, found in figures.items() if _is_peer(peer)}
        limits = [limit for limit in figures if _is_limit(limit)]
        is_rate = row["unit"].endswith("/s")
        # Of memory the smallest of ours counts: games are stored compressed.
        kinds = [kind for kind in figures if kind.startswith(OURS)]
        smallest = min(kinds, key=lambda kind: figures[kind]["median"])
        own = smallest if row["key"] == "memory" else OURS
        ours = figures[own]["median"]
        best = (max if is_rate else min)(peers, key=lambda p: peers[p]) if peers else None
        how = own.removeprefix(OURS)
        cells = [name, f"{number(ours)} {row['unit']}{how}", "-", "-"]
        if best is not None:
            factor = ours / peers[best] if is_rate else peers[best] / ours
            cells[2] = f"{number(peers[best])} ({best}): {factor:.1f} times"
        if limits:
            cells[3] = number(figures[limits[0]]["median"])
        lines.append(cells)
    return table(["", "fastdqn", "the best of the others", "limit"], lines)


def plot(result: Result, path: Path) -> None:
    """One picture: everybody's speed, or smallness, as a multiple of fastdqn's. Longer is better.

    ValueError where no row that it shows was measured.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = _highlights(result)
    if not rows:
        raise ValueError("nothing to draw: none of the rows that the picture shows was measured")
    bars = [_bars(row) for _, row in rows]
    heights = [len(found) + 1.6 for found in bars]
    figure = Figure(figsize=(8.4, 0.235 * sum(heights) + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(rows), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    right = min(2.2, max(1.0, *(length for found in bars for _, length, _ in found)))
    white = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
    for (name, row), found, panel in zip(rows, bars, panels, strict=True):
        colours = [_colour(contender) for contender, _, _ in found]
        at = range(len(found))
        panel.barh(at, [min(length, right) for _, length, _ in found], color=colours, height=0.72)
        for i, (_, length, shown) in enumerate(found):
            end = min(length, right) + 0.012 * right
            shown = shown if length <= right else f"{shown} (bar cut off)"
            panel.text(end, i, shown, va="center", fontsize=7.5, bbox=white)
        panel.set_yticks(at, [contender for contender, _, _ in found], fontsize=7.5)
        panel.invert_yaxis()
        panel.axvline(1, color="#b03a2e", linewidth=0.8, linestyle=":", zorder=0)
        better = "more" if row["unit"].endswith("/s") else "less"
        panel.set_title(
            f"{name} ({row['unit']}, {better} is better)", loc="left", fontsize=9, weight="bold"
        )
        panel.tick_params(length=0)
        panel.spines[["top", "right", "bottom"]].set_visible(False)
    panels[-1].set_xlim(0, 1.16 * right)
    panels[-1].tick_params(labelsize=7.5)
    panels[-1].set_xlabel("relative to fastdqn, which is 1: longer is better", fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _bars(row: Result) -> list[tuple[str, float, str]]:
    """Contender, length and label; ours first, then the others from best to worst, limits last."""
    figures = {name: found["median"] for name, found in _by_name(row).items()}
    is_rate = row["unit"].endswith("/s")
    ours = figures[OURS]
    length = {name: (value / ours if is_rate else ours / value) for name, value in figures.items()}
    shown = [
        name
        for name in figures
        if not name.startswith("our ") and "its caller on another core" not in name
    ]
    shown.sort(key=lambda name: (name != OURS, _is_limit(name), -length[name]))
    return [(name, length[name], number(figures[name])) for name in shown]


def _colour(contender: str) -> str:
    if contender.startswith(OURS):
        return "#b03a2e" if contender == OURS else "#d98880"
    return "#c8ccd0" if _is_limit(contender) else "#5d7a96"


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrites the documents and the picture from a file of figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("figures", type=Path, help="what throughput.py --json wrote")
    options = parser.parse_args(arguments)
    result = harness.read_json(options.figures)
    for document in DOCUMENTS:
        before = document.read_text(encoding="utf-8")
        document.write_text(replace(before, result), encoding="utf-8")
    plot(result, PICTURE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
