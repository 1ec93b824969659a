"""Settings that every test shares."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings

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
