"""Environments that step in processes of their own, while this one learns.

Each worker drives a contiguous share of the environments with what drives them in this process,
`SerialVector`, and writes into one block of memory that all see: the arrays of a step's result are
views of it. So the results are, bit for bit, those of the same environments in this process,
however many workers there are.

A step costs one signal to each worker and one back, and nothing else: an eventfd, which wakes a
process as quickly as a futex does, and needs no compiled code. A worker resets what has ended as
soon as it has reported the step, and leaves the first frames in the block. Everything rare is a
message on a socket.

To start a game takes as long as a dozen steps, for which all would wait. So who has time to spare
starts games before the ones that are played have ended (`SerialVector.prepare`): while a worker
waits for long, and while another has to start one that nobody had time for.

A worker is a new interpreter that runs `worker_main`, not a fork, which would copy CUDA's state and
other threads' locks, and not multiprocessing's spawn, which would run the user's script once more
and load torch. The block is a memfd: it has no name, so nothing can be left behind in /dev/shm.
Linux has all of these, other systems have not.
"""

from __future__ import annotations

import base64
import json
import mmap
import multiprocessing.spawn
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from fastdqn.envs.vector import (
    SerialVector,
    StateNotSaved,
    StepResult,
    checked_ids,
    states_of_all,
)
from fastdqn.errors import UserError

__all__ = [
    "CLOSE",
    "PREPARE",
    "REFUSALS",
    "REQUEST",
    "STEP",
    "Block",
    "Channel",
    "WorkerError",
    "WorkerVector",
    "describe_error",
    "use_spare_time",
]

# What is signalled to a worker. They are bits, since signals that a worker has not read yet add up;
# the last may be sent again before it is read, and then is lost, as it may be.
STEP, REQUEST, CLOSE, PREPARE = 1, 2, 4, 8

# A worker that has been killed is noticed after this time; one that ends by itself at once.
_CHECK_MILLISECONDS = 250
# Most waits for the slower of two are short, and a core that has fallen asleep wakes up slowly. Who
# looks out for so long leaves its core to any other that wants it.
_LOOK_OUT_SECONDS = 300e-6
# Who has waited for so long, longer than a game takes to start, waits for the trainer to learn: it
# has time for other things. Shorter waits are told what for, see `PREPARE`.
_SPARE_MILLISECONDS = 5
# What a worker may be at when it is told to end, before it is killed.
_PATIENCE_SECONDS = 5.0


class WorkerError(UserError):
    """A worker has failed or died: told in one line, as what the user has to act upon.

    What an environment raised stands in the message; its traceback is the cause of this error.
    """


