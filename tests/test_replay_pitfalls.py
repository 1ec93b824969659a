"""One test for each kind of fault that users of other replay memories have reported.

Expected values are written out or follow from one line of arithmetic; the oracle is not used, so
that a misunderstanding shared by the oracle and the memory would show here.
"""

from __future__ import annotations

import gc
import math
import re
from typing import Any

import numpy as np
import pytest
from replay_scripts import ENDS, Drawn, Script, numbers

from fastdqn.replay import ReplayMemory

PADDINGS = ["zero", "repeat", "reject"]
WALLS = list(ENDS)


def smallest_capacity(**options: Any) -> int:
    """The minimum that the constructor names."""
    with pytest.raises(ValueError, match="capacity") as refusal:
        ReplayMemory(1, (1,), "int64", **options)
    named = re.search(r"at least (\d+)", str(refusal.value))
    assert named is not None
    return int(named[1])


# -- Windows and the write head ------------------------------------------------------------------


@pytest.mark.parametrize("stack", [1, 2, 4])
@pytest.mark.parametrize("n_step", [1, 2, 3])
@pytest.mark.parametrize("extra", [0, 1, 2, 5])
def test_no_window_reaches_across_the_write_head(stack: int, n_step: int, extra: int) -> None:
    """At every position of the head: only windows of frames that are all still stored."""
    capacity = smallest_capacity(stack=stack, n_step=n_step) + extra
    script = numbers(capacity, stack=stack, n_step=n_step, padding="reject").begin()
    seen = set()
    for newest in range(2, 4 * capacity):
        script.step(reward=float(newest))
        oldest = max(1, newest - capacity + 1)
        expected = [
            Drawn(
                state=list(range(t - stack + 1, t + 1)),
                action=t,
                reward=sum(0.5**k * (t + 1 + k) for k in range(n_step)),
                discount=0.5**n_step,
                next_state=list(range(t + n_step - stack + 1, t + n_step + 1)),
            )
            for t in range(oldest + stack - 1, newest - n_step + 1)
        ]
        assert script.drawable() == expected
        seen.update(script.memory.valid_indices().tolist())
    assert seen == set(range(capacity)), "every slot must be drawable at some time, slot 0 too"


@pytest.mark.parametrize("end", WALLS)
@pytest.mark.parametrize("offset", range(12))
def test_walls_hold_wherever_they_lie_in_the_ring(end: str, offset: int) -> None:
    """The same two episodes, moved through the ring slot by slot, over its seam as well."""
    script = numbers(12, stack=3, n_step=2)
    for _ in range(offset):
        script.begin()  # a lone frame: nothing to draw
    first = script.frames + 1
    script.episode(3, end).episode(2, "terminated")
    drawn = [
        (
            [frame - first + 1 if frame else 0 for frame in row.state],
            row.discount,
            [frame - first + 1 if frame else 0 for frame in row.next_state],
        )
        for row in script.drawable()
    ]
    ended_with = 0.0 if end in ("terminated", "both") else 0.25
    expected = [([0, 0, 1], 0.25, [1, 2, 3]), ([0, 1, 2], ended_with, [2, 3, 4])]
    if end != "interrupted":
        expected.append(([1, 2, 3], 2 * ended_with, [2, 3, 4]))
    expected += [([0, 0, 5], 0.0, [5, 6, 7]), ([0, 5, 6], 0.0, [5, 6, 7])]
    assert drawn == expected


@pytest.mark.parametrize(("stack", "n_step"), [(256, 1), (1, 300), (70, 70)])
def test_long_stacks_and_windows(stack: int, n_step: int) -> None:
    """Longer than a byte counts, and longer than the first episode."""
    script = numbers(stack + n_step + 3, stack=stack, n_step=n_step, discount=1.0)
    script.episode(2).begin()
    for frame in range(4, 3 * (stack + n_step)):
        overwritten = frame - script.memory.capacity
        first = 4 if overwritten < 4 else overwritten + stack
        rows = [row for row in script.drawable() if row.action >= 4]
        assert [row.action for row in rows] == list(range(first, frame - n_step + 1))
        for row in rows[:1] + rows[-1:]:
            expected = range(row.action - stack + 1, row.action + n_step + 1)
            shown = [number if number >= 4 else 0 for number in expected]
            assert row.state == shown[:stack]
            assert row.next_state == shown[n_step:]
        script.step()


def test_an_episode_longer_than_16_bits_count() -> None:
    """70,000 steps: the place in the episode does not wrap to 0, where padding would be."""
    memory = ReplayMemory(11, (1,), "int64", stack=4)
    frame = np.zeros((1, 1), np.int64)
    nothing, no = np.zeros(1), np.zeros(1, np.bool_)
    action = np.zeros(1, np.int64)
    memory.begin(frame)
    for number in range(1, 70_000):
        frame[...] = number
        memory.append(action, nothing, frame, no, no)
        if number > 10 and (number < 20 or abs(number - 2**15) < 6 or abs(number - 2**16) < 6):
            assert len(memory) == 7
            assert not memory.needs_padding()[0]
            assert memory.stacks()[0, :, 0].tolist() == list(range(number - 3, number + 1))
    memory.check_invariants()


