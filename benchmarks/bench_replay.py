"""What the replay memory costs: microseconds to append and to sample, bytes to store a frame.

All memories are filled with the same games. The plain numpy ring of the baseline is the reference
for our answers and the array that the plain copies are taken from; other systems' answers are
compared frame by frame, by the number that every frame carries in its first pixels.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import harness
import numpy as np
import numpy.typing as npt
from baseline import Batch, FrameRing
from harness import OURS, Contender, Effort, Row, agree
from replay_peers import PEERS, SHAPE, Peer, PeerMemory, scratch_folder

from fastdqn.envs.make import make_envs
from fastdqn.machine import memory_limits
from fastdqn.replay import ReplayMemory

__all__ = ["append", "memory", "sample"]

FRAME_BYTES = 84 * 84
STACK = 4
BATCH = 32
EXTRA = 1000  # frames beyond the capacity, so that every memory has wrapped around
COPY = "limit: a plain copy of the same bytes"
PLAIN = "plain numpy"
COMPRESSED = "fastdqn, compressed"
MAPPED = "fastdqn, in files"


class Stored(NamedTuple):
    """One more frame, and what led to it unless it begins an episode."""

    number: int
    frame: npt.NDArray[np.uint8]  # [1, 84, 84]
    begins: bool
    action: npt.NDArray[np.int64]  # [1]
    reward: npt.NDArray[np.float32]  # [1]
    terminated: npt.NDArray[np.bool_]  # [1]
    truncated: npt.NDArray[np.bool_]  # [1]


class Script:
    """Games of Breakout cut into episodes of random lengths, the same for every memory.

    Each frame's first four pixels are its number; but for those, frames come again after
    `pictures`.
    """

    def __init__(self, pictures: int = 4001) -> None:
        generator = np.random.default_rng(7)
        self.pictures = breakout_frames(pictures)
        self.actions = generator.integers(4, size=(4099, 1))
        self.rewards = generator.integers(-1, 2, size=(4099, 1)).astype(np.float32)
        # A lost game about every 200 steps, every fourth one cut by a limit instead.
        ends = generator.random((4099, 1)) < 1 / 200
        cuts = generator.random((4099, 1)) < 1 / 4
        self.terminated = ends & ~cuts
        self.truncated = ends & cuts

    def play(self, frames: int) -> Iterator[Stored]:
        """The first `frames` frames, each in an array of its own."""
        begins, turn = True, 0
        for number in range(frames):
            at = turn % len(self.actions)
            yield Stored(
                number,
                self.frame(number)[None],
                begins,
                self.actions[at],
                self.rewards[at],
                self.terminated[at],
                self.truncated[at],
            )
            turn += not begins
            begins = not begins and bool(self.terminated[at, 0] or self.truncated[at, 0])

    def frame(self, number: int) -> npt.NDArray[np.uint8]:
        """[84, 84]."""
        frame = self.pictures[number % len(self.pictures)].copy()
        frame[0, :4] = np.frombuffer(np.uint32(number).tobytes(), np.uint8)
        return frame


def number_of(frame: npt.NDArray[np.uint8]) -> int:
    """The number that a frame carries."""
    return int(np.frombuffer(frame[0, :4].tobytes(), np.uint32)[0])


def breakout_frames(count: int) -> npt.NDArray[np.uint8]:
    """[count, 84, 84]: consecutive frames of Breakout, played at random."""
    envs = make_envs(None, "breakout", 1, seed=7)
    actions = np.random.default_rng(7).integers(envs.num_actions, size=(count, 1))
    frames = np.empty((count, 84, 84), np.uint8)
    frames[0] = envs.reset()[0]
    for i in range(1, count):
        result = envs.step(actions[i])
        frames[i] = result.frames[0]
        if result.terminated[0] or result.truncated[0]:
            envs.reset()
    envs.close()
    return frames


def fill_ours(memory: ReplayMemory, script: Script) -> None:
    """Fills a memory of ours beyond its capacity."""
    for step in script.play(memory.capacity + EXTRA):
        if step.begins:
            memory.begin(step.frame)
        else:
            memory.append(step.action, step.reward, step.frame, step.terminated, step.truncated)


def fill_ring(ring: FrameRing, script: Script) -> None:
    """Fills the plain memory."""
    for step in script.play(ring.capacity + EXTRA):
        if step.begins:
            ring.begin(step.frame[0])
        else:
            reward, terminated = float(step.reward[0]), bool(step.terminated[0])
            ring.append(int(step.action[0]), reward, step.frame[0], terminated)


Transition = tuple[
    npt.NDArray[np.uint8], int, float, npt.NDArray[np.uint8], bool, bool
]  # state, action, reward, next state, terminated, truncated


def transitions(script: Script, frames: int, repeats_first: bool) -> Iterator[Transition]:
    """The script as stacks [4, 84, 84], each in an array of its own."""
    stack = np.zeros(SHAPE, np.uint8)
    for step in script.play(frames):
        if step.begins:
            stack = np.zeros(SHAPE, np.uint8)
            stack[:] = step.frame if repeats_first else 0
            stack[-1] = step.frame[0]
            continue
        after = np.concatenate([stack[1:], step.frame])
        ends, cut = bool(step.terminated[0]), bool(step.truncated[0])
        yield stack, int(step.action[0]), float(step.reward[0]), after, ends, cut
        stack = after


def sample(effort: Effort) -> Iterator[Row]:
    """Microseconds for a batch of 32 transitions out of a full memory, and how that grows."""
    script = Script()
    # The largest first, while most memory is free.
    rows = {n: sample_row(script, n, effort) for n in sorted(effort.capacities, reverse=True)}
    yield from (rows[capacity] for capacity in effort.capacities)
    if len(effort.capacities) > 1:
        yield flat_row(script, effort)


def sample_row(script: Script, capacity: int, effort: Effort) -> Row:
    """One capacity. Other systems' memories are too large to stand side by side: each is matched
    with ours alone, and freed."""
    row = Row("sample", f"sample({BATCH}) of {STACK}-stacks from {capacity:,} frames", "µs")
    if not fits(row, 2.3 * capacity * FRAME_BYTES):
        row.require_ratio(None, 1.15, COPY)
        return row
    before = harness.huge_page_bytes()
    memory = ReplayMemory(capacity)
    fill_ours(memory, script)
    ours = Contender(OURS, sampling(memory))
    in_huge_pages = (harness.huge_page_bytes() - before) / (capacity * FRAME_BYTES)
    row.add(match_ring(script, memory, ours, effort.seconds))
    for peer in PEERS if capacity <= effort.peer_capacity else ():
        if fits(row, peer.stack_bytes * 4 * capacity * FRAME_BYTES, peer.name):
            theirs = Contender(peer.name, peer_sampling(peer, script, capacity), None, peer.package)
            row.add(harness.match([ours, theirs], seconds=effort.peer_seconds))
            if peer.caveat:
                row.notes.append(f"{peer.name}, not compared: {peer.caveat}")
    row.notes += [
        f"a copy is {BATCH} x {STACK + 1} frames = {BATCH * (STACK + 1) * FRAME_BYTES:,} bytes "
        "from random places of plain numpy's frames, into one array that is used again",
        f"in huge pages: {in_huge_pages:.0%} of our frames' size",
    ]
    row.require_ratio(COPY, 1.15)
    compressed, raw = row.figures.get(COMPRESSED, []), row.ours.get(COMPRESSED, [])
    over_raw = [c / r for c, r in zip(compressed, raw, strict=False)]
    if capacity == 100_000:
        peer_name = row.best([p.name for p in PEERS])
        row.require_ratio(peer_name, 1 / 2.5, "the fastest peer")
        # Both were matched with raw frames, not with each other.
        raw_over_peer = float(np.median(row.ratios(peer_name))) if peer_name else 1.0
        row.require(
            f"{row.title}: compressed, as training stores them by default, at most 0.4 times the "
            f"fastest peer ({peer_name})",
            [ratio * raw_over_peer for ratio in over_raw] if peer_name else [],
            0.4,
            at_most=True,
            unit="times",
        )
    if capacity >= 1_000_000:
        row.require(
            f"{row.title}: compressed at most 1.25 times raw",
            over_raw,
            1.25,
            at_most=True,
            unit="times",
        )
    return row


def match_ring(
    script: Script, memory: ReplayMemory, ours: Contender, seconds: float
) -> harness.Turns:
    """Ours against the plain memory, and against a copy of as many bytes out of it."""
    ring = FrameRing(memory.capacity)
    fill_ring(ring, script)
    check_sample(memory, ring)
    contenders = [
        ours,
        Contender("fastdqn, into the trainer's arrays", calls(into(memory))),
        Contender(COPY, calls(plain_copy(ring.frames))),
        Contender(PLAIN, calls(lambda: ring.sample(BATCH))),
        Contender(COMPRESSED, stored(script, ring, storage="compressed")),
    ]
    if memory.capacity <= 100_000:  # the files would be as large as the memory once more
        files = stored(script, ring, in_files=True)
        contenders.append(Contender(MAPPED, files))
    return harness.match(contenders, seconds=seconds)


def fits(row: Row, needed: float, name: str = OURS) -> bool:
    """Whether that many bytes are free; where not, the row says who does without."""
    if needed < 0.9 * min(limit.left for limit in memory_limits()):
        return True
    row.absent[name] = f"needs {needed / 1e9:.1f} GB of memory"
    return False


def flat_row(script: Script, effort: Effort) -> Row:
    """Whether sampling slows down as more is stored: the same memory class, sizes in turns."""
    small, large = min(effort.capacities), max(effort.capacities)
    row = Row("sample", f"sample({BATCH}): does it slow down as more is stored?", "µs")
    if not fits(row, 1.1 * (small + large) * FRAME_BYTES):
        return row

    def of(capacity: int) -> Callable[[ExitStack], Callable[[], float]]:
        memory = ReplayMemory(capacity)
        fill_ours(memory, script)
        return sampling(memory)

    names = {f"{small:,} frames stored": of(small), f"{large:,} frames stored": of(large)}
    turns = harness.match(
        [Contender(name, prepare) for name, prepare in names.items()], seconds=effort.peer_seconds
    )
    fewest, most = names
    row.beside = "nothing"
    row.add(turns)
    row.require(
        f"sample({BATCH}): {large:,} frames at most 1.6 times {small:,}",
        [b / a for a, b in zip(row.figures[fewest], row.figures[most], strict=True)],
        1.6,
        at_most=True,
        unit="times",
    )
    return row


def calls(call: Callable[[], object], times: int = 20) -> Callable[[ExitStack], Any]:
    """Turns of that many calls."""
    return lambda _: harness.repeat(call, times)


def sampling(memory: ReplayMemory) -> Callable[[ExitStack], Any]:
    """Turns of samples."""
    return calls(lambda: memory.sample(BATCH))


def stored(
    script: Script, ring: FrameRing, *, in_files: bool = False, **options: Any
) -> Callable[[ExitStack], Callable[[], float]]:
    """Samples of a memory that keeps its frames in another way, with the same answers."""

    def prepare(resources: ExitStack) -> Callable[[], float]:
        if in_files:
            options["directory"] = resources.enter_context(
                scratch_folder(ring.capacity * FRAME_BYTES)
            )
        memory = ReplayMemory(ring.capacity, **options)
        fill_ours(memory, script)
        check_sample(memory, ring)
        return harness.repeat(lambda: memory.sample(BATCH), 20)

    return prepare


def peer_sampling(
    peer: Peer, script: Script, capacity: int
) -> Callable[[ExitStack], Callable[[], float]]:
    """Another system's."""

    def prepare(_: ExitStack) -> Callable[[], float]:
        memory = filled_peer(peer, script, capacity)
        check_peer(peer, memory, script, capacity)
        return harness.repeat(lambda: memory.sample(BATCH), 5)

    return prepare


