"""Sizes in bytes, as they are written and read."""

from __future__ import annotations

import pytest

from fastdqn.units import bytes_text, parse_bytes, share_text


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("2GiB", 2 * 2**30),
        ("2 gib", 2 * 2**30),
        ("1.5GB", 1_500_000_000),
        ("500MB", 500_000_000),
        ("64KiB", 65_536),
        ("800_000", 800_000),
        ("12b", 12),
        ("0.5TiB", 2**39),
    ],
)
def test_sizes_are_read(text: str, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize(
    "text", ["", "GiB", "2 Gib/s", "-1GB", "1e9", "2G", "nan", "1.GB", "1 2GB"]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no size; write one such as 2GiB or 500MB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (7, "7 B"),
        (999.4, "999 B"),
        (999.6, "1.00 kB"),
        (1_000, "1 kB"),
        (7_056, "7.06 kB"),
        (70_560, "70.6 kB"),
        (705_600, "706 kB"),
        (7_056_000, "7.06 MB"),
        (1_773_000_000, "1.77 GB"),
        (28_000_000_000_000, "28 TB"),
    ],
)
def test_three_digits_and_a_unit(nbytes: float, text: str) -> None:
    assert bytes_text(nbytes) == text


def test_a_share_is_told_in_the_wholes_unit() -> None:
    assert share_text(4e8, 1.77e9) == "0.40 of 1.77 GB"
    assert share_text(70_500, 141_000) == "70.5 of 141 kB"
    assert share_text(0, 48_000) == "0 of 48 kB"
