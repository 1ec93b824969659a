"""Settings that every test shares."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
import replay_scripts
from hypothesis import HealthCheck, settings

from fastdqn.replay import ReplayMemory

# The same examples on every machine and every run: a failure is one that anybody can repeat.
# FASTDQN_HYPOTHESIS=search looks for new ones, and takes its time.
_shared: dict[str, Any] = {
    "deadline": None,  # other processes share the machine: a slow example is no fault
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much],
}
settings.register_profile(
    "repeatable", max_examples=200, derandomize=True, database=None, **_shared
)
settings.register_profile("search", max_examples=3000, **_shared)
settings.load_profile(os.environ.get("FASTDQN_HYPOTHESIS", "repeatable"))

# Modules whose every memory is made once with each store, where it does not choose one itself.
_ON_EVERY_STORE = {
    "test_acting_stacks": ("raw", "compressed", "files"),
    "test_replay_files": ("raw", "compressed"),
    "test_replay_oracle": ("raw", "compressed"),
    "test_replay_pitfalls": ("raw", "compressed", "files"),
    "test_replay_slots": ("raw", "compressed", "files"),
    "test_replay_threads": ("raw", "compressed", "files"),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    stores = _ON_EVERY_STORE.get(metafunc.module.__name__)
    if stores is not None:
        metafunc.parametrize("store", stores, indirect=True)


@pytest.fixture(autouse=True)
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Gives the memories that a test makes the store that it is run with."""
    name = getattr(request, "param", "raw")
    if name == "raw":
        yield
        return
    in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=in_memory) as folder:

        class Stored(ReplayMemory):
            def __init__(self, *args: Any, **options: Any) -> None:
                options.setdefault("storage", "compressed")
                if name == "files":
                    options.setdefault("directory", tempfile.mkdtemp(dir=folder))
                super().__init__(*args, **options)

        for module in (request.module, replay_scripts):
            monkeypatch.setattr(module, "ReplayMemory", Stored)
        yield