def filled_peer(peer: Peer, script: Script, capacity: int) -> PeerMemory:
    """A full memory of another system's."""
    memory = peer.make(capacity)
    last: Any = None
    for state, action, reward, after, ends, cut in transitions(
        script, capacity + EXTRA, peer.repeats_first
    ):
        prepared = memory.prepare(state) if last is None else last
        prepared_after = memory.prepare(after)
        memory.add(prepared, action, reward, prepared_after, ends, cut)
        last = None if ends or cut else prepared_after
    return memory


def check_peer(peer: Peer, memory: PeerMemory, script: Script, capacity: int) -> None:
    """Batches have the right shapes, and every row is one of the script's transitions."""
    expected: dict[int, tuple[int, float, bool, bool, int]] = {}
    age = 0
    for step in script.play(capacity + EXTRA):
        if step.begins:
            age = 0
        else:
            ends, cut = bool(step.terminated[0]), bool(step.truncated[0])
            action, reward = int(step.action[0]), float(step.reward[0])
            expected[step.number - 1] = (action, reward, ends, cut, age)
            age += 1

    oldest = list(expected)[-capacity]

    def stack(newest: int, age: int) -> npt.NDArray[np.uint8]:
        frames = np.zeros(SHAPE, np.uint8)
        for i in range(STACK):
            back = STACK - 1 - i
            if back <= age or peer.repeats_first:
                frames[i] = script.frame(newest - min(back, age))
        return frames

    for _ in range(10):
        batch = memory.arrays(memory.sample(BATCH))
        for part in (batch.states, batch.next_states):
            agree(f"stacks of {part.shape} {part.dtype}", part.shape == (BATCH, *SHAPE))
            agree(f"stacks of {part.dtype}", part.dtype == np.uint8)
        for i in range(BATCH):
            newest = number_of(batch.states[i, -1])
            agree(f"a state whose newest frame, {newest}, has no successor", newest in expected)
            action, reward, ends, cut, age = expected[newest]
            if newest - min(age, STACK - 1) < oldest and not peer.whole_at_head:
                continue
            agree(f"frame {newest}: state", np.array_equal(batch.states[i], stack(newest, age)))
            agree(f"frame {newest}: action", int(batch.actions[i]) == action)
            agree(f"frame {newest}: reward", float(batch.rewards[i]) == reward)
            if peer.next_at_ends or not (ends or cut):
                after = stack(newest + 1, age + 1)
                agree(f"frame {newest}: next", np.array_equal(batch.next_states[i], after))


