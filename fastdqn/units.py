"""Bytes as people write and read them."""

from __future__ import annotations

import re

__all__ = ["bytes_text", "parse_bytes", "share_text"]

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_STEPS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "B"))


def parse_bytes(text: str) -> int:
    """The bytes that such as "2GiB", "1.5 GB" or "800000" name. Anything else: `ValueError`."""
    found = re.fullmatch(r"\s*([\d_]+(?:\.\d+)?)\s*([a-z]*)\s*", text, re.IGNORECASE)
    unit = _UNITS.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise ValueError(f"{text!r} is no size; write one such as 2GiB or 500MB")
    return int(float(found[1]) * unit)


def bytes_text(nbytes: float) -> str:
    """Three digits and a unit, such as "1.78 GB"."""
    size, unit = _unit(nbytes)
    return f"{_three_digits(nbytes / size)} {unit}"


def share_text(part: float, whole: float) -> str:
    """A part and a whole in the whole's unit, such as "0.44 of 1.78 GB"."""
    size, unit = _unit(whole)
    return f"{_three_digits(part / size)} of {_three_digits(whole / size)} {unit}"


def _unit(nbytes: float) -> tuple[int, str]:
    return next(((size, unit) for size, unit in _STEPS if nbytes >= 0.9995 * size), _STEPS[-1])


def _three_digits(value: float) -> str:
    decimals = 0 if value >= 99.95 or value == int(value) else 1 if value >= 9.995 else 2
    return f"{value:.{decimals}f}"