@pytest.mark.parametrize("padding", PADDINGS)
def test_an_evicted_frame_is_not_an_absent_one(padding: str) -> None:
    """A stack whose older frames were overwritten is neither drawn nor padded."""
    script = numbers(6, stack=3, padding=padding).begin().steps(5)
    for newest in range(6, 20):
        oldest = newest - 5
        states = [row.state for row in script.drawable()]
        whole = [[t - 2, t - 1, t] for t in range(oldest + 2, newest)]
        if oldest == 1:
            whole = {"zero": [[0, 0, 1], [0, 1, 2]], "repeat": [[1, 1, 1], [1, 1, 2]]}.get(
                padding, []
            ) + whole
        assert states == whole
        script.step()


def test_an_idle_environment_loses_its_frames_and_is_never_padded() -> None:
    """Its episode goes on all the same, and is drawn again once whole stacks are stored."""
    script = numbers(10, stack=3, num_envs=2).begin().steps(2)  # frames 1, 3, 5 and 2, 4, 6
    for _ in range(7, 11):
        script.step(1)
        assert script.memory.stacks([0])[0, :, 0].tolist() == [1, 3, 5]
    for _ in range(11, 16):  # 1 is overwritten by 11, ..., 5 by 15
        script.step(1)
        with pytest.raises(ValueError, match="overwritten"):
            script.memory.stacks([0])
        with pytest.raises(ValueError, match="overwritten"):
            script.memory.stacks()
        assert not script.memory.needs_padding([0])[0]
        assert [row for row in script.drawable() if row.action in (1, 3, 5)] == []
    assert script.frames == 15
    script.step(0).step(0)  # 16, 17: the stack would need 5
    with pytest.raises(ValueError, match="overwritten"):
        script.memory.stacks([0])
    script.step(0)
    assert script.memory.stacks([0])[0, :, 0].tolist() == [16, 17, 18]
    assert max(script.drawable(), key=lambda row: row.action).action == 14
    script.step(0, reward=2.0, terminated=True)
    assert script.drawable()[-1] == Drawn([16, 17, 18], 18, 2.0, 0.0, [17, 18, 19])


# -- Ends ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "discount"),
    [
        ({"terminated": True}, 0.0),
        ({"truncated": True}, 0.5),
        ({"terminated": True, "truncated": True}, 0.0),
    ],
)
def test_the_last_transition_leads_to_the_real_final_frame(
    flags: dict[str, bool], discount: float
) -> None:
    """Not to the first frame of the next episode; a time limit bootstraps from it."""
    script = numbers(20, stack=2).begin().step().step(reward=3.0, **flags)
    script.begin().step()
    last = next(row for row in script.drawable() if row.action == 2)
    assert last == Drawn([1, 2], 2, 3.0, discount, [2, 3])


@pytest.mark.parametrize("padding", ["zero", "repeat"])
@pytest.mark.parametrize("end", WALLS)
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("n_step", [1, 3])
def test_stacks_never_borrow_frames(padding: str, end: str, steps: int, n_step: int) -> None:
    """Every end is a wall, for episodes shorter than the stack and of one step too."""
    script = numbers(100, stack=4, n_step=n_step, padding=padding)
    bounds = []
    for _ in range(4):
        first = script.frames + 1
        script.episode(steps, end)
        bounds.append((first, script.frames))
    for row in script.drawable():
        first, last = next((a, b) for a, b in bounds if a <= row.action <= b)
        beyond = 0 if padding == "zero" else first
        t = row.action
        assert row.state == [s if s >= first else beyond for s in range(t - 3, t + 1)]
        reached = min(t + n_step, last)
        assert row.next_state == [
            s if s >= first else beyond for s in range(reached - 3, reached + 1)
        ]


@pytest.mark.parametrize("end", ["terminated", "truncated", "both"])
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("n_step", [1, 2, 3, 5])
def test_an_episode_of_t_steps_gives_t_windows(end: str, steps: int, n_step: int) -> None:
    """Each has the action of its own frame and a discount of its own length, or 0."""
    script = numbers(100, stack=2, n_step=n_step)
    for _ in range(3):
        first = script.frames + 1
        script.episode(steps, end, reward=1.0)
        rows = [row for row in script.drawable() if row.action >= first]
        assert [row.action for row in rows] == list(range(first, first + steps))
        for t, row in enumerate(rows):
            length = min(n_step, steps - t)
            whole = t + n_step < steps or end == "truncated"
            assert row.discount == (0.5**length if whole else 0.0)
            assert row.reward == sum(0.5**k for k in range(length)), "no reward of the next episode"
    assert len(script.memory) == 3 * steps


@pytest.mark.parametrize("steps", [1, 2, 3, 6])
@pytest.mark.parametrize("n_step", [1, 2, 3, 5])
def test_an_interrupted_episode_keeps_only_its_whole_windows(steps: int, n_step: int) -> None:
    script = numbers(100, stack=2, n_step=n_step).begin().steps(steps, reward=1.0)
    for _ in range(3):
        assert [row.action for row in script.drawable()] == list(range(1, steps - n_step + 2))
        assert all(row.discount == 0.5**n_step for row in script.drawable())
        script.begin()  # nothing of a later episode completes a window


