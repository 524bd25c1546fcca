"""Settings of the whole suite."""

from __future__ import annotations

from hypothesis import settings

# Machines that run the suite are shared, so the time of one example says nothing.
settings.register_profile("evenstep", deadline=None, derandomize=True)
settings.load_profile("evenstep")
