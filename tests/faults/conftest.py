"""How many examples are tried: the same few in every run, or more with ``MOMADVISE_FAULT_EXAMPLES=5000``."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

EXAMPLES = int(os.environ.get("MOMADVISE_FAULT_EXAMPLES", "60"))

settings.register_profile(
    "faults",
    max_examples=EXAMPLES,
    derandomize="MOMADVISE_FAULT_EXAMPLES" not in os.environ,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("faults")
