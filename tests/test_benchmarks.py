"""The benchmarks' own machinery: who takes turns, who drops out, what is written and drawn."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from io import StringIO
from pathlib import Path
from typing import Any

import bench_checkpoints
import bench_replay
import classic_control
import harness
import numpy as np
import pytest
import replay_peers
import report
import throughput
from harness import OURS, Contender, Row, Turns, WrongAnswer
from rich.console import Console

Prepare = Callable[[ExitStack], Callable[[], float]]


def turns_of(seconds: dict[str, list[float]]) -> Turns:
    return Turns(seconds=seconds)


def small_row() -> Row:
    """A row as a benchmark would leave it: figures, an absent peer, requirements of all kinds."""
    row = Row("append", "append of one step to a full memory", "µs")
    row.add(turns_of({OURS: [1e-6, 3e-6, 2e-6], "limit: a copy": [1e-6, 1e-6, 1e-6]}))
    row.add(turns_of({OURS: [2e-6, 2e-6], "Peer": [8e-6, 4e-6]}))
    row.absent["Gone"] = "not installed or not importable: no module"
    row.notes.append("a note")
    row.require_ratio("Peer", 0.5)
    row.require_ratio("limit: a copy", 1.15)
    row.require_ratio("Gone", 0.5)
    return row


def result(rows: list[Row]) -> dict[str, Any]:
    return harness.as_json({**harness.machine(), "seconds": {"append": 60.0}}, rows, [])


def ticking(order: list[str], name: str) -> Prepare:
    def prepare(_: ExitStack) -> Callable[[], float]:
        def turn() -> float:
            order.append(name)
            return 1.0

        return turn

    return prepare


def failing(error: Exception, after: int) -> Prepare:
    """Raises in its turn number `after`; 0: while it is prepared."""

    def prepare(_: ExitStack) -> Callable[[], float]:
        counter = itertools.count(1)

        def turn() -> float:
            if next(counter) >= after:
                raise error
            return 1.0

        if after == 0:
            raise error
        return turn

    return prepare


def test_a_spread_is_the_median_with_its_quartiles() -> None:
    assert harness.spread([5.0, 1.0, 2.0, 4.0, 3.0]) == harness.Spread(3.0, 2.0, 4.0)
    assert harness.spread([7.0]) == harness.Spread(7.0, 7.0, 7.0)


def test_contenders_take_turns_in_alternating_order_after_one_that_is_not_timed() -> None:
    order: list[str] = []
    contenders = [Contender(name, ticking(order, name)) for name in "abc"]
    turns = harness.match(contenders, seconds=0.0, min_turns=3)
    assert "".join(order) == "abc" + "abc" + "cba" + "abc"
    assert {name: len(seconds) for name, seconds in turns.seconds.items()} == dict.fromkeys(
        "abc", 3
    )


def test_what_a_contender_leaves_is_closed_when_the_match_is_over() -> None:
    closed: list[str] = []

    def prepare(resources: ExitStack) -> Callable[[], float]:
        resources.callback(closed.append, "closed")
        return lambda: float(not closed)  # a turn after it was closed would divide by zero

    harness.match([Contender(OURS, prepare)], seconds=0.0)
    assert closed == ["closed"]


@pytest.mark.parametrize("after", [0, 1, 3], ids=["prepared", "not timed", "timed"])
def test_another_projects_failure_is_a_reason_in_its_row_and_ours_is_an_error(after: int) -> None:
    error = RuntimeError("first line\nsecond line")
    order: list[str] = []
    ours = Contender(OURS, ticking(order, OURS))
    turns = harness.match(
        [ours, Contender("Peer", failing(error, after), package="peer")], seconds=0.0, min_turns=4
    )
    assert turns.absent == {"Peer": "RuntimeError: first line"}
    assert list(turns.seconds) == [OURS]
    assert len(turns.seconds[OURS]) == 4
    with pytest.raises(RuntimeError, match="first line"):
        harness.match([Contender(OURS, failing(error, after))], seconds=0.0, min_turns=4)


def test_what_is_not_installed_is_named_with_the_remedy() -> None:
    def prepare(_: ExitStack) -> Callable[[], float]:
        import no_such_package  # type: ignore[import-not-found]  # noqa: F401

        raise AssertionError

    turns = harness.match([Contender("Peer", prepare, package="peer")], seconds=0.0)
    (why,) = turns.absent.values()
    assert why.startswith("not installed or not importable: No module named 'no_such_package'")
    assert why.endswith("pip install 'fastdqn[bench]'")


def test_ratios_pair_the_turns_of_one_match() -> None:
    row = small_row()
    assert row.figures[OURS] == pytest.approx([1, 3, 2, 2, 2])
    assert row.ratios("limit: a copy") == pytest.approx([1, 3, 2])
    assert row.ratios("Peer") == pytest.approx([0.25, 0.5])
    assert row.differences("Peer") == pytest.approx([-6, -2])
    assert row.ratios("Gone") == []
    assert row.best(["Peer", "limit: a copy", "Gone"]) == "limit: a copy"
    assert row.best(["Gone"]) is None


def test_a_rate_is_the_inverse_of_a_time_and_better_the_larger() -> None:
    row = Row("training", "Training", "steps/s")
    row.add(turns_of({"a": [0.5], "b": [0.25], "c": [0.125]}), {"a": OURS, "b": "Peer"})
    assert row.figures == {OURS: [2.0], "Peer": [4.0]}
    assert row.ratios("Peer") == [0.5]
    assert row.best([OURS, "Peer"]) == "Peer"
    row.require_ratio("Peer", 0.5)
    row.require_ratio("Peer", 0.51)
    assert [requirement.holds for requirement in row.requirements] == [True, False]


def test_requirements_are_held_missed_or_not_measured() -> None:
    row = small_row()
    assert [requirement.holds for requirement in row.requirements] == [True, False, None]
    shown = StringIO()
    console = Console(file=shown, width=200)
    harness.print_row(console, row)
    harness.print_requirements(console, [row])
    text = shown.getvalue()
    assert [word for word in text.split() if word in ("HELD", "MISSED", "NOT")] == [
        "HELD",
        "MISSED",
        "NOT",
    ]
    assert "Gone" in text
    assert "no module" in text


def test_a_file_of_figures_says_what_the_table_says(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    harness.write_json(path, result([small_row()]))
    read = harness.read_json(path)
    (row,) = read["rows"]
    by_name = {line["name"]: line for line in row["contenders"]}
    assert by_name[OURS]["figure"]["median"] == pytest.approx(2.0)
    assert by_name[OURS]["turns"] == 5
    assert by_name["Peer"]["beside"] == pytest.approx(
        {"median": 0.375, "low": 0.3125, "high": 0.4375}
    )
    assert by_name["Gone"]["absent"].startswith("not installed")
    assert [requirement["holds"] for requirement in row["requirements"]] == [True, False, None]
    assert {"command", "cpu", "commit", "versions", "load_at_start"} <= set(read["machine"])


def test_a_file_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    path.write_text(json.dumps({"schema": harness.SCHEMA + 1, "rows": []}))
    with pytest.raises(ValueError, match=f"expected {harness.SCHEMA}"):
        harness.read_json(path)


def test_the_command_writes_json_and_picture_and_fails_for_a_wrong_answer_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fine(_: harness.Effort) -> Iterator[Row]:
        yield small_row()

    def wrong(_: harness.Effort) -> Iterator[Row]:
        raise WrongAnswer("two is not three")
        yield

    figures, picture = tmp_path / "figures.json", tmp_path / "picture.png"
    options = ["--quick", "--threads", "1", "--json", str(figures), "--plot", str(picture)]
    monkeypatch.setattr(throughput, "ROWS", {"fine": fine})
    assert throughput.main(options) == 0
    assert len(harness.read_json(figures)["rows"]) == 1
    assert picture.read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(throughput, "ROWS", {"wrong": wrong, "fine": fine})
    assert throughput.main(options) == 1
    assert "two is not three" in harness.read_json(figures)["wrong"][0]
    assert "two is not three" in capsys.readouterr().out


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        report.plot(result([]), tmp_path / "picture.png")


def test_marked_blocks_are_written_anew_and_the_rest_stays() -> None:
    text = "before\n<!-- figures: append -->\nold\n<!-- end -->\nbetween\n<!-- end -->\n"
    written = report.replace(text, result([small_row()]))
    assert written.startswith("before\n<!-- figures: append -->\n**append of one step")
    assert written.endswith("<!-- end -->\nbetween\n<!-- end -->\n")
    assert "| Gone | - | not installed or not importable: no module |  |  |" in written
    assert "old" not in written
    assert report.replace(written, result([small_row()])) == written
    with pytest.raises(KeyError, match="nonsense"):
        report.replace(text.replace("append", "nonsense"), result([small_row()]))


def test_the_documents_show_the_committed_figures() -> None:
    figures = harness.read_json(report.FIGURES)
    marked = 0
    for document in report.DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        assert report.replace(text, figures) == text, (
            f"{document.name} differs from what report.py writes; run it on docs/performance.json"
        )
        marked += len(re.findall("<!-- figures: ", text))
    assert marked >= len(throughput.ROWS)


class FullStacks:
    """A memory that keeps whole stacks; `wrong` spoils what it gives back."""

    def __init__(self, capacity: int, wrong: str = "") -> None:
        self.rows: list[tuple[Any, ...]] = []
        self.capacity = capacity
        self.wrong = wrong
        self.generator = np.random.default_rng(0)

    def prepare(self, stack: Any) -> Any:
        return stack

    def add(self, *row: Any) -> None:
        self.rows = [*self.rows[1 - self.capacity :], row]

    def sample(self, size: int) -> Any:
        return [self.rows[i] for i in self.generator.integers(len(self.rows), size=size)]

    def arrays(self, batch: Any) -> replay_peers.PeerBatch:
        states, actions, rewards, after, ends, _ = (
            np.array(part) for part in zip(*batch, strict=True)
        )
        if self.wrong == "stack":
            states[:, 0] = states[:, 1]
        if self.wrong == "next":
            after = states
        if self.wrong == "reward":
            rewards = rewards + 1
        if self.wrong == "dtype":
            states = states.astype(np.float32)
        return replay_peers.PeerBatch(states, actions, rewards, ends, after)

    def nbytes(self) -> int:
        return 0


@pytest.fixture(scope="module")
def script() -> bench_replay.Script:
    return bench_replay.Script(pictures=300)


@pytest.mark.parametrize("wrong", ["", "stack", "next", "reward", "dtype"])
def test_a_peers_wrong_answer_is_found(script: bench_replay.Script, wrong: str) -> None:
    peer = replay_peers.Peer("Peer", "peer", lambda n: FullStacks(n, wrong), stack_bytes=2)
    memory = bench_replay.filled_peer(peer, script, 100)
    if not wrong:
        bench_replay.check_peer(peer, memory, script, 100)
        return
    with pytest.raises(WrongAnswer):
        bench_replay.check_peer(peer, memory, script, 100)


@pytest.mark.filterwarnings("ignore")  # theirs, of their own affairs
@pytest.mark.parametrize("peer", replay_peers.PEERS, ids=lambda peer: peer.name)
def test_installed_peers_answer_what_they_promise(
    script: bench_replay.Script, peer: replay_peers.Peer
) -> None:
    try:
        memory = bench_replay.filled_peer(peer, script, 300)
    except ImportError as error:
        pytest.skip(f"{peer.package} is not installed: {error}")
    bench_replay.check_peer(peer, memory, script, 300)
    assert memory.nbytes() >= 300 * bench_replay.FRAME_BYTES


def test_ours_is_what_the_plain_memory_is(script: bench_replay.Script) -> None:
    memory, ring = bench_replay.ReplayMemory(150), bench_replay.FrameRing(150)
    bench_replay.fill_ours(memory, script)
    bench_replay.fill_ring(ring, script)
    bench_replay.check_sample(memory, ring)
    ring.rewards += 2
    with pytest.raises(WrongAnswer, match="rewards"):
        bench_replay.check_sample(memory, ring)


# -- checkpoints -----------------------------------------------------------------------------------


def test_a_checkpoint_costs_what_training_was_behind_its_own_speed() -> None:
    cost = bench_checkpoints.Cost(1_000, held_up_seconds=0.5, writing_seconds=2.0, steps_beside=300)
    cost.quiet_steps_per_second = 200.0
    assert cost.lost_seconds == pytest.approx(0.5 + 2.0 - 1.5)
    assert cost.share == pytest.approx(1.0 / 300)


def test_no_two_rounds_of_play_are_the_same() -> None:
    frames = np.random.default_rng(0).integers(0, 256, (50, 84, 84), np.uint8)
    memory = bench_checkpoints.ReplayMemory(400, storage="raw")
    play = bench_checkpoints.Play(frames)
    play.add(memory, 300)
    play.add(memory, 100)
    assert memory.num_frames == 400
    stored = np.empty((400, 1, 84, 84), np.uint8)
    memory.frames_into(stored, np.arange(400))
    assert len({frame.tobytes() for frame in stored}) == 400


@pytest.mark.slow
def test_the_benchmark_of_checkpoints_works() -> None:
    shown = subprocess.run(
        [sys.executable, bench_checkpoints.__file__, "--quick", "--only", "compressed"],
        check=True,
        capture_output=True,
        text=True,
        timeout=500,
    ).stdout
    assert "4,000 frames of Breakout, compressed: a memory of " in shown
    assert re.search(r"lost by one each five minutes: -?[\d.]+ %, required 2: (held|missed)", shown)
    assert re.search(r"of a checkpoint: [\d.]+ MiB, required 64: held", shown)
    assert re.search(r"of loading: -?[\d.]+ MiB, required 64: held", shown)


def test_classic_control_trains_to_the_end_and_says_what_is_solved() -> None:
    said: list[str] = []
    short = ["--set", "steps=300", "learning_starts_steps=100", "--games", "2"]
    assert classic_control.main(["CartPole-v1", "--seeds", "3", "4", *short], said.append) == 1
    heading, *_, first, second = said
    assert heading.startswith("`python benchmarks/classic_control.py CartPole-v1 --seeds 3 4 --set")
    for row, seed in ((first, 3), (second, 4)):
        assert re.fullmatch(rf"\| CartPole-v1 \| {seed} \| 300 \| \d\.\d \| \d+\.\d \| no \|", row)
