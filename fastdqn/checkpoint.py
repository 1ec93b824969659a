"""Models on disk: one safetensors file with the weights and, as JSON in its header, the rest.

The rest is the config, the protocol and what the network is built from, so that the one file is an
agent. A digest covers all of it. Nothing is unpickled and nothing in a file is believed before it
is checked: a damaged file is one `UserError` that names it. Files are written aside and renamed, so
that a kill at any moment leaves the old or the new one.
"""

from __future__ import annotations

import hashlib
import json
import operator
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fastdqn.agent import Agent
from fastdqn.config import Config
from fastdqn.errors import UserError
from fastdqn.machine import choose_device
from fastdqn.networks import build_network

__all__ = ["MODEL_FILE", "load_agent", "save_agent", "write_aside"]

MODEL_FILE = "model.safetensors"
_FORMAT = 1


def save_agent(agent: Agent, path: Path, **progress: int) -> None:
    """Write the agent to the file `path`, with how far its training had come."""
    weights = {
        name: weight.detach().cpu().contiguous()
        for name, weight in agent.network.state_dict().items()
    }
    text = json.dumps(
        {
            "format": _FORMAT,
            "config": agent.config.to_dict(),
            "protocol": agent.protocol,
            "frame_shape": agent.frame_shape,
            "dtype": agent.dtype.name,
            "num_actions": agent.num_actions,
            "progress": progress,
        }
    )
    write_aside(path, save(weights, {"fastdqn": text, "sha256": _digest(text, weights)}))


def write_aside(path: Path, data: bytes) -> None:
    """Put `data` in the file `path` so that at no moment a half-written one is there."""
    aside = path.with_name(path.name + ".partial")
    try:
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise UserError(f"{path}: could not be written: {error.strerror}") from error


def load_agent(path: str | os.PathLike[str], device: str = "auto") -> Agent:
    """The agent saved in a run's folder or in a model's file, on any device.

    Raises `UserError` where the file is missing, damaged, or no model of fastdqn.
    """
    file = Path(path)
    if file.is_dir():
        file /= MODEL_FILE
    if not file.is_file():
        raise UserError(
            f"{path}: no such model; expected a run's folder, with its {MODEL_FILE}, or that file"
        )
    try:
        with safe_open(file, framework="pt") as opened:
            header = opened.metadata() or {}
            weights = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{file}: not a readable safetensors file: {error}") from None
    text = header.get("fastdqn")
    if text is None:
        raise UserError(f"{file}: a safetensors file, but not a model of fastdqn")
    if header.get("sha256") != _digest(text, weights):
        raise UserError(f"{file}: damaged: its contents differ from their digest")
    chosen = choose_device(device)
    try:
        return _build_agent(json.loads(text), weights, chosen)
    # Anyone can write a file whose digest is right: whatever it describes, it is one clear error.
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        RuntimeError,
        ArithmeticError,
    ) as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise UserError(f"{file}: not a model that this fastdqn can build: {what}") from error


def _build_agent(
    described: Mapping[str, Any], weights: Mapping[str, Tensor], device: torch.device
) -> Agent:
    if described["format"] != _FORMAT:
        raise UserError(f"it has format {described['format']}, this fastdqn reads {_FORMAT}")
    config = Config.from_dict(described["config"])
    frame_shape = tuple(operator.index(size) for size in described["frame_shape"])
    num_actions = operator.index(described["num_actions"])
    dtype = np.dtype(described["dtype"])
    if dtype.kind not in "biuf" or num_actions < 1 or min(frame_shape) < 1:
        raise UserError(f"observations {frame_shape} of {dtype} and {num_actions} actions")
    # On "meta" nothing is allocated until the shapes are seen to agree with the file's tensors.
    with torch.device("meta"):
        network = build_network(frame_shape, num_actions, **config.network_options())
    expected = {name: _form(weight) for name, weight in network.state_dict().items()}
    found = {name: _form(weight) for name, weight in weights.items()}
    if expected != found:
        raise UserError(f"its weights are {found}, the network that it describes has {expected}")
    network.to_empty(device="cpu")
    network.load_state_dict(weights)
    return Agent(
        network,
        config,
        frame_shape=frame_shape,
        dtype=dtype.name,
        num_actions=num_actions,
        protocol=dict(described["protocol"]),
        device=device,
    )


def _form(weight: Tensor) -> tuple[tuple[int, ...], torch.dtype]:
    return tuple(weight.shape), weight.dtype


def _digest(text: str, weights: Mapping[str, Tensor]) -> str:
    """SHA-256 of the description and of every tensor's name, dtype, shape and bytes."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(weights):
        weight = weights[name]
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        digest.update(weight.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
