"""An emulated MindIE: ``EmulatedMindIE``."""

from gateway.emulator.mindie.server import EmulatedMindIE
from gateway.emulator.mindie.state import Service

__all__ = ["EmulatedMindIE", "Service"]
