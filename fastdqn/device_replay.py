"""The replay memory's frames on the learner's device, so that only indices travel.

The memory in C++ stays the one that knows: it draws, and says in which slots a batch's frames are.
This keeps a copy of every slot's frame on the device, and gathers stacks there. It takes the whole
ring of raw frames in the device's memory, beside whatever the host's memory takes for the same.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from fastdqn.errors import UserError
from fastdqn.lanes import Event, Lane, copy_all
from fastdqn.units import bytes_text

__all__ = ["DeviceRing", "SlotMemory", "check_device_memory"]

# Frames of a step on their way to the device. More than two only lets the host run ahead.
_UPLOADS = 4
# Slots read back and uploaded at once where a ring is filled from a memory.
_CHUNK_BYTES = 16 * 2**20
# What the networks, their activations and CUDA's own libraries take, generously.
_WORKSPACE_BYTES = 2 * 2**30


class SlotMemory(Protocol):
    """What a ring needs of a replay memory."""

    @property
    def capacity(self) -> int: ...

    @property
    def num_frames(self) -> int: ...

    def newest_slots(self, env_ids: Any = None) -> NDArray[np.int64]:
        """[N]: where each environment's newest frame is."""

    def frames_into(self, out: NDArray[Any], slots: Any) -> None:
        """Write the frames in `slots` to `out` [N, 1, *frame_shape]."""


class DeviceRing:
    """A frame for each slot of a memory, and one of zeros behind them, which stands for padding.

    All of it happens on the lane's copying queue, in the order of the calls.
    """

    def __init__(
        self,
        memory: SlotMemory,
        lane: Lane,
        device: torch.device,
        *,
        rows: int,
        frame_shape: Sequence[int],
        dtype: DTypeLike,
    ) -> None:
        """`rows`: how many frames are stored at once, at most."""
        self._memory = memory
        self._lane = lane
        self._shape = tuple(frame_shape)
        self._torch_dtype = torch.from_numpy(np.empty(0, dtype)).dtype
        nbytes = math.prod(frame_shape) * np.dtype(dtype).itemsize
        # In words, which are gathered several times as fast as bytes.
        self._word = torch.int64 if nbytes % 8 == 0 else torch.uint8
        self._frames = torch.zeros(
            (memory.capacity + 1, nbytes // self._word.itemsize), dtype=self._word, device=device
        )
        self._uploads = deque(self._make_upload(rows) for _ in range(_UPLOADS))
        # The copying queue writes to memory that the computing queue has just filled with zeros, or
        # that is recycled from work still queued there.
        made = lane.event()
        lane.record_computed(made)
        lane.copy_waits_for(made)
        self._fill()

    @property
    def nbytes(self) -> int:
        """Bytes of the device's memory that the ring takes."""
        return self._frames.nbytes

    def _make_upload(self, rows: int) -> _Upload:
        return _Upload(self._lane, rows, self._shape, self._torch_dtype)

    def stored(self, frames: NDArray[Any], env_ids: NDArray[np.int64] | None = None) -> None:
        """Take over frames [N, *frame_shape] that the memory has just stored as the newest ones of
        these environments."""
        slots = self._memory.newest_slots(env_ids)
        if (slots < 0).any():  # overwritten already
            frames, slots = frames[slots >= 0], slots[slots >= 0]
        upload = self._uploads[0]
        self._uploads.rotate(-1)
        upload.copied.synchronize()  # its last upload was begun some steps ago
        self._put(upload, frames, slots)

    def _fill(self) -> None:
        """Take over what the memory holds already, as one that was loaded does."""
        if not self._memory.num_frames:
            return
        rows = max(_CHUNK_BYTES // (self._frames[0].nbytes), 1)
        upload = self._make_upload(rows)
        frames = np.empty((rows, 1, *self._shape), upload.frames.numpy().dtype)
        for first in range(0, self._memory.num_frames, rows):
            slots = np.arange(first, min(first + rows, self._memory.num_frames))
            self._memory.frames_into(frames[: len(slots)], slots)
            self._put(upload, frames[: len(slots), 0], slots)
            upload.copied.synchronize()

    def _put(self, upload: _Upload, frames: NDArray[Any], slots: NDArray[np.int64]) -> None:
        count = len(slots)
        upload.frames.numpy()[:count] = frames
        upload.slots.numpy()[:count] = slots
        self._lane.queue_copying(partial(self._scatter, upload, count))
        self._lane.record_copied(upload.copied)

    def _scatter(self, upload: _Upload, count: int) -> None:
        frames, slots = upload.device_frames[:count], upload.device_slots[:count]
        copy_all([upload.frames[:count], upload.slots[:count]], [frames, slots])
        self._frames.index_copy_(0, slots, frames.view(count, -1).view(self._word))

    def empty_stacks(self, rows: int, stack: int) -> Tensor:
        """Memory on the device for stacks [rows, stack, *frame_shape], frame by frame."""
        return torch.empty(
            (rows, stack, *self._shape), dtype=self._torch_dtype, device=self._frames.device
        )

    def gather_into(self, stacks: Tensor, slots: Tensor) -> None:
        """Gather the frames in `slots` [B, stack], on the device, to `empty_stacks`' memory.

        To be called on the copying queue.
        """
        words = stacks.view(slots.numel(), -1).view(self._word)
        torch.index_select(self._frames, 0, slots.view(-1), out=words)

    def close(self) -> None:
        """Wait until nothing is uploaded any more."""
        for upload in self._uploads:
            upload.copied.synchronize()


class _Upload:
    """Place for a step's frames on both sides."""

    def __init__(self, lane: Lane, rows: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.frames = torch.empty((rows, *shape), dtype=dtype, pin_memory=lane.pinned)
        self.slots = torch.empty(rows, dtype=torch.int64, pin_memory=lane.pinned)
        self.device_frames = lane.device_tensor(self.frames)
        self.device_slots = lane.device_tensor(self.slots)
        self.copied: Event = lane.event()
        """The host's side may be written again."""


def check_device_memory(device: torch.device, capacity: int, frame_nbytes: int) -> None:
    """Refuse a ring that would not leave a GPU some memory to learn in."""
    if device.type != "cuda":
        raise UserError(
            f"replay_device='cuda': the networks are on {device}, and frames lie beside them; "
            "give device='cuda', or replay_device='host'"
        )
    free, _ = torch.cuda.mem_get_info(device)
    need = (capacity + 1) * frame_nbytes
    room = free - _WORKSPACE_BYTES
    if need > room:
        fits = max(room // frame_nbytes - 1, 0)
        raise UserError(
            f"replay_capacity={capacity}: its frames take {bytes_text(need)} and {device} has "
            f"{bytes_text(max(room, 0))} free for them; replay_capacity={fits} would fit, or "
            "replay_device='host'"
        )