def append(effort: Effort) -> Iterator[Row]:
    """Microseconds for one transition into a full memory."""
    capacity = min(10_000, *effort.capacities)
    row = Row("append", f"append of one step to a full memory of {capacity:,} frames", "µs")
    script, count = Script(), 997
    ends = np.zeros(1, np.bool_)
    steps = [
        (script.actions[i], script.rewards[i], script.frame(i)[None], ends, ends)
        for i in range(count)
    ]

    def ours(**options: Any) -> Callable[[ExitStack], Callable[[], float]]:
        def prepare(_: ExitStack) -> Callable[[], float]:
            memory, ring = ReplayMemory(capacity, **options), FrameRing(capacity)
            fill_ours(memory, script)
            fill_ring(ring, script)
            check_sample(memory, ring)
            memory.begin(steps[0][2])

            def turn() -> float:
                put = memory.append
                for step in steps:
                    put(*step)
                return count

            return turn

        return prepare

    def copied(_: ExitStack) -> Callable[[], float]:
        target, slots = np.ones((capacity, 84, 84), np.uint8), itertools.count()

        def turn() -> float:
            slot = count * next(slots) % (capacity - count)
            for step in steps:
                target[slot] = step[2]
                slot += 1
            return count

        return turn

    def plain(_: ExitStack) -> Callable[[], float]:
        ring = FrameRing(capacity)
        fill_ring(ring, script)
        ring.begin(steps[0][2][0])

        def turn() -> float:
            for action, reward, frame, terminated, _ in steps:
                ring.append(int(action[0]), float(reward[0]), frame[0], bool(terminated[0]))
            return count

        return turn

    def theirs(peer: Peer) -> Callable[[ExitStack], Callable[[], float]]:
        def prepare(_: ExitStack) -> Callable[[], float]:
            memory = filled_peer(peer, script, capacity)
            check_peer(peer, memory, script, capacity)
            stacks = [
                memory.prepare(np.stack([script.frame(i + j) for j in range(STACK)]))
                for i in range(65)
            ]
            pairs = list(itertools.pairwise(stacks))

            def turn() -> float:
                for state, after in pairs:
                    memory.add(state, 1, 0.0, after, False, False)
                return len(pairs)

            return turn

        return prepare

    copy = "limit: a plain copy of its frame"
    contenders = [
        Contender(OURS, ours()),
        Contender(copy, copied),
        Contender(PLAIN, plain),
        Contender(COMPRESSED, ours(storage="compressed")),
        *(Contender(peer.name, theirs(peer), package=peer.package) for peer in PEERS),
    ]
    row.add(harness.match(contenders, seconds=effort.seconds))
    text = "append: at most 5 µs a call beyond copying its frame"
    row.require(text, row.differences(copy), 5.0, at_most=True, unit="µs")
    more = [-less for less in row.differences(COMPRESSED)]
    text = "append: compressed at most 15 µs a frame more"
    row.require(text, more, 15.0, at_most=True, unit="µs")
    yield row


