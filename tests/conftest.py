"""What holds for every test."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("gateway", deadline=None)  # how long an example takes says how busy the machine is
settings.load_profile("gateway")
