"""Deep Q-learning for Atari and classic control.

The names below are what a script may rely on. They are loaded when they are first used, so that
``import fastdqn`` itself is quick and loads neither torch nor gymnasium.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastdqn._core import Batch, ReplayMemory, __version__
    from fastdqn.agent import Agent
    from fastdqn.checkpoint import load_agent
    from fastdqn.config import Config
    from fastdqn.envs.atari import AtariEnv
    from fastdqn.errors import UserError
    from fastdqn.evaluation import evaluate
    from fastdqn.resuming import resume
    from fastdqn.trainer import train

__all__ = [
    "Agent",
    "AtariEnv",
    "Batch",
    "Config",
    "ReplayMemory",
    "UserError",
    "__version__",
    "evaluate",
    "load_agent",
    "resume",
    "train",
]

_HOMES = {
    "Agent": "fastdqn.agent",
    "AtariEnv": "fastdqn.envs.atari",
    "Batch": "fastdqn.replay",
    "Config": "fastdqn.config",
    "ReplayMemory": "fastdqn.replay",
    "UserError": "fastdqn.errors",
    "__version__": "fastdqn._core",
    "evaluate": "fastdqn.evaluation",
    "load_agent": "fastdqn.checkpoint",
    "resume": "fastdqn.resuming",
    "train": "fastdqn.trainer",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'fastdqn' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))


def _hand_over_to_installed_copy() -> None:
    """Let the installed package answer where this source folder shadows it.

    In the root of a clone, ``import fastdqn`` finds the source folder first, which has no compiled
    part. All of the installed package takes its place, never a mixture of the two.
    """
    from importlib.machinery import EXTENSION_SUFFIXES
    from importlib.metadata import PackageNotFoundError, distribution
    from pathlib import Path

    here = Path(__file__).resolve().parent
    try:
        installed = Path(str(distribution("fastdqn").locate_file("fastdqn"))).resolve()
    except PackageNotFoundError:
        installed = here
    compiled = any((installed / f"_core{suffix}").exists() for suffix in EXTENSION_SUFFIXES)
    if installed == here or not compiled:
        is_clone = (here.parent / "pyproject.toml").exists()
        raise ImportError(
            f"fastdqn's compiled part (fastdqn._core) is missing for Python "
            f"{sys.version_info.major}.{sys.version_info.minor}; build it with: "
            f"{sys.executable} -m pip install --force-reinstall --no-deps "
            f"{here.parent if is_clone else 'CLONE'}"
            f"{'' if is_clone else ', where CLONE is the folder that you cloned fastdqn to'}"
        )
    spec = importlib.util.spec_from_file_location(
        "fastdqn", installed / "__init__.py", submodule_search_locations=[str(installed)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fastdqn"] = module
    spec.loader.exec_module(module)


if importlib.util.find_spec("fastdqn._core") is None:
    _hand_over_to_installed_copy()