def memory(effort: Effort) -> Iterator[Row]:
    """Gigabytes of a million transitions, everything that belongs to them included."""
    million, few, many = 1_000_000, 2_000, 10_000
    row = Row("memory", "Memory of 1,000,000 transitions of Breakout", "GB")
    script = Script()
    if fits(row, million * FRAME_BYTES):
        each = ReplayMemory(million).nbytes / million
        row.put(OURS, each * million / 1e9)
        text = f"memory: at most {FRAME_BYTES:,} + 40 bytes a frame"
        row.require(text, [each], FRAME_BYTES + 40, at_most=True, unit="bytes")
    row.put("limit of uncompressed frames: their pixels", FRAME_BYTES * million / 1e9)
    compressed = ReplayMemory(many, storage="compressed")
    fill_ours(compressed, script)
    row.put(COMPRESSED, compressed.nbytes_now / many * million / 1e9)
    for peer in PEERS:
        try:
            row.put(peer.name, filled_peer(peer, script, few).nbytes() / few * million / 1e9)
        except ImportError as error:
            row.absent[peer.name] = f"not installed: {error}; pip install 'fastdqn[bench]'"
        except Exception as error:
            row.absent[peer.name] = f"{type(error).__name__}: {error}"
    row.notes.append(
        f"compressed: what {many:,} frames take, times {million // many}; others: what {few:,} "
        f"transitions take, times {million // few}, files included"
    )
    yield row


