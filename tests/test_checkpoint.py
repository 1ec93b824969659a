"""Models on disk: round trips, and one clear error for everything that is wrong with a file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fastdqn.agent import Agent
from fastdqn.checkpoint import load_agent, save_agent, write_aside
from fastdqn.config import Config
from fastdqn.errors import UserError
from fastdqn.networks import build_network


def make_agent(frame_shape: tuple[int, ...] = (84, 84), dtype: str = "uint8") -> Agent:
    config = Config(game="Breakout", hidden_units=(8,), seed=3, shared_last_bias=True)
    torch.manual_seed(0)
    return Agent(
        build_network(frame_shape, 4, **config.network_options()),
        config,
        frame_shape=frame_shape,
        dtype=dtype,
        num_actions=4,
        protocol={"game": "Breakout"},
        device=torch.device("cpu"),
    )


@pytest.mark.parametrize(("frame_shape", "dtype"), [((84, 84), "uint8"), ((6,), "float32")])
def test_an_agent_survives_its_file(
    tmp_path: Path, frame_shape: tuple[int, ...], dtype: str
) -> None:
    agent = make_agent(frame_shape, dtype)
    save_agent(agent, tmp_path / "model.safetensors", steps=7)
    for path in (tmp_path, tmp_path / "model.safetensors", str(tmp_path)):
        loaded = load_agent(path, device="cpu")
        assert loaded.config == agent.config
        assert (loaded.protocol, loaded.num_actions) == (agent.protocol, 4)
        stacks = np.random.default_rng(0).integers(0, 255, (5, 4, *frame_shape)).astype(dtype)
        assert np.array_equal(loaded.q_values(stacks), agent.q_values(stacks))
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]


def test_acting_for_one_stack_and_for_a_batch() -> None:
    agent = make_agent((6,), "float32")
    stacks = np.random.default_rng(0).normal(size=(50, 4, 6)).astype(np.float32)
    values = agent.q_values(stacks)
    assert (values.shape, values.dtype) == ((50, 4), np.float32)
    one = agent.q_values(stacks[3])
    # One row alone may be summed in another order.
    np.testing.assert_allclose(one, values[3], rtol=1e-5, atol=1e-6)
    assert one.shape == (4,)
    assert agent.act(stacks).tolist() == values.argmax(1).tolist()
    assert int(agent.act(stacks[3])) == values[3].argmax()
    random = [int(agent.act(stacks[3], epsilon=1.0)) for _ in range(100)]
    assert set(random) == {0, 1, 2, 3}


def test_stacks_of_another_kind_are_refused() -> None:
    agent = make_agent()
    with pytest.raises(ValueError, match=r"\(4, 84, 84\) or a batch of them, got \(84, 84\)"):
        agent.act(np.zeros((84, 84), np.uint8))
    with pytest.raises(TypeError, match="a stack of uint8, got float64"):
        agent.act(np.zeros((4, 84, 84)))


def test_what_is_no_model_is_one_line_that_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"

    def refused() -> str:
        with pytest.raises(UserError) as caught:
            load_agent(tmp_path)
        message = str(caught.value)
        assert "\n" not in message
        assert message.startswith(f"{file if file.exists() else tmp_path}: ")
        return message

    assert "no such model; expected a run's folder, with its model.safetensors" in refused()
    for content in (b"", b"not a model", b"\xff" * 100, (1 << 60).to_bytes(8, "little") + b"{}"):
        file.write_bytes(content)
        assert "not a readable safetensors file" in refused()
    save_file({"weight": torch.zeros(3)}, file)
    assert "not a model of fastdqn" in refused()


def test_every_flipped_bit_and_every_cut_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_agent(make_agent((6,), "float32"), file)
    whole = file.read_bytes()
    for place in [*range(0, len(whole), 7), len(whole) - 1]:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << (place % 8)
        file.write_bytes(flipped)
        with pytest.raises(UserError):
            load_agent(file)
    for length in range(0, len(whole), 101):
        file.write_bytes(whole[:length])
        with pytest.raises(UserError):
            load_agent(file)
    file.write_bytes(whole + b"more")
    with pytest.raises(UserError):
        load_agent(file)


@pytest.mark.parametrize(
    "change",
    [
        {"config": {"hidden_units": [1 << 40]}},
        {"config": {"no_such_setting": 1}},
        {"config": {"stack": -1}},
        {"frame_shape": [1, 2, 3]},
        {"frame_shape": [1 << 40]},
        {"num_actions": 1 << 50},
        {"num_actions": "many"},
        {"frame_shape": None},
        {"format": 2},
        {"config": []},
        {"dtype": "O"},
        {"dtype": "M8[s]"},
        {"num_actions": 0},
        {"frame_shape": [0]},
        {"protocol": [1, 2]},
    ],
)
def test_a_well_signed_description_of_nonsense_is_refused_and_allocates_nothing(
    tmp_path: Path, change: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = json.dumps

    def forged(value: dict[str, object]) -> str:
        return real({**value, **change})

    monkeypatch.setattr("fastdqn.checkpoint.json.dumps", forged)
    file = tmp_path / "model.safetensors"
    save_agent(make_agent((6,), "float32"), file)
    with pytest.raises(UserError, match=r"model\.safetensors"):
        load_agent(file)


@pytest.mark.parametrize("text", ["no JSON", "[]", "null", "{}", "[" * 100_000])
def test_a_well_signed_header_of_nonsense_is_refused(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastdqn.checkpoint.json.dumps", lambda _: text)
    file = tmp_path / "model.safetensors"
    save_agent(make_agent((6,), "float32"), file)
    with pytest.raises(UserError, match=r"model\.safetensors: not a model that") as caught:
        load_agent(file)
    assert len(str(caught.value)) < 1_000


def test_weights_of_another_dtype_are_refused(tmp_path: Path) -> None:
    agent = make_agent((6,), "float32")
    agent.network.to(torch.float64)
    save_agent(agent, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="float64"):
        load_agent(tmp_path)


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "model.safetensors"
    write_aside(file, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UserError, match=r"model.safetensors: could not be written: No space left"):
        write_aside(file, b"new")
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pickle

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("unpickled")

    monkeypatch.setattr(pickle, "loads", forbidden)
    monkeypatch.setattr(pickle, "load", forbidden)
    monkeypatch.setattr(torch, "load", forbidden)
    save_agent(make_agent((6,), "float32"), tmp_path / "model.safetensors")
    load_agent(tmp_path)
