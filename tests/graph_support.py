"""A CUDA graph on a CPU: what was recorded is done again on the very same tensors.

Recording leaves no trace, as on a GPU, and refuses what a GPU refuses while it records: to read a
tensor's value. Replaying does the same operations with the same operands, so that whatever the host
decided anew at each call, such as which tensor to read, is shown up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

_READS_VALUES = ("aten::_local_scalar_dense", "aten::nonzero", "aten::item")


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, Tensor)]


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class _Tape(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, list[Tensor], set[int]]] = []
        self.backups: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.name in _READS_VALUES:
            raise RuntimeError("operation not permitted when stream is capturing")
        written: set[int] = set()
        for argument, value in self._arguments(func, args, kwargs):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for tensor in _tensors(value):
                    written.add(_storage(tensor))
                    self.backups.setdefault(id(tensor), (tensor, tensor.clone()))
        result = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, _tensors(result), written))
        return result

    @staticmethod
    def _arguments(func: Any, args: Any, kwargs: Any) -> list[tuple[Any, Any]]:
        schema = func._schema.arguments
        return [
            *zip(schema, args, strict=False),
            *((item, kwargs[item.name]) for item in schema if item.name in kwargs),
        ]


class CpuRecorder:
    """See the module. Counts what it was asked for."""

    def __init__(self) -> None:
        self.warm_ups = self.recordings = self.replays = 0

    def warm_up(self, work: Callable[[], object]) -> None:
        self.warm_ups += 1
        work()

    def record(self, work: Callable[[], object]) -> Callable[[], object]:
        tape = _Tape()
        with tape:
            work()
        # The latest first: a tensor that others are views of comes back last.
        for tensor, backup in reversed(tape.backups.values()):
            with torch.no_grad():
                tensor.copy_(backup)
        self.recordings += 1

        @torch.no_grad()
        def replay() -> None:
            self.replays += 1
            for func, args, kwargs, results, written in tape.calls:
                inputs = {
                    tensor.untyped_storage().data_ptr() for tensor in _tensors((args, kwargs))
                }
                again = _tensors(func(*args, **kwargs))
                for old, new in zip(results, again, strict=True):
                    # Results written in place, and views of operands, are there already.
                    if _storage(old) not in written | inputs:
                        old.copy_(new)

        return replay
