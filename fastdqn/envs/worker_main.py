"""What a worker process does: it drives its share of the environments until the trainer ends it.

The other side is `WorkerVector`. Torch is never imported here.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np

from fastdqn.envs.make import make_serial
from fastdqn.envs.vector import SerialVector
from fastdqn.envs.workers import (
    CLOSE,
    PREPARE,
    REFUSALS,
    REQUEST,
    STEP,
    Block,
    Channel,
    describe_error,
    use_spare_time,
)
from fastdqn.errors import UserError

__all__ = ["main"]


def main(descriptor: int, trainer: int) -> None:
    """Serves the process `trainer` over the socket `descriptor`."""
    for number in (signal.SIGINT, signal.SIGTERM):  # whoever sends them to all, means the trainer
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(trainer,), daemon=True).start()
    channel = Channel(socket.socket(fileno=descriptor))
    work = channel.receive()
    if work is None:  # as wherever nothing comes any more: the trainer has let go
        return
    what: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in work["what"].items()
    }
    try:
        vector = make_serial(share=range(*work["share"]), **what)
    except BaseException as error:
        _fail(channel, error, refused=isinstance(error, UserError))
    channel.send(
        {
            "frame_shape": vector.frame_shape,
            "dtype": vector.dtype.str,
            "num_actions": vector.num_actions,
            "protocol": vector.protocol(),
        }
    )
    place = channel.receive()
    if place is None:
        return
    _, (memory, *events), _, _ = socket.recv_fds(channel.connection, 1, 4)
    block = Block(what["num_envs"], place["num_workers"], vector.frame_shape, vector.dtype, memory)
    service = _Service(vector, block, slice(*work["share"]), place["number"], channel, *events)
    try:
        service.run()
    except BaseException as error:
        block.failed[place["number"]] = True
        service.release_trainer()
        _fail(channel, error)


class _Service:
    """The work of a worker that has its environments and its place in the block."""

    def __init__(
        self,
        vector: SerialVector,
        block: Block,
        rows: slice,
        number: int,
        channel: Channel,
        go: int,
        stepped: int,
        ready: int,
    ) -> None:
        self._vector = vector
        self._result = block.result.rows(rows)
        self._sent = block.sent[rows]
        self._first_frames = block.first_frames[rows]
        self._starting = block.starting[number : number + 1]
        self._channel = channel
        self._go, self._stepped, self._ready = go, stepped, ready
        self._signals = select.poll()
        self._signals.register(go, select.POLLIN)
        vector.write_to(self._result)

    def run(self) -> None:
        """Until the trainer wants no more."""
        vector, result = self._vector, self._result
        self._first_frames[:] = vector.reset()
        os.eventfd_write(self._ready, 1)
        while not (what := self._wait()) & CLOSE:
            if what & STEP:
                vector.step(self._sent)
                ended = np.flatnonzero(result.terminated | result.truncated)
                self._starting[...] = vector.must_start(ended)
                os.eventfd_write(self._stepped, 1)
                if ended.size:
                    self._first_frames[ended] = vector.reset(ended)
                    os.eventfd_write(self._ready, 1)
            if what & PREPARE:
                vector.prepare()
            if what & REQUEST and (request := self._channel.receive()) is not None:
                self._channel.send(self._answer(request))
        vector.close()

    def _wait(self) -> int:
        """What the trainer has signalled."""
        use_spare_time(self._signals, self._vector)
        return int.from_bytes(os.read(self._go, 8), sys.byteorder)

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Does what is asked."""
        try:
            if "save" in request:
                return self._vector.save_state()
            if "load" in request:
                self._vector.load_state({"envs": request["load"]})
            else:
                ids = request["reset"]
                self._first_frames[ids] = self._vector.reset(ids)
        except tuple(REFUSALS.values()) as error:
            return describe_error(error, refused=True)
        return {}

    def release_trainer(self) -> None:
        """Ends whatever the trainer waits for."""
        for event in (self._stepped, self._ready):
            os.eventfd_write(event, 1)


def _fail(channel: Channel, error: BaseException, *, refused: bool = False) -> NoReturn:
    """Leaves the error to the trainer."""
    with suppress(OSError):
        channel.send(describe_error(error, refused=refused))
    sys.exit(1)


def _end_with(trainer: int) -> None:
    """Ends this process when the trainer has ended, however that did."""
    while os.getppid() == trainer:
        time.sleep(0.5)
    os._exit(1)