def check_sample(memory: ReplayMemory, ring: FrameRing) -> None:
    """The same transitions can be drawn, they read the same, and a sample is one of them."""
    valid = np.flatnonzero(ring.valid(np.arange(ring.capacity)))
    agree("sample: what can be drawn", np.array_equal(memory.valid_indices(), valid))
    indices = np.random.default_rng(3).choice(valid, 2000)
    # Both ends of the ring and every kind of episode end are among these.
    near = np.concatenate([valid[:50], valid[-50:], valid[np.abs(valid - ring.newest) < 50]])
    for chosen in (indices, near):
        same_batch(memory.gather(chosen), ring.gather(chosen))
    batch = memory.sample(BATCH)
    agree("sample: indices", np.isin(batch.indices, valid).all())
    same_batch(batch, ring.gather(batch.indices))


def same_batch(ours: Any, theirs: Batch) -> None:
    """Every part of two batches is equal, bit by bit."""
    names = ("states", "actions", "rewards", "discounts", "next_states")
    for name, expected in zip(names, theirs, strict=True):
        agree(f"sample: {name}", np.array_equal(getattr(ours, name), expected))


def into(memory: ReplayMemory) -> Callable[[], object]:
    """The trainer's way: channels-last into arrays that are used again."""
    states, next_states = (
        np.empty((BATCH, 84, 84, STACK), np.uint8).transpose(0, 3, 1, 2) for _ in range(2)
    )
    actions, indices = (np.empty(BATCH, np.int64) for _ in range(2))
    rewards, discounts = (np.empty(BATCH, np.float32) for _ in range(2))
    arrays = (states, next_states, actions, rewards, discounts, indices)
    return lambda: memory.sample_into(*arrays)


def plain_copy(frames: npt.NDArray[np.uint8]) -> Callable[[], object]:
    """Copies 32 runs of 5 frames from random places; the places are drawn beforehand."""
    flat = frames.reshape(len(frames), -1)
    starts = np.random.default_rng(5).integers(len(flat) - STACK, size=(4096, BATCH, 1))
    places = itertools.cycle((starts + np.arange(STACK + 1)).reshape(4096, -1))
    out = np.empty((BATCH * (STACK + 1), FRAME_BYTES), np.uint8)
    return lambda: np.take(flat, next(places), axis=0, out=out, mode="clip")
