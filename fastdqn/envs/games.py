"""Which game a name means.

Every name form in use resolves to the id of the ROM, "space_invaders": the ids themselves, names
in any case, with or without spaces ("Space Invaders", "SpaceInvaders"), and gymnasium's ids, old
and new ("ALE/SpaceInvaders-v5", "SpaceInvadersNoFrameskip-v4"). Only the game is taken from an id,
never the settings that its suffix once stood for: frame skip and sticky actions are options.
Ids of RAM observations are refused, and games that only two can play.
"""

from __future__ import annotations

import difflib
import re
from functools import cache
from pathlib import Path

from ale_py import ALEInterface, LoggerMode, roms

from fastdqn.errors import UserError

__all__ = ["all_games", "game_title", "resolve_game", "rom_path"]

# Without this, every emulator greets on stderr; errors are still printed.
ALEInterface.setLoggerMode(LoggerMode.Error)

_SUFFIX = re.compile(r"(?P<ram>-ram)?(NoFrameskip|Deterministic)?(-v\d+)?$", re.IGNORECASE)


@cache
def all_games() -> tuple[str, ...]:
    """The ids of the games that ship with ale-py and can be played alone, sorted."""
    return tuple(game for game in sorted(roms.get_all_rom_ids()) if _is_playable(game))


def game_title(game: str) -> str:
    """A game's id as it is usually written: "SpaceInvaders" for "space_invaders"."""
    return game.title().replace("_", "")


def rom_path(game: str) -> Path:
    """The file of a game's ROM; `game` is an id, as `resolve_game` returns it.

    Raises UserError where it cannot be read.
    """
    try:
        path = roms.get_rom_path(game)
    except OSError as error:
        raise UserError(f"the ROM of game {game!r} cannot be read: {error}") from None
    assert path is not None  # None is for ids that are not ale-py's
    return Path(path)


def resolve_game(name: str) -> str:
    """The id of the game that `name` means: "space_invaders" for "ALE/SpaceInvaders-v5".

    Raises UserError where no game is meant, naming the nearest, and where the game cannot be
    played: the emulator would end the whole process.
    """
    base = name.strip()
    if base.lower().startswith("ale/"):
        base = base[4:]
    suffix = _SUFFIX.search(base)
    assert suffix is not None  # every part is optional
    if suffix["ram"]:
        raise UserError(
            f"game {name!r} asks for RAM observations; only screens are supported: "
            f"use {base[: suffix.start()]!r}"
        )
    key = _key(base[: suffix.start()])
    ids = {_key(game): game for game in roms.get_all_rom_ids()}
    game = ids.get(key)
    if game is None:
        titles = {_key(known): game_title(known) for known in all_games()}
        near = [titles[match] for match in difflib.get_close_matches(key, titles, n=3)]
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(titles)}"
        raise UserError(f"unknown game {name!r}: {hint}")
    if ALEInterface.isSupportedROM(rom_path(game)) is None:
        raise UserError(f"game {name!r} cannot be played alone: choose another game")
    return game


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _is_playable(game: str) -> bool:
    try:
        return ALEInterface.isSupportedROM(rom_path(game)) is not None
    except UserError:
        return False
