"""Settings that every test shares."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

# The same examples on every machine and every run: a failure is one that anybody can repeat.
# FASTDQN_HYPOTHESIS=search looks for new ones, as long as the examples asked for take.
_shared = {
    "deadline": None,  # other processes share the machine: a slow example is no fault
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much],
}
settings.register_profile("repeatable", derandomize=True, database=None, **_shared)  # type: ignore[arg-type]
settings.register_profile(
    "search",
    max_examples=1000,
    phases=[Phase.reuse, Phase.generate, Phase.target, Phase.shrink],
    **_shared,  # type: ignore[arg-type]
)
settings.load_profile(os.environ.get("FASTDQN_HYPOTHESIS", "repeatable"))
