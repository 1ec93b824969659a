"""The one exception for a user's mistake.

It says what can be said in one line: the value, what was expected, the fix. Mistakes of a caller's
code (a wrong shape, a wrong type) stay `ValueError` and `TypeError`.
"""

from __future__ import annotations

__all__ = ["UserError"]


class UserError(ValueError):
    """A mistake in what a user asked for; its message is one line.

    The command line prints it as `fastdqn-train: <message>` and exits with status 2.
    """
