"""The threads of the C++ core that compute: as many as PyTorch computes with on a CPU.

That number is the one rule: `torch.set_num_threads` sets it for both. A pool's threads sleep while
there is nothing to compute.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from fastdqn._core import ThreadPool

__all__ = ["compute_threads", "own_thread"]


def compute_threads() -> ThreadPool:
    """The pool that all computations of this process share."""
    return _pool(torch.get_num_threads())


@lru_cache(maxsize=1)
def _pool(threads: int) -> ThreadPool:
    return ThreadPool(threads)


@lru_cache(maxsize=1)
def own_thread() -> ThreadPool:
    """The caller's thread alone, for what is computed while the others are busy."""
    return ThreadPool(1)