def test_the_terminal_transition_is_there_once_with_its_reward() -> None:
    """A reward on nothing but the last of two steps, with a stack of 4 and windows of 3."""
    script = numbers(30, stack=4, n_step=3)
    script.begin().step().step(reward=1.0, terminated=True)
    expected = [
        Drawn([0, 0, 0, 1], 1, 0.5, 0.0, [0, 1, 2, 3]),
        Drawn([0, 0, 1, 2], 2, 1.0, 0.0, [0, 1, 2, 3]),
    ]
    assert script.drawable() == expected
    script.begin().step()
    assert script.drawable() == expected


@pytest.mark.parametrize("n_step", [1, 2, 4])
def test_a_lost_life_ends_windows_but_not_stacks(n_step: int) -> None:
    script = numbers(40, stack=3, n_step=n_step).begin().steps(2, reward=1.0)
    script.step(reward=1.0, life_lost=True).steps(6, reward=1.0)
    rows = {row.action: row for row in script.drawable()}
    for t in (1, 2, 3):  # frame 4 was reached without the life
        length = min(n_step, 4 - t)
        assert rows[t].discount == (0.0 if t + n_step >= 4 else 0.5**length)
        assert rows[t].reward == sum(0.5**k for k in range(length))
        assert rows[t].next_state[-1] == t + length
    assert rows[4].state == [2, 3, 4], "the stack goes on over the life"
    assert rows[5].state == [3, 4, 5]
    assert rows[4].discount == 0.5**n_step


def test_what_only_resets_is_no_transition() -> None:
    """Frames of begin are stored, but count as no step and are led to by no action."""
    script = numbers(100, num_envs=2, stack=2)
    for _ in range(5):
        script.episode(3, "truncated")
    assert script.memory.num_frames == 2 * 5 * 4
    assert len(script.memory) == 2 * 5 * 3
    firsts = {1 + 8 * episode + env for episode in range(5) for env in range(2)}
    assert not firsts & {row.next_state[-1] for row in script.drawable()}


@pytest.mark.parametrize("flags", [ENDS["terminated"], ENDS["truncated"], ENDS["both"]])
def test_nothing_is_appended_after_an_end(flags: dict[str, bool]) -> None:
    script = numbers(20, num_envs=2).begin().step(0, **flags)
    with pytest.raises(ValueError, match="begin"):
        script.step(0)
    with pytest.raises(ValueError, match="begin"):
        script.step(1, 0)  # the row of 1 would be allowed
    assert script.memory.num_frames == 3
    script.begin(0).step()


def test_nothing_is_appended_before_a_begin() -> None:
    with pytest.raises(ValueError, match="begin"):
        numbers(20).memory.append(
            np.zeros(1, np.int64),
            np.zeros(1),
            np.zeros((1, 1), np.int64),
            np.zeros(1, np.bool_),
            np.zeros(1, np.bool_),
        )


# -- Rewards and discounts -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("sign", [1.0, -1.0, 0.0, 1.0]), ("clip", [1.0, -1.0, 0.0, 0.25]), ("none", [7, -3, 0, 0.25])],
)
def test_each_reward_is_clipped_before_it_is_summed(rule: str, expected: list[float]) -> None:
    script = numbers(30, n_step=2, reward_clip=rule).begin()
    for reward in (7.0, -3.0, 0.0, 0.25):
        script.step(reward=reward)
    script.step(terminated=True)
    rows = script.drawable()
    following = [*expected[1:], 0.0]
    assert [row.reward for row in rows[:4]] == [
        a + 0.5 * b for a, b in zip(expected, following, strict=True)
    ]


def test_rewards_and_discounts_are_rounded_once() -> None:
    """Sums are kept in double and rounded to float32 at the end."""
    script = numbers(30, n_step=3, discount=0.99).begin()
    script.step(reward=1.0).step(reward=2.0**-25).step(reward=2.0**-25)
    row = script.drawable()[0]
    assert row.reward == np.float32(1.0 + 0.99 * 2.0**-25 + 0.99**2 * 2.0**-25)
    assert np.float32(row.discount) == np.float32(0.99**3)


# -- What is given stays the caller's, what is got stays what it was -------------------------------


def test_the_arrays_given_are_copied() -> None:
    memory = ReplayMemory(20, (2, 2), num_envs=2, stack=2, reward_clip="none")
    frames = np.full((2, 2, 2), 1, np.uint8)
    memory.begin(frames)
    frames[...] = 2
    actions = np.array([3, 4])
    rewards = np.array([5.0, 6.0], np.float32)
    ended = np.array([True, False])
    cut = np.array([False, True])
    memory.append(actions, rewards, frames, ended, cut)
    for array in (frames, actions, rewards, ended, cut):
        array[...] = 0
    batch = memory.gather(memory.valid_indices())
    assert batch.states[:, -1].tolist() == [[[1, 1], [1, 1]]] * 2
    assert batch.next_states[:, -1].tolist() == [[[2, 2], [2, 2]]] * 2
    assert batch.actions.tolist() == [3, 4]
    assert batch.rewards.tolist() == [5.0, 6.0]
    assert batch.discounts.tolist() == [0.0, np.float32(0.99)]


