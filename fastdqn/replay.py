"""The replay memory and its batches, as the C++ core publishes them.

Nothing is computed here: this module only gives the classes their place in the package.
"""

from __future__ import annotations

from fastdqn._core import Batch, Prefetcher, ReplayMemory

__all__ = ["Batch", "Prefetcher", "ReplayMemory"]
