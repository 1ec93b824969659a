"""What the commands have in common: errors, signals, the way numbers are written.

Wrong input is one line on standard error and exit status 2. Ctrl-C (or SIGTERM) asks a command to
end in good order, after which its exit status is 130 (143), as a shell reports a command ended by
that signal; a second one ends it at once. No command imports torch before its command line is known
to be right.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NoReturn

import fastdqn
from fastdqn.errors import UserError

__all__ = ["Parser", "StopSignals", "or_none", "run_command", "whole_number"]


class StopSignals:
    """True once SIGINT or SIGTERM has come, inside the `with`; the second ends the process."""

    def __init__(self) -> None:
        self.received: int | None = None

    def __enter__(self) -> StopSignals:
        numbers = (signal.SIGINT, signal.SIGTERM)
        self._before = {number: signal.signal(number, self._receive) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __call__(self) -> bool:
        return self.received is not None

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self.received is not None:
            os.write(1, _SHOW_CURSOR if os.isatty(1) else b"")
            os._exit(128 + number)
        self.received = number


_SHOW_CURSOR = b"\x1b[?25h\n"


def run_command(
    program: str,
    body: Callable[[Sequence[str], StopSignals], None],
    argv: Sequence[str] | None,
) -> int:
    """Run `body` with `argv` (none: the process's arguments); returns the exit status."""
    try:
        with StopSignals() as stop:
            body(sys.argv[1:] if argv is None else argv, stop)
            sys.stdout.flush()  # here a closed pipe can still be answered
    except UserError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # as in `fastdqn-train ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return 0 if stop.received is None else 128 + stop.received


class Parser(argparse.ArgumentParser):
    """A command line whose mistakes are `UserError`s; it has --help and --version."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)
        version = f"fastdqn {fastdqn.__version__}"
        self.add_argument(
            "--version", action="version", version=version, help="print the version and end"
        )

    def error(self, message: str) -> NoReturn:
        """See `argparse.ArgumentParser.error`."""
        raise UserError(f"{message}; see {self.prog} --help")


def whole_number(word: str) -> int:
    """A whole number as people write large ones: 50000, 50_000, 50,000 or 5e4."""
    if re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+", word):
        word = word.replace(",", "")
    elif "e" in word.lower() and (value := float(word)).is_integer():
        return int(value)
    return int(word)


def or_none(kind: Callable[[str], Any], words: str) -> Callable[[str], Any]:
    """Reads what `kind` reads and "none", for a `Parser`; `words` name what is expected."""

    def read(word: str) -> Any:
        if word.lower() == "none":
            return None
        try:
            return kind(word)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected {words} or none, got {word!r}") from None

    return read