def test_strided_arrays_are_read_as_they_are_or_refused() -> None:
    """A view with gaps or reversed axes must not be read as if it were contiguous."""
    wide = np.arange(2 * 6 * 8, dtype=np.uint8).reshape(2, 6, 8)
    for frames in (wide[:, ::2, ::2], wide[:, ::-2, :4], wide.transpose(0, 2, 1)[:, :3, :4]):
        memory = ReplayMemory(20, frames.shape[1:], num_envs=2, stack=1)
        try:
            memory.begin(frames)
        except (TypeError, ValueError):
            assert memory.num_frames == 0
            continue
        np.testing.assert_array_equal(memory.stacks()[:, 0], frames)


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
)
def test_integers_of_every_size_are_read_with_their_gaps(dtype: str) -> None:
    """Actions, environments and indices; rewards and flags with gaps too."""
    memory = ReplayMemory(30, (1,), "int64", num_envs=3, stack=1, reward_clip="none")
    every_other = np.array([2, 99, 0, 99, 1, 99], dtype)[::2]
    memory.begin(np.array([[2], [0], [1]]), every_other)
    assert memory.stacks()[:, 0, 0].tolist() == [0, 1, 2]
    memory.append(
        np.array([99, 7, 99, 8, 99, 9], dtype)[::-2],
        np.array([0.25, 9, 0.5, 9, 0.75, 9], np.float32)[::2],
        np.array([[12], [10], [11]]),
        np.array([True, False, False, True, True, False])[::2],
        np.zeros(3, np.bool_),
        every_other,
    )
    batch = memory.gather(np.array([0, 99, 1, 99, 2, 99], dtype)[::2])
    assert batch.states[:, 0, 0].tolist() == [2, 0, 1]
    assert batch.next_states[:, 0, 0].tolist() == [12, 10, 11]
    assert batch.actions.tolist() == [9, 8, 7]
    assert batch.rewards.tolist() == [0.25, 0.5, 0.75]
    assert (batch.discounts > 0).tolist() == [False, True, False]
    assert memory.gather([0, 2]).indices.tolist() == [0, 2]
    assert memory.gather((2,)).indices.tolist() == [2]
    assert memory.gather(range(2)).indices.tolist() == [0, 1]


def filled(**options: Any) -> ReplayMemory:
    return numbers(50, **options).begin().steps(60).memory


def snapshot(batch: Any) -> list[np.ndarray[Any, Any]]:
    names = ("states", "next_states", "actions", "rewards", "discounts", "indices")
    return [getattr(batch, name).copy() for name in names]


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("channels_last", [False, True])
def test_batches_stay_what_they_were(n_step: int, channels_last: bool) -> None:
    """Through later samples and appends, and after the memory is gone."""
    memory = ReplayMemory(50, (2, 3), stack=2, n_step=n_step, seed=5)
    memory.begin(np.ones((1, 2, 3), np.uint8))
    no = np.zeros(1, np.bool_)

    def play(memory: ReplayMemory, steps: int) -> None:
        for step in range(steps):
            pixels = np.full((1, 2, 3), step % 200, np.uint8)
            memory.append(np.array([step]), np.array([1.0]), pixels, no, no)

    play(memory, 60)
    batches = [memory.sample(8, channels_last=channels_last)]
    batches.append(memory.gather(memory.valid_indices(), channels_last=channels_last))
    acting = memory.stacks(channels_last=channels_last)
    before = [snapshot(batch) for batch in batches]
    acting_before = acting.copy()
    for _ in range(20):
        memory.sample(8, channels_last=channels_last)
        play(memory, 5)
        memory.stacks(channels_last=channels_last)
    views = [batch.states[1:, :1] for batch in batches]
    views_before = [view.copy() for view in views]
    del memory
    gc.collect()
    scrap = [np.full(2**16, 255, np.uint8) for _ in range(50)]
    for batch, old in zip(batches, before, strict=True):
        for now, then in zip(snapshot(batch), old, strict=True):
            np.testing.assert_array_equal(now, then)
    del batches, batch
    gc.collect()
    scrap += [np.full(2**10, 255, np.uint8) for _ in range(50)]
    for view, then in zip(views, views_before, strict=True):
        np.testing.assert_array_equal(view, then)
    np.testing.assert_array_equal(acting, acting_before)


@pytest.mark.parametrize("n_step", [1, 2])
def test_views_are_read_only(n_step: int) -> None:
    batch = filled(n_step=n_step).sample(3)
    for name in ("states", "next_states", "actions", "rewards", "discounts", "indices"):
        array = getattr(batch, name)
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True
        with pytest.raises(AttributeError):
            setattr(batch, name, array)


def test_the_index_array_is_left_alone() -> None:
    memory = filled()
    indices = memory.valid_indices()[::-1].copy()
    before = indices.copy()
    batch = memory.gather(indices)
    np.testing.assert_array_equal(indices, before)
    np.testing.assert_array_equal(batch.indices, before)
    indices[...] = 0
    np.testing.assert_array_equal(batch.indices, before)
    valid = memory.valid_indices()
    valid[...] = -1  # an array of the caller's own
    assert (memory.valid_indices() >= 0).all()


