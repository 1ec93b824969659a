"""fastdqn-memory: what it measures, and its one-line errors."""

from __future__ import annotations

import json

import pytest

from fastdqn.budget import transitions_that_fit
from fastdqn.cli_memory import memory_main
from fastdqn.config import Config
from fastdqn.frame_sizes import MEASURED, budgeted_frame_bytes
from fastdqn.memory_use import measure_game
from fastdqn.trainer import Trainer


def test_a_game_is_measured_in_every_store() -> None:
    raw, compressed, in_files = measure_game("breakout", 600, seed=3)
    assert (raw.game, raw.store, raw.frames) == ("Breakout", "raw", 600)
    assert (compressed.game, compressed.store, compressed.frames) == ("Breakout", "compressed", 600)
    assert raw.frame_bytes == 7_056
    assert raw.million_bytes == pytest.approx(7_056e6 + 32e6, rel=0.01)
    assert 20 < compressed.frame_bytes < 300
    assert compressed.million_bytes == pytest.approx(1e6 * compressed.frame_bytes + 32e6, rel=0.01)
    assert 1 < compressed.sample_microseconds < 1e5
    assert in_files.store == "in files"
    assert in_files.frame_bytes == pytest.approx(compressed.frame_bytes, rel=0.1)
    assert in_files.million_memory_bytes == pytest.approx(32e6, rel=0.01)
    _, again, _ = measure_game("Breakout", 600, seed=3)
    assert again.frame_bytes == compressed.frame_bytes
    _, other, _ = measure_game("Breakout", 600, seed=4)
    assert other.frame_bytes != compressed.frame_bytes


def test_an_agent_may_play() -> None:
    config = Config(
        game="Breakout", steps=20, replay_capacity=1_000, learning_starts_steps=16, threads=1,
        out=None, stack=2,
    )  # fmt: skip
    trainer = Trainer(config)
    list(trainer.run())
    raw, *_ = measure_game("Breakout", 120, agent=trainer.agent())
    assert raw.frames == 120


def test_the_table_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert memory_main(["pong", "Freeway", "--frames", "200"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    heading, *rows = out.splitlines()
    assert heading.split() == [
        *("game", "store", "bytes/frame", "sample(32)", "a", "million", "fits", "here")
    ]
    assert [row[:29].strip().split(maxsplit=1) for row in rows] == [
        [game, store] for game in ("Pong", "Freeway") for store in ("raw", "compressed", "in files")
    ]
    assert {len(row) for row in rows} == {len(heading)}


def test_the_same_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert memory_main(["Pong", "--frames", "200", "--json"]) == 0
    raw, compressed, _ = json.loads(capsys.readouterr().out)
    assert raw["frame_bytes"] == 7_056
    assert compressed["store"] == "compressed"
    assert compressed["fits_here"] > raw["fits_here"] > 0
    assert raw["fits_here"] == pytest.approx(transitions_that_fit(7_088), rel=0.2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: GAME"),
        (["Brekout"], "Breakout"),
        (["Pong", "--frames", "9"], "--frames 9: expected 100 or more"),
        (["Pong", "--seed", "-1"], "--seed -1: expected 0 or more"),
        (["Pong", "--agent", "/nowhere"], "/nowhere"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert memory_main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("fastdqn-memory: ")
    assert message in err
    assert err.count("\n") == 1


def test_play_stays_within_what_the_budget_counts_on() -> None:
    for game in ("Breakout", "Pong", "Riverraid"):
        _, compressed, _ = measure_game(game, 1_000, seed=11)
        assert compressed.frame_bytes < budgeted_frame_bytes(compressed.game)
    assert budgeted_frame_bytes("Never Heard Of") == budgeted_frame_bytes(
        max(MEASURED, key=MEASURED.__getitem__)
    )
