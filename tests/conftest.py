"""Settings of the whole suite."""

from __future__ import annotations

import os

from hypothesis import settings

# Machines that run the suite are shared, so the time of one example says nothing. More examples:
# EVENSTEP_EXAMPLES=1000 make test
settings.register_profile(
    "evenstep",
    deadline=None,
    derandomize=True,
    max_examples=int(os.environ.get("EVENSTEP_EXAMPLES", "40")),
)
settings.load_profile("evenstep")