def test_gather_keeps_order_and_repetitions() -> None:
    memory = filled(stack=2)
    some = memory.valid_indices()[[5, 0, 5, 7, 7, 2]]
    batch = memory.gather(some)
    np.testing.assert_array_equal(batch.indices, some)
    for row, index in enumerate(some):
        alone = memory.gather(np.array([index]))
        np.testing.assert_array_equal(batch.states[row], alone.states[0])
        assert batch.actions[row] == alone.actions[0]


def test_indices_with_gaps_are_read_as_they_are_or_refused() -> None:
    memory = filled()
    some = memory.valid_indices()[::-3]
    try:
        batch = memory.gather(some)
    except (TypeError, ValueError):
        return
    np.testing.assert_array_equal(batch.indices, some)


# -- Sampling ------------------------------------------------------------------------------------


def test_nothing_to_draw_is_an_error_at_once() -> None:
    def refuses(script: Script, stored: int) -> None:
        assert len(script.memory) == 0
        assert script.memory.valid_indices().size == 0
        for batch_size in (1, 32):
            with pytest.raises(ValueError, match=f"0 of {stored} stored frames can be drawn: "):
                script.memory.sample(batch_size)

    refuses(numbers(10), 0)
    refuses(numbers(10).begin(), 1)
    refuses(numbers(300, num_envs=50).begin(), 50)
    refuses(numbers(10, n_step=3).begin().steps(2), 3)
    refuses(numbers(10, n_step=3).begin().steps(2).begin(), 4)
    refuses(numbers(10, padding="reject", stack=4).begin().step(terminated=True), 2)
    script = numbers(10).begin().step()
    assert len(script.memory) == 1
    for _ in range(10):
        script.begin()
    refuses(script, 10)


@pytest.mark.parametrize("batch_size", [0, -1])
def test_an_empty_batch_is_refused(batch_size: int) -> None:
    with pytest.raises(ValueError, match="batch_size"):
        filled().sample(batch_size)


CHI_SQUARE_DRAWS = 200_000


def chi_square(memory: ReplayMemory) -> float:
    """Of a fixed number of draws against the uniform distribution, as a normal deviate."""
    counts: dict[int, int] = dict.fromkeys(memory.valid_indices().tolist(), 0)
    for _ in range(CHI_SQUARE_DRAWS // 1000):
        indices, hits = np.unique(memory.sample(1000).indices, return_counts=True)
        for index, hit in zip(indices.tolist(), hits.tolist(), strict=True):
            counts[index] += hit  # a KeyError is an index that cannot be drawn
    expected = CHI_SQUARE_DRAWS / len(counts)
    statistic = sum((hit - expected) ** 2 / expected for hit in counts.values())
    freedom = len(counts) - 1
    # Wilson and Hilferty: the cube root of chi-square over freedom is close to normal.
    spread = 2 / (9 * freedom)
    return ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("shape", ["full", "short episodes", "one of many", "not yet full"])
def test_sampling_is_uniform_over_what_can_be_drawn(shape: str, seed: int) -> None:
    """Six standard deviations: with a fixed seed the test never wavers, and a bias of 4 % in one
    half of the rows would move the deviate by far more."""
    if shape == "full":
        memory = numbers(101, stack=4, seed=seed).begin().steps(250).memory
    elif shape == "short episodes":
        script = numbers(97, stack=4, n_step=3, num_envs=2, seed=seed)
        for length in [1, 2, 5, 1, 3, 7, 2, 2, 4, 1, 9] * 3:
            script.episode(length, ["terminated", "truncated", "interrupted"][length % 3])
        memory = script.memory
    elif shape == "one of many":
        script = numbers(200, stack=4, padding="reject", seed=seed)
        for _ in range(4):
            for _ in range(40):
                script.begin()
            script.episode(6)
        memory = script.memory
    else:
        memory = numbers(100_003, seed=seed).begin().steps(60).memory
    assert len(memory) > 5
    assert abs(chi_square(memory)) < 6


def test_draws_are_independent_of_each_other() -> None:
    """With replacement: pairs of neighbours in a batch are uniform over all pairs."""
    memory = numbers(100, seed=3).begin().steps(10).memory
    order = {index: rank for rank, index in enumerate(memory.valid_indices().tolist())}
    pairs = np.zeros((10, 10))
    for _ in range(100):
        ranks = [order[index] for index in memory.sample(1000).indices.tolist()]
        np.add.at(pairs, (ranks[:-1], ranks[1:]), 1)
    expected = pairs.sum() / pairs.size
    statistic = ((pairs - expected) ** 2 / expected).sum()
    assert abs(statistic - 99) < 6 * math.sqrt(2 * 99)


def test_seeds() -> None:
    """The same seed draws the same, another draws otherwise, and reading changes no draw."""

    def draws(seed: int, *, look: bool = False) -> list[int]:
        memory = filled(seed=seed)
        found: list[int] = []
        for _ in range(10):
            found += memory.sample(7).indices.tolist()
            if look:
                memory.gather(memory.valid_indices())
                memory.stacks()
                memory.check_invariants()
                assert len(memory) > 0
        return found

    assert draws(1) == draws(1)
    assert draws(1) == draws(1, look=True)
    others = [draws(seed) for seed in (0, 1, 2, 3, 2**32, 2**63, 2**64 - 1)]
    assert len({tuple(found) for found in others}) == len(others)


def test_the_size_of_a_batch_and_its_layout_change_no_draw() -> None:
    memory, other = filled(seed=9), filled(seed=9)
    one = memory.sample(6).indices.tolist()
    columns = [
        np.empty((6, 4, 1), np.int64),
        np.empty((6, 4, 1), np.int64),
        np.empty(6, np.int64),
        np.empty(6, np.float32),
        np.empty(6, np.float32),
        np.empty(6, np.int64),
    ]
    other.sample_into(*columns)
    assert columns[-1].tolist() == one


# -- Construction and types ----------------------------------------------------------------------


@pytest.mark.parametrize("num_envs", [1, 2, 7])
@pytest.mark.parametrize("stack", [1, 4])
@pytest.mark.parametrize("n_step", [1, 3])
def test_a_capacity_that_is_too_small_is_refused(num_envs: int, stack: int, n_step: int) -> None:
    """The message has the minimum and what was given; with the minimum something can be drawn."""
    options = {"num_envs": num_envs, "stack": stack, "n_step": n_step}
    minimum = smallest_capacity(**options)
    for capacity in (0, 1, minimum - 1):
        with pytest.raises(ValueError, match=rf"\b{capacity} frames.*at least {minimum}\b"):
            ReplayMemory(capacity, (1,), "int64", **options)
    script = numbers(minimum, padding="reject", **options).begin().steps(stack + n_step - 1)
    for _ in range(3 * minimum):
        assert len(script.memory) > 0
        script.step()
    with pytest.raises((ValueError, TypeError, OverflowError)):
        ReplayMemory(-1, (1,), "int64", **options)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"stack": 0}, "stack"),
        ({"stack": -1}, "stack"),
        ({"n_step": 0}, "n_step"),
        ({"num_envs": 0}, "num_envs"),
        ({"discount": -0.1}, "discount"),
        ({"discount": 1.1}, "discount"),
        ({"discount": math.nan}, "discount"),
        ({"padding": "none"}, "padding"),
        ({"reward_clip": "tanh"}, "reward_clip"),
        ({"frame_shape": (0, 4)}, "frame_shape"),
        ({"frame_shape": (-1, 4)}, "frame_shape"),
        ({"dtype": "object"}, "dtype"),
        ({"dtype": "U4"}, "dtype"),
        ({"dtype": "no such"}, "dtype"),
    ],
)
def test_options_are_checked(options: dict[str, Any], names: str) -> None:
    arguments = {"capacity": 100, "frame_shape": (2, 2), "dtype": "uint8", **options}
    with pytest.raises((ValueError, TypeError), match=names):
        ReplayMemory(**arguments)