class Block:
    """The memory that the workers and the trainer share, seen as arrays; `memory` is a descriptor.

    The trainer writes `sent`, a worker its own rows of all others, from the signal to it until its
    signal back.
    """

    def __init__(
        self,
        num_envs: int,
        num_workers: int,
        frame_shape: Sequence[int],
        dtype: npt.DTypeLike,
        memory: int,
    ) -> None:
        columns = StepResult.columns(frame_shape, dtype)
        kinds = {name: np.dtype((kind, (num_envs,))) for name, kind in columns.items()}
        kinds |= {
            "sent": np.dtype((np.int64, (num_envs,))),
            "first_frames": kinds["frames"],
            "starting": np.dtype((np.bool_, (num_workers,))),
            "failed": np.dtype((np.bool_, (num_workers,))),
        }
        offsets, size = [], 0
        for kind in kinds.values():
            offsets.append(size)
            size += -(-kind.itemsize // _ALIGNMENT) * _ALIGNMENT
        os.posix_fallocate(memory, 0, size)  # where there is too little, it fails here, not later
        mapped = mmap.mmap(memory, size)
        arrays = {
            name: np.ndarray((), kind, mapped, offset)
            for (name, kind), offset in zip(kinds.items(), offsets, strict=True)
        }
        self.result = StepResult(**{name: arrays[name] for name in columns})
        self.sent: npt.NDArray[np.int64] = arrays["sent"]
        """[N] the actions given; the results have those that were played."""
        self.first_frames: npt.NDArray[Any] = arrays["first_frames"]
        """[N, *frame_shape] of each environment's last reset."""
        self.starting: npt.NDArray[np.bool_] = arrays["starting"]
        """[W] who has to start a game before all can step again."""
        self.failed: npt.NDArray[np.bool_] = arrays["failed"]
        """[W] whose worker has left an error on its socket and ended."""


_ALIGNMENT = 64


class Channel:
    """Messages over a socket: a mapping of what JSON holds, bytes, arrays and numpy's scalars."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def send(self, message: Mapping[str, Any]) -> None:
        """Raises OSError where the other side has ended."""
        text = json.dumps(message, default=_encode).encode()
        self.connection.sendall(_LENGTH.pack(len(text)) + text)

    def receive(self) -> dict[str, Any] | None:
        """The next message; None where the other side has ended, or wants no more."""
        head = self._read(_LENGTH.size)
        text = head and self._read(*_LENGTH.unpack(head))
        return json.loads(text, object_hook=_decode) if text else None

    def _read(self, length: int) -> bytes:
        """That many bytes, or none."""
        read = bytearray()
        while len(read) < length:
            try:
                part = self.connection.recv(min(length - len(read), 2**20))
            except ConnectionResetError:
                part = b""
            if not part:
                return b""
            read += part
        return bytes(read)


_LENGTH = struct.Struct("<Q")


def _encode(value: Any) -> dict[str, Any]:
    if isinstance(value, bytes):
        return {"<bytes>": base64.b64encode(value).decode()}
    if isinstance(value, (np.ndarray, np.generic)):
        data = base64.b64encode(value.tobytes()).decode()
        return {"<array>": data, "dtype": value.dtype.str, "shape": value.shape}
    raise TypeError(f"{type(value).__name__} cannot be sent to another process")


def _decode(value: dict[str, Any]) -> Any:
    if "<bytes>" in value:
        return base64.b64decode(value["<bytes>"])
    if "<array>" in value:
        data = bytearray(base64.b64decode(value["<array>"]))
        array = np.frombuffer(data, np.dtype(value["dtype"])).reshape(value["shape"])
        return array if value["shape"] else array[()]
    return value


def describe_error(error: BaseException, *, refused: bool = False) -> dict[str, Any]:
    """An exception as a message. `refused`: the caller's, whom the trainer raises it to."""
    text = " ".join(str(error).split())
    trace = "".join(traceback.format_exception(error))
    return {"error": type(error).__name__, "text": text, "trace": trace, "refused": refused}


# What a worker may refuse, raised here as environments in this process would raise it.
REFUSALS: dict[str, type[Exception]] = {
    "UserError": UserError,
    "StateNotSaved": StateNotSaved,
    "ValueError": ValueError,
}


def use_spare_time(signal: select.poll, vector: SerialVector | None) -> None:
    """Until there is a signal to see to, or nothing else to do: looks out for it, and then prepares
    what `vector` can."""
    until = time.perf_counter() + _LOOK_OUT_SECONDS
    while not signal.poll(0):
        if time.perf_counter() > until:
            break
        os.sched_yield()
    while vector is not None and not signal.poll(_SPARE_MILLISECONDS) and vector.prepare():
        pass


class _WorkerTraceback(Exception):
    """Where an environment failed, as text."""

    def __str__(self) -> str:
        return f"in the worker:\n{self.args[0]}"


class _Worker:
    """One worker process, seen from the trainer's."""

    def __init__(self, number: int, share: range) -> None:
        self.rows = slice(share.start, share.stop)
        last = share[-1]
        which = f"environment {last}" if len(share) == 1 else f"environments {share[0]} to {last}"
        self._name = f"worker {number} ({which})"
        self._go, self.stepped, self.ready = (os.eventfd(0) for _ in range(3))
        ours, theirs = socket.socketpair()
        self._channel = Channel(ours)
        self._polls: dict[int, select.poll] = {}
        for descriptor in (self.stepped, self.ready, ours.fileno()):
            self._polls[descriptor] = select.poll()
            self._polls[descriptor].register(descriptor, select.POLLIN)
        # What the trainer can import, the worker can: its path comes before any import.
        path = [folder for folder in sys.path if isinstance(folder, str)]
        start = (
            f"import sys; sys.path[:] = {path!r}; from fastdqn.envs.worker_main import main; "
            f"main({theirs.fileno()}, {os.getpid()})"
        )
        with theirs:
            self.process = subprocess.Popen(
                [os.fsdecode(multiprocessing.spawn.get_executable()), "-c", start],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                # One process, one thread: the other cores are the trainer's and its other workers'.
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                # Ctrl-C at a terminal is for the trainer, which ends its workers in its own time.
                start_new_session=True,
            )

    def share(self, memory: int) -> None:
        """Hands over the block's memory and the events."""
        descriptors = [memory, self._go, self.stepped, self.ready]
        socket.send_fds(self._channel.connection, [b"."], descriptors)

    def signal(self, what: int) -> None:
        """Says what to do now."""
        os.eventfd_write(self._go, what)

    def wait(self, event: int, own: SerialVector | None = None) -> None:
        """Until the worker has signalled `event`: `stepped` or `ready`. Time to spare is for what
        `own` can prepare."""
        use_spare_time(self._polls[event], own)
        self._poll(event)
        os.read(event, 8)

    def send(self, message: Mapping[str, Any]) -> None:
        """Sends a message."""
        try:
            self._channel.send(message)
        except OSError:
            raise self._death() from None

    def receive(self) -> dict[str, Any]:
        """The worker's next message; raises the error that it may be."""
        self._poll(self._channel.connection.fileno())
        message = self._channel.receive()
        if message is None:
            raise self._death()
        if "error" not in message:
            return message
        if message["refused"] and message["error"] in REFUSALS:
            raise REFUSALS[message["error"]](message["text"])
        text = ": ".join(part for part in (message["error"], message["text"]) if part)
        raise WorkerError(f"{self._name} failed: {text}") from _WorkerTraceback(message["trace"])

    def end(self) -> None:
        """Tells the worker to end, whatever it waits for."""
        self.signal(CLOSE)
        self._channel.connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Lets go of the process and of all that belongs to it, once it has been told to end."""
        try:
            self.process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._channel.connection.close()
        for descriptor in (self._go, self.stepped, self.ready):
            os.close(descriptor)

    def _poll(self, descriptor: int) -> None:
        poll = self._polls[descriptor].poll
        while not poll(_CHECK_MILLISECONDS):
            if self.process.poll() is not None and not poll(0):
                raise self._death()

    def _death(self) -> WorkerError:
        try:
            status = self.process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            return WorkerError(f"{self._name} has closed its connection")
        if status >= 0:
            return WorkerError(f"{self._name} ended with exit status {status}")
        name = signal.Signals(-status).name
        hint = "; has the machine run out of memory?" if name == "SIGKILL" else ""
        return WorkerError(f"{self._name} was ended by {name}{hint}")


class WorkerVector:
    """N environments split over `workers` processes; see `VectorEnv`.

    They are those of `make_serial` with the same arguments, and so is every result. With
    `make_own`, which is `make_serial` itself for a share, this process is the first of the workers
    and plays while it would wait for the others. Raises `UserError` where `make_serial` would, and
    where there are not 1 to `num_envs` workers; any call raises `WorkerError` where another process
    has failed or died, after which nothing is left but to close.
    """

    def __init__(
        self,
        env: str | None,
        game: str | None,
        num_envs: int,
        *,
        workers: int,
        seed: int,
        make_own: Callable[..., SerialVector] | None = None,
        **options: Any,
    ) -> None:
        if not 1 <= workers <= num_envs:
            raise UserError(
                f"workers={workers}: num_envs={num_envs} can be split over 1 to {num_envs}"
            )
        self.num_envs = num_envs
        bounds = [num_envs * number // workers for number in range(workers + 1)]
        shares = [range(*pair) for pair in pairwise(bounds)]
        own_share = range(0) if make_own is None else shares.pop(0)
        self._own_rows = slice(own_share.stop)
        self._own: SerialVector | None = None
        self._workers: list[_Worker] = []
        self._close = weakref.finalize(self, _close, self._workers, os.getpid())
        try:
            for number, share in enumerate(shares):
                self._workers.append(_Worker(number, share))
            what = {"env": env, "game": game, "num_envs": num_envs, "seed": seed, **options}
            for worker, share in zip(self._workers, shares, strict=True):
                worker.send({"share": [share.start, share.stop], "what": what})
            if make_own is not None:  # in the time that the others take
                self._own = make_own(share=own_share)
            first, *_ = [worker.receive() for worker in self._workers]
            self.frame_shape: tuple[int, ...] = tuple(first["frame_shape"])
            self.dtype: np.dtype[Any] = np.dtype(first["dtype"])
            self.num_actions: int = first["num_actions"]
            self._protocol = {**first["protocol"], "num_envs": num_envs, "workers": workers}
            memory = os.memfd_create("fastdqn environments")
            try:
                processes = len(self._workers)
                self._block = Block(num_envs, processes, self.frame_shape, self.dtype, memory)
                for number, worker in enumerate(self._workers):
                    worker.send({"number": number, "num_workers": processes})
                    worker.share(memory)
            finally:
                os.close(memory)
            if self._own is not None:
                self._own.write_to(self._block.result.rows(self._own_rows))
        except BaseException:
            self.close()
            raise
        self._stepping = False
        self._ended = np.ones(num_envs, np.bool_)
        # Other processes begin with a reset of all their environments.
        self._resetting = list(self._workers)

    def protocol(self) -> dict[str, object]:
        """See `VectorEnv.protocol`."""
        return dict(self._protocol)

    def reset(self, env_ids: npt.NDArray[np.int64] | None = None) -> npt.NDArray[Any]:
        """See `VectorEnv.reset`. Where an environment has ended, its worker has seen to it."""
        ids = checked_ids(env_ids, self.num_envs)
        self._check_idle()
        with self._ending_on_failure():
            mine = ids[ids < self._own_rows.stop]
            self._prepare_together(mine)
            if self._own is not None:
                self._block.first_frames[mine] = self._own.reset(mine)
            self._await_resets()
            again = ids[~self._ended[ids] & (ids >= self._own_rows.stop)]
            if again.size:
                self._ask(
                    {
                        worker: {"reset": again[here] - worker.rows.start}
                        for worker in self._workers
                        if (here := (worker.rows.start <= again) & (again < worker.rows.stop)).any()
                    }
                )
            self._ended[ids] = False
            return self._block.first_frames[ids]

    def send(self, actions: npt.NDArray[np.int64]) -> None:
        """See `VectorEnv.send`."""
        if len(actions) != self.num_envs:
            raise ValueError(f"expected {self.num_envs} actions, got {len(actions)}")
        if actions.dtype.kind not in "iu":
            raise TypeError(f"actions must be integers, got {actions.dtype}")
        if self._ended.any():
            raise RuntimeError("the episode has ended: reset before the next step")
        for action in (actions.min(), actions.max()):
            if not 0 <= action < self.num_actions:
                raise IndexError(f"action must be in [0, {self.num_actions}), got {action}")
        self._check_idle()
        self._block.sent[:] = actions
        self._stepping = True
        for worker in self._workers:
            worker.signal(STEP)

    def receive(self) -> StepResult:
        """See `VectorEnv.receive`. The next `send` gives the arrays back to the workers."""
        if not self._stepping:
            raise RuntimeError("no step was begun: send actions before receiving their results")
        with self._ending_on_failure():
            if self._own is not None:
                self._own.step(self._block.sent[self._own_rows])
            self._await([(worker, worker.stepped) for worker in self._workers])
            self._raise_failure()
        self._stepping = False
        result, ended = self._block.result, self._ended
        np.logical_or(result.terminated, result.truncated, out=ended)
        if ended.any():
            self._resetting = [worker for worker in self._workers if ended[worker.rows].any()]
        return result

    def step(self, actions: npt.NDArray[np.int64]) -> StepResult:
        """See `VectorEnv.step`."""
        self.send(actions)
        return self.receive()

    def save_state(self) -> dict[str, Any]:
        """See `VectorEnv.save_state`: the same for any number of workers."""
        self._check_idle()
        if self._ended.any():  # its worker has gone on to the next game
            raise RuntimeError("an episode has ended: reset before its state is saved")
        with self._ending_on_failure(StateNotSaved):
            self._send_requests({worker: {"save": True} for worker in self._workers})
            try:  # all at once, as each starts the next games first
                own = [] if self._own is None else [self._own.save_state()]
            finally:
                answers = self._receive_answers(self._workers)
            answers = [*own, *answers]
        return {"envs": [state for answer in answers for state in answer["envs"]]}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """See `VectorEnv.load_state`."""
        states = states_of_all(state, self.num_envs)
        self._check_idle()
        with self._ending_on_failure(ValueError, StateNotSaved):
            self._await_resets()
            self._ask({worker: {"load": states[worker.rows]} for worker in self._workers})
            if self._own is not None:
                self._own.load_state({"envs": states[self._own_rows]})
            self._ended[:] = False

    def close(self) -> None:
        """See `VectorEnv.close`. A vector that nobody holds any more closes itself."""
        self._stepping = False
        self._close()
        if self._own is not None:
            self._own.close()

    def _check_idle(self) -> None:
        if not self._close.alive:
            raise RuntimeError("the environments are closed")
        if self._stepping:
            raise RuntimeError("a step has begun: receive its results first")

    @contextmanager
    def _ending_on_failure(self, *refusals: type[Exception]) -> Iterator[None]:
        """Where one worker has failed, or the call is cut short, by Ctrl-C say, all end: nobody
        knows how far the others came. After one of the refusals all can go on."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, WorkerError) or not isinstance(error, refusals):
                self.close()
            raise

    def _prepare_together(self, mine: npt.NDArray[np.int64]) -> None:
        """Where some have to start a game while all others wait, these start one of theirs."""
        starting = self._block.starting
        own_starts = self._own is not None and self._own.must_start(mine)
        if own_starts or starting.any():
            for worker, starts in zip(self._workers, starting.tolist(), strict=True):
                if not starts:
                    worker.signal(PREPARE)
            if self._own is not None and not own_starts:
                self._own.prepare()
            starting[:] = False

    def _await_resets(self) -> None:
        """Until the first frames of what has ended are there."""
        self._await([(worker, worker.ready) for worker in self._resetting])
        self._raise_failure()
        self._resetting = []

    def _await(self, signals: Sequence[tuple[_Worker, int]]) -> None:
        """Until all have come; in time to spare, games of this process are made ready."""
        for worker, event in signals:
            worker.wait(event, self._own)

    def _raise_failure(self) -> None:
        failed = self._block.failed
        if failed.any():
            self._workers[int(failed.argmax())].receive()

    def _ask(self, requests: Mapping[_Worker, Mapping[str, Any]]) -> list[dict[str, Any]]:
        self._send_requests(requests)
        return self._receive_answers(requests)

    def _send_requests(self, requests: Mapping[_Worker, Mapping[str, Any]]) -> None:
        for worker, request in requests.items():
            worker.signal(REQUEST)  # first, as a long message is sent while the worker reads it
            worker.send(request)

    def _receive_answers(self, workers: Iterable[_Worker]) -> list[dict[str, Any]]:
        """Raises the first error among them, once all have answered."""
        answers: list[dict[str, Any]] = []
        refusals: list[Exception] = []
        for worker in workers:
            try:
                answers.append(worker.receive())
            except WorkerError:
                raise
            except Exception as refusal:
                refusals.append(refusal)
        if refusals:
            raise refusals[0]
        return answers


def _close(workers: Sequence[_Worker], owner: int) -> None:
    """Ends the workers, none of which is waited for before all have been told."""
    if os.getpid() != owner:  # a forked child of the trainer lets go of its copy
        return
    for worker in workers:
        worker.end()
    for worker in workers:
        worker.close()
