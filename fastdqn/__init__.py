"""Deep Q-learning for Atari and classic control."""

from __future__ import annotations

__version__ = "0.1.0"