@pytest.mark.parametrize("capacity", [2**40, 2**50, 2**62, 2**63 - 1])
def test_a_capacity_that_no_machine_has_is_refused(capacity: int) -> None:
    """No overflow on the way to the size, no crash: the message says what it would take."""
    with pytest.raises((ValueError, MemoryError)):
        ReplayMemory(capacity, (84, 84), "uint8")


@pytest.mark.parametrize(
    "dtype",
    ["uint8", "int8", "uint16", "int32", "int64", "float16", "float32", "float64", "bool"],
)
def test_frames_keep_their_dtype_and_bits(dtype: str) -> None:
    raw = np.random.default_rng(0).integers(0, 256, (40, 3, 8), dtype=np.uint8)
    frames = (raw % 2 == 1)[:, :, :4] if dtype == "bool" else raw.view(dtype)
    memory = ReplayMemory(60, frames.shape[1:], dtype, stack=2)
    no = np.zeros(1, np.bool_)
    memory.begin(frames[:1])
    for t in range(1, 40):
        memory.append(np.array([t]), np.array([0.0]), frames[t : t + 1], no, no)
    batch = memory.gather(memory.valid_indices())
    assert batch.states.dtype == batch.next_states.dtype == memory.stacks().dtype == dtype
    assert np.ascontiguousarray(batch.states[:, -1]).tobytes() == frames[:39].tobytes()
    assert np.ascontiguousarray(batch.next_states[:, -1]).tobytes() == frames[1:].tobytes()
    assert memory.nbytes < 60 * (frames[0].nbytes + 40) + 64 * 1024


@pytest.mark.parametrize(
    ("memory_dtype", "frames_dtype"),
    [
        ("uint8", "float32"),
        ("uint8", "float64"),
        ("uint8", "int8"),
        ("uint8", "int64"),
        ("uint8", "bool"),
        ("float32", "float64"),
        ("float32", "uint8"),
        ("float32", ">f4"),
        ("int64", "int32"),
    ],
)
def test_frames_of_another_dtype_are_refused(memory_dtype: str, frames_dtype: str) -> None:
    memory = ReplayMemory(60, (2, 2), memory_dtype)
    with pytest.raises(TypeError) as refusal:
        memory.begin(np.zeros((1, 2, 2), frames_dtype))
    assert memory_dtype in str(refusal.value), "what was expected"
    assert memory.num_frames == 0
    with pytest.raises((TypeError, ValueError)):
        memory.begin([[[0, 0], [0, 0]]])  # type: ignore[arg-type]


