"""Batches of stacks as a network's passes take them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["Inputs"]


@dataclass(frozen=True)
class Inputs:
    """Rows in one or more tensors, one behind the other: `inputs[start:stop]` are some of them, in
    as many tensors, some of which may be empty."""

    parts: tuple[Tensor, ...]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __getitem__(self, rows: slice) -> Inputs:
        start, stop, _ = rows.indices(len(self))
        parts = []
        for part in self.parts:
            parts.append(part[max(start, 0) : max(stop, 0)])
            start, stop = start - len(part), stop - len(part)
        return Inputs(tuple(parts))
