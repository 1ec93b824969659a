"""How many bytes a compressed frame of each game takes: what a budget can count on.

The table is measured by this project's own tool; docs/memory.md has the command.
"""

from __future__ import annotations

__all__ = ["GAME_FRAME_SHAPE", "MEASURED", "budgeted_frame_bytes"]

GAME_FRAME_SHAPE = (84, 84)

MEASURED: dict[str, int] = {}

# Play that was not measured may show more, as that of a trained agent far into a game does.
MARGIN = 1.5
UNKNOWN = 1_800


def budgeted_frame_bytes(game: str) -> int:
    """Bytes that a frame of the game, by its full name, should not exceed on average."""
    return int(MARGIN * MEASURED[game]) if game in MEASURED else UNKNOWN