def test_a_wrong_shape_names_both() -> None:
    memory = ReplayMemory(60, (3, 5), num_envs=2)
    for shape in [(2, 5, 3), (2, 3, 4), (1, 3, 5), (3, 3, 5), (3, 5), (2, 3, 5, 1), (2, 15)]:
        with pytest.raises(ValueError, match="frames") as refusal:
            memory.begin(np.zeros(shape, np.uint8))
        message = str(refusal.value).replace(" ", "")
        assert "(2,3,5)" in message or "[2,3,5]" in message
        assert str(list(shape))[1:-1].replace(" ", "") in message
    assert memory.num_frames == 0


def test_a_million_atari_frames_fit_their_budget() -> None:
    """7.056 GB and at most 40 bytes a frame: read off a smaller memory, which is linear."""
    memory = ReplayMemory(10_000, (84, 84), "uint8", storage="raw")
    assert 10_000 * 7056 <= memory.nbytes <= 10_000 * (7056 + 40)


# -- The caller's own arrays -----------------------------------------------------------------------


def targets(states: Any, next_states: Any, batch: int) -> list[Any]:
    return [
        states,
        next_states,
        np.empty(batch, np.int64),
        np.empty(batch, np.float32),
        np.empty(batch, np.float32),
        np.empty(batch, np.int64),
    ]


def image_memory(**options: Any) -> ReplayMemory:
    options = {"stack": 2, "seed": 4, **options}
    memory = ReplayMemory(50, (2, 3), **options)
    random = np.random.default_rng(0)
    memory.begin(random.integers(1, 200, (1, 2, 3), dtype=np.uint8))
    no = np.zeros(1, np.bool_)
    for t in range(70):
        frame = random.integers(1, 200, (1, 2, 3), dtype=np.uint8)
        memory.append(np.array([t]), np.array([0.0]), frame, no, no)
    return memory


@pytest.mark.parametrize("n_step", [1, 2])
def test_every_layout_is_filled_exactly_or_refused(n_step: int) -> None:
    """What lies between the rows, frames and columns of the caller's array is not touched."""
    batch = 5
    mark = 251
    accepted = []
    for name, shape, view in LAYOUTS:
        memory = image_memory(n_step=n_step)
        buffers = [np.full(shape, mark, np.uint8) for _ in range(2)]
        states, next_states = (view(buffer) for buffer in buffers)
        assert states.shape == (batch, 2, 2, 3)
        columns = targets(states, next_states, batch)
        try:
            memory.sample_into(*columns)
        except (TypeError, ValueError):
            assert all((buffer == mark).all() for buffer in buffers)
            continue
        accepted.append(name)
        expected = memory.gather(columns[-1])
        np.testing.assert_array_equal(states, expected.states)
        np.testing.assert_array_equal(next_states, expected.next_states)
        states[...] = mark
        next_states[...] = mark
        assert all((buffer == mark).all() for buffer in buffers), "written beside the array"
    assert {"planar", "row gaps", "frame gaps", "channels last"} <= set(accepted)


LAYOUTS: list[tuple[str, tuple[int, ...], Any]] = [
    ("planar", (5, 2, 2, 3), lambda b: b),
    ("row gaps", (10, 2, 2, 3), lambda b: b[::2]),
    ("frame gaps", (5, 4, 2, 3), lambda b: b[:, ::2]),
    ("row and frame gaps", (15, 6, 2, 3), lambda b: b[1::3, ::3]),
    ("frames outside rows", (2, 5, 2, 3), lambda b: b.transpose(1, 0, 2, 3)),
    ("channels last", (5, 2, 3, 2), lambda b: b.transpose(0, 3, 1, 2)),
    ("channels last with row gaps", (10, 2, 3, 2), lambda b: b[::2].transpose(0, 3, 1, 2)),
    ("channels last with pixel gaps", (5, 2, 3, 4), lambda b: b[..., :2].transpose(0, 3, 1, 2)),
    ("reversed rows", (5, 2, 2, 3), lambda b: b[::-1]),
    ("reversed frames", (5, 2, 2, 3), lambda b: b[:, ::-1]),
    ("reversed pixels", (5, 2, 2, 3), lambda b: b[..., ::-1]),
    ("pixel gaps", (5, 2, 2, 6), lambda b: b[..., ::2]),
    ("line gaps", (5, 2, 4, 3), lambda b: b[:, :, ::2]),
    ("turned frames", (5, 2, 3, 2), lambda b: b.transpose(0, 1, 3, 2)),
]


def test_a_window_of_one_more_frame_holds_both_stacks() -> None:
    memory = image_memory(stack=3)
    window = np.full((6, 4, 2, 3), 251, np.uint8)
    columns = targets(window[:, :-1], window[:, 1:], 6)
    memory.sample_into(*columns)
    expected = memory.gather(columns[-1])
    np.testing.assert_array_equal(window[:, :-1], expected.states)
    np.testing.assert_array_equal(window[:, 1:], expected.next_states)


