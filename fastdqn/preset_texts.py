"""What people read of presets: when a run starts, in a list, and on the page docs/presets.md.

python -m fastdqn.preset_texts > docs/presets.md
"""

from __future__ import annotations

import dataclasses
import textwrap

from fastdqn.config import Config
from fastdqn.presets import CLASSIC, PRESETS, settings_of

__all__ = ["preset_list", "preset_text", "presets_page"]

_WIDTH = 80


def preset_text(name: str, env: str | None = None) -> str:
    """The preset's source and its known differences, in lines of at most 80 columns."""
    preset = PRESETS[name]
    lines = textwrap.wrap(
        preset.source,
        _WIDTH,
        initial_indent=f"preset {name}: ",
        subsequent_indent="  ",
        break_on_hyphens=False,
    )
    if preset.differences:
        lines.append("  known differences from it:")
    for difference in preset.differences:
        lines += textwrap.wrap(
            difference,
            _WIDTH,
            initial_indent="  - ",
            subsequent_indent="    ",
            break_on_hyphens=False,
        )
    if name == "classic" and env in CLASSIC:
        own = " ".join(f"{key}={value}" for key, value in CLASSIC[env].items())
        lines += textwrap.wrap(
            f"in {env} it has {own}", _WIDTH, initial_indent="  ", subsequent_indent="    "
        )
    return "\n".join(lines)


def preset_list() -> str:
    """All of them."""
    texts = [preset_text(name) for name in PRESETS]
    for env, own in CLASSIC.items():
        changed = " ".join(f"{key}={value}" for key, value in own.items())
        texts[-1] += "\n" + textwrap.fill(
            f"in {env} it has {changed}", _WIDTH, initial_indent="  ", subsequent_indent="    "
        )
    return "\n\n".join(texts)


def presets_page() -> str:
    """The page docs/presets.md."""
    configs = {name: Config.preset(name).to_dict() for name in PRESETS}
    named = {key for name in PRESETS for key in settings_of(name)}
    order = [field.name for field in dataclasses.fields(Config) if field.name in named]
    lines = [
        "# Presets",
        "",
        "`fastdqn-train --preset NAME` and `fastdqn.Config.preset(NAME, game=...)` start from the "
        "settings below;",
        "whatever else is given changes them. `fastdqn-train --list-presets` prints the sources "
        "and differences.",
        "This page is what `python -m fastdqn.preset_texts` prints.",
        "",
        "With all of them, an update that the C++ core computes beside the environments' steps is "
        "acted by once the next",
        "has become due, up to a train period later than otherwise ([learner.md](learner.md)).",
        "",
    ]
    for name, preset in PRESETS.items():
        lines += [f"## {name}", "", *textwrap.wrap(preset.source, 115, break_on_hyphens=False), ""]
        if preset.differences:
            lines += ["Known differences from it:", ""]
            for difference in preset.differences:
                lines += textwrap.wrap(
                    difference,
                    115,
                    initial_indent="- ",
                    subsequent_indent="  ",
                    break_on_hyphens=False,
                )
            lines.append("")
    if CLASSIC:
        lines += [
            "In single environments `classic` has settings of their own:",
            "",
            "| environment | settings |",
            "| --- | --- |",
            *(
                f"| {env} | {', '.join(f'{key}={_plain(v)}' for key, v in own.items())} |"
                for env, own in CLASSIC.items()
            ),
            "",
        ]
    lines += [
        "## Every value",
        "",
        "Steps are the agent's, of 4 frames in games. All settings that are not in the table have "
        "their defaults, which",
        "`fastdqn-train --help` shows.",
        "",
        "| | " + " | ".join(PRESETS) + " |",
        "| --- |" + " --- |" * len(PRESETS),
    ]
    for key in order:
        cells = [_plain(configs[name][key]) for name in PRESETS]
        lines.append(f"| {key} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (tuple, list)):
        return " ".join(map(str, value))
    if isinstance(value, int) and value >= 10_000:
        return f"{value:,}"
    if isinstance(value, float) and value and value < 1e-2:
        return f"{value:.4g}"
    return "none" if value is None else str(value)


if __name__ == "__main__":
    print(presets_page(), end="")
