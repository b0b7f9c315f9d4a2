"""Settings at the edge: read from ``GATEWAY_`` variables and an env file, checked, handed inwards as plain values."""

from gateway.settings.faults import Fault, shown
from gateway.settings.load import ENV_FILE, Loaded, Source, load
from gateway.settings.model import PREFIX, SECTIONS, Settings, variable

__all__ = ["ENV_FILE", "PREFIX", "SECTIONS", "Fault", "Loaded", "Settings", "Source", "load", "shown", "variable"]