@pytest.mark.parametrize("n_step", [1, 3])
def test_arrays_that_overlap_are_refused(n_step: int) -> None:
    """The exception is the window that n_step = 1 makes right by construction."""
    memory = image_memory(stack=3, n_step=n_step)
    window = np.zeros((6, 8, 2, 3), np.uint8)
    shifts = [0, 1, 2] if n_step > 1 else [0, 2]
    for shift in shifts:
        with pytest.raises(ValueError, match="next_states"):
            memory.sample_into(*targets(window[:, :3], window[:, shift : shift + 3], 6))
    with pytest.raises(ValueError, match="next_states"):
        memory.sample_into(*targets(window[:, 1:4], window[:, :3], 6))
    assert (window == 0).all()


@pytest.mark.parametrize("column", range(6))
@pytest.mark.parametrize("fault", ["dtype", "length", "rank", "read-only", "list"])
def test_wrong_targets_are_refused(column: int, fault: str) -> None:
    """Nothing is converted, nothing is copied aside, nothing is drawn."""
    memory, twin = image_memory(), image_memory()
    columns = targets(np.zeros((5, 2, 2, 3), np.uint8), np.zeros((5, 2, 2, 3), np.uint8), 5)
    good = columns[column]
    if fault == "dtype":
        columns[column] = good.astype(np.float64)
    elif fault == "length":
        columns[column] = np.zeros((4, *good.shape[1:]), good.dtype)
    elif fault == "rank":
        columns[column] = good[..., None]
    elif fault == "read-only":
        good.flags.writeable = False
    else:
        columns[column] = good.tolist()
    with pytest.raises((TypeError, ValueError)):
        memory.sample_into(*columns)
    assert memory.sample(9).indices.tolist() == twin.sample(9).indices.tolist()


@pytest.mark.parametrize(
    "strides",
    [(0, 6, 3, 1), (6, 6, 3, 1), (12, 0, 3, 1), (12, 12, 3, 1), (12, 5, 3, 1), (6, 1, 6, 2)],
)
def test_an_array_that_overlaps_itself_is_refused(strides: tuple[int, ...]) -> None:
    """Two rows, or two frames of a row, in the same place would hold one of them."""
    memory = image_memory()
    memory_of_it = np.zeros(1000, np.uint8)
    states = np.lib.stride_tricks.as_strided(memory_of_it, (5, 2, 2, 3), strides)
    apart = np.zeros((5, 2, 2, 3), np.uint8)
    with pytest.raises(ValueError, match="states"):
        memory.sample_into(*targets(states, apart, 5))
    with pytest.raises(ValueError, match="next_states"):
        memory.sample_into(*targets(apart, states, 5))
    assert not memory_of_it.any()
    assert not apart.any()


def test_arrays_that_interlace_do_not_overlap() -> None:
    memory = image_memory(stack=2, n_step=1)
    halves = np.zeros((6, 4, 2, 3), np.uint8)
    for states, next_states in [
        (halves[:, :2], halves[:, 2:]),
        (halves[:, 2:], halves[:, :2]),
        (halves[:, ::2], halves[:, 1::2]),
    ]:
        columns = targets(states, next_states, 6)
        memory.sample_into(*columns)
        expected = memory.gather(columns[-1])
        np.testing.assert_array_equal(states, expected.states)
        np.testing.assert_array_equal(next_states, expected.next_states)


def test_wrong_acting_targets_are_refused() -> None:
    memory = image_memory()
    good = np.zeros((1, 2, 2, 3), np.uint8)
    frozen = good.copy()
    frozen.flags.writeable = False
    for out in (good[:, :1], good.astype(np.float32), frozen, good[0], good.repeat(2, 0)):
        with pytest.raises((TypeError, ValueError)):
            memory.stacks_into(out)
        assert not np.asarray(out).any()
    memory.stacks_into(good)
    np.testing.assert_array_equal(good, memory.stacks())


def test_ages_count_the_frames_stored_since() -> None:
    script = numbers(10)
    with pytest.raises(ValueError, match="no frame is stored, so none has an age"):
        script.memory.age_quantiles([0.5])
    script.episode(3)
    assert script.memory.age_quantiles([0, 0.25, 0.26, 0.5, 1]).tolist() == [0, 0, 1, 1, 3]
    script.begin().steps(100)
    assert script.memory.age_quantiles([0, 0.5, 1]).tolist() == [0, 4, 9]
    for fraction in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match=r"a fraction is .*; expected 0 to 1"):
            script.memory.age_quantiles([fraction])


def test_random_eviction_keeps_what_a_ring_would_have_lost() -> None:
    """Any age may survive; nothing that is drawn reaches across what is gone."""
    script = numbers(2_000, eviction="random", n_step=2)
    script.begin()
    for _ in range(20_000):
        frames = script._next_frames([0])
        script.memory.append([0], [0.0], frames, [False], [False])
    script.memory.check_invariants()
    median, oldest = script.memory.age_quantiles([0.5, 1]).tolist()
    assert 700 < median < 2_500
    assert oldest > 4_000
    drawable = script.drawable()
    assert len(drawable) > 0.9 * 2_000
    for row in drawable:
        assert row.state == list(range(row.state[0], row.state[0] + 4))
        assert row.next_state == [number + 2 for number in row.state]


def test_an_eviction_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match='eviction is \'lifo\'; expected one of "fifo", "random"'):
        ReplayMemory(10, (1,), eviction="lifo")  # type: ignore[arg-type]
