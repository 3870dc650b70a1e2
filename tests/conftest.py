"""Settings of all tests."""

from __future__ import annotations

from hypothesis import settings

# How long an example takes says nothing about whether it is right, on a busy machine least of all.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
