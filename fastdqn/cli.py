"""The command `fastdqn-train`, generated from `Config`.

Ctrl-C ends the run as its budget would, with model, logs and a checkpoint saved;
`--resume` goes on with it.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr
from io import StringIO
from typing import Annotated, Any, Literal, get_args

import tyro

import fastdqn
from fastdqn.command import StopSignals, run_command, whole_number
from fastdqn.config import Config
from fastdqn.errors import UserError
from fastdqn.preset_texts import preset_list, preset_text
from fastdqn.presets import CLASSIC, PRESETS
from fastdqn.resuming import CHANGEABLE, saved_config

__all__ = ["train_main"]

_PROGRAM = "fastdqn-train"


def train_main(argv: Sequence[str] | None = None) -> int:
    """Run the command with `argv` (none: the process's arguments); returns the exit status."""
    return run_command(_PROGRAM, _train, argv)


def _train(argv: Sequence[str], stop: StopSignals) -> None:
    config, resume = _parse(argv)
    from fastdqn.display import describe, make_display
    from fastdqn.resuming import resumed_trainer
    from fastdqn.trainer import Trainer

    trainer = Trainer(config) if resume is None else resumed_trainer(resume, config.to_dict())
    folder = trainer.output.path
    preset = _preset(argv) if resume is None else trainer.config.preset_name or "default"
    print(preset_text(preset, config.env))
    print(describe(trainer.protocol, *_settings(config, trainer.config, preset)))
    print(f"  to {folder}" if folder else "  nothing is written", flush=True)
    if config.init_from is not None and resume is None:
        print(f"  {_INIT_FROM_NOTE.format(config.init_from)}", flush=True)
    for note in trainer.notes:
        print(f"  {note}", flush=True)
    title = str(trainer.protocol["game"])
    with make_display(title, trainer.counters) as display:
        for report in trainer.run(stop):
            display.show(report)
    counters = trainer.counters
    ended = "stopped" if stop.received else "done"
    learned = "" if counters.updates else ", before learning started"
    saved = f"; model and logs are in {folder}" if folder else ""
    print(f"{ended} at step {counters.steps:,}{learned}{saved}", flush=True)
    if trainer.can_be_resumed and not trainer.budget.is_spent(counters, 0):
        print(f"to go on: {_PROGRAM} --resume {shlex.quote(str(folder))}", flush=True)


def _settings(config: Config, resolved: Config, preset: str) -> list[dict[str, Any]]:
    """The values of the resolved config: those that were given, those that the preset has otherwise
    than the defaults, the rest. What a run has no use for is left out."""
    values, defaults = resolved.to_dict(), Config().to_dict()
    for name in ("game", "env", *resolved.options_without_use):
        del values[name]
    expected = _base(preset, config.env).to_dict()
    asked = config.to_dict()
    groups: list[dict[str, Any]] = [{}, {}, {}]
    for name, value in values.items():
        given, special = asked[name] != expected[name], expected[name] != defaults[name]
        groups[0 if given else 1 if special else 2][name] = value
    return groups


_INIT_FROM_NOTE = (
    "weights from {}; not taken over: replay memory, optimizer, counts, exploration, logs"
)


def _parse(argv: Sequence[str]) -> tuple[Config, str | None]:
    """The config that the command line describes, and the run to resume. Raises `UserError`; exits
    0 after --help and --version."""
    if "--version" in argv:
        print(f"fastdqn {fastdqn.__version__}")
        raise SystemExit(0)
    if "--list-presets" in argv:
        print(preset_list(), flush=True)
        raise SystemExit(0)
    preset, resume = _preset(argv), _value_of("--resume", argv)
    if resume is None:
        config = _base(preset, _value_of("--env", argv))
    elif _value_of("--preset", argv) is not None:
        raise UserError(f"--preset {preset}: a resumed run keeps its own settings; leave it out")
    else:
        config = saved_config(resume)
    command = dataclasses.make_dataclass(
        "Command",
        [
            ("preset", Annotated[Literal[tuple(PRESETS)], _PRESET_HELP], preset),
            ("resume", Annotated[str | None, _RESUME_HELP], resume),
            ("config", Config, config),
        ],
    )
    said = StringIO()
    try:
        with redirect_stderr(said), _plain_values():
            parsed: Any = tyro.cli(
                command,
                args=list(argv),
                prog=_PROGRAM,
                description=_DESCRIPTION,
                config=(tyro.conf.OmitArgPrefixes, tyro.conf.SuppressFixed),
            )
    except SystemExit as exit_:
        if exit_.code:
            raise UserError(_one_line(said.getvalue())) from None
        sys.stdout.flush()  # here a closed pipe can still be answered
        raise
    return parsed.config, resume


_DESCRIPTION = (
    "Train a deep Q-network. Ctrl-C ends the run with everything saved, a second one at once. "
    "Large numbers may be written 50_000, 50,000 or 5e4. --list-presets describes the presets, "
    "--version prints the version."
)
_PRESET_HELP = tyro.conf.arg(
    help="Settings with a name that the options below change (see --list-presets); with --env "
    "classic, or default where --preprocess is grey or atari."
)


_RESUME_HELP = tyro.conf.arg(
    help="Folder of a run to go on with, exactly as if it had never stopped. Its settings hold; "
    f"only these may be given anew: {', '.join(CHANGEABLE)}."
)


def _base(preset: str, env: str | None) -> Config:
    """The preset's settings in an environment, which they do not name: what is fit for a game alone
    is refused only where the rest of the command line has left it."""
    return Config.preset(preset, **(CLASSIC.get(env or "", {}) if preset == "classic" else {}))


def _preset(argv: Sequence[str]) -> str:
    """The preset that the rest of the command line changes; it must be known before the rest."""
    named = _value_of("--preset", argv)
    if named is not None:
        return named
    images = _value_of("--preprocess", argv) in ("grey", "atari")
    return "default" if _value_of("--env", argv) is None or images else "classic"


def _value_of(option: str, argv: Sequence[str]) -> str | None:
    """What the command line gives an option, looked up before the rest is understood."""
    value = None
    for place, word in enumerate(argv):
        if word == option:
            value = "".join(argv[place + 1 : place + 2])
        elif word.startswith(f"{option}="):
            value = word.removeprefix(f"{option}=")
    return value


def _plain_values() -> tyro.constructors.ConstructorRegistry:
    """Reads numbers and names, those that may be absent also as "none", with plain messages."""
    registry = tyro.constructors.ConstructorRegistry()

    @registry.primitive_rule
    def _(info: tyro.constructors.PrimitiveTypeInfo) -> Any:
        kinds = get_args(info.type) or (info.type,)
        named = [kind for kind in kinds if kind is not type(None)]
        if len(named) != 1 or named[0] not in _WORDS:
            return None
        kind = named[0]
        optional = type(None) in kinds

        def read(words: list[str]) -> Any:
            (word,) = words
            if optional and word.lower() == "none":
                return None
            try:
                return whole_number(word) if kind is int else kind(word)
            except ValueError:
                expected = _WORDS[kind] + (" or none" if optional else "")
                raise ValueError(f"expected {expected}, got {word!r}") from None

        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=1,
            metavar=kind.__name__.upper(),
            instance_from_str=read,
            is_instance=lambda value: value is None or isinstance(value, kind),
            str_from_instance=lambda value: ["none" if value is None else str(value)],
        )

    return registry


_WORDS: dict[Any, str] = {int: "a whole number", float: "a number", str: "a name"}


def _one_line(box: str) -> str:
    """The message out of the box that tyro draws around it: what stands below its first rule."""
    blocks: list[list[str]] = [[]]
    for line in box.splitlines():
        text = line.strip(" │")
        if re.fullmatch(r"[-─]{4,}|[╭╰]─.*", text):
            blocks.append([])
        elif text:
            blocks[-1].append(text)
    _title, message, *others = [" ".join(block) for block in [*blocks, []]]
    near = re.match(r"Perhaps you meant: (--[\w-]+)", others[0] if others else "")
    message = re.sub(r"^Error parsing (config: )?", "", message or " ".join(box.split()))
    return f"{message}; did you mean {near[1]}?" if near else message
