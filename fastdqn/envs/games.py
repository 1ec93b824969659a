"""Which game a name means.

Every name form in use resolves to the id of the ROM, "space_invaders": the ids themselves, names
in any case, with or without spaces ("Space Invaders", "SpaceInvaders"), and gymnasium's ids, old
and new ("ALE/SpaceInvaders-v5", "SpaceInvadersNoFrameskip-v4"). Only the game is taken from an id,
never the settings that its suffix once stood for: frame skip and sticky actions are options.
Ids of RAM observations and games without a single-player mode are refused.
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
    """The ids of all playable games that ship with ale-py, sorted."""
    return tuple(game for game in sorted(roms.get_all_rom_ids()) if _is_playable(game))


def game_title(game: str) -> str:
    """The usual written form of a game's id: "space_invaders" is "SpaceInvaders"."""
    return game.title().replace("_", "")


def rom_path(game: str) -> Path:
    """The file of a game's ROM; `game` is an id as `resolve_game` returns it."""
    path = roms.get_rom_path(game)
    if path is None:
        raise UserError(f"ale-py {game!r} ROM is missing: reinstall ale-py")
    return Path(path)


def resolve_game(name: str) -> str:
    """The id of the game that `name` means, e.g. "space_invaders" for "ALE/SpaceInvaders-v5".

    Raises UserError where no game is meant; the message names the nearest games.
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
        hint = f"did you mean {' or '.join(near)}?" if near else "see fastdqn.envs.all_games()"
        raise UserError(f"unknown game {name!r}: {hint}")
    if game not in all_games():
        raise UserError(f"game {name!r} has no single-player mode: choose another game")
    return game


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


@cache
def _is_playable(game: str) -> bool:
    # The emulator ends the whole process where it is given a ROM that it cannot play alone.
    return ALEInterface.isSupportedROM(rom_path(game)) is not None
