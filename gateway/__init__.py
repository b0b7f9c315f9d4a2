"""Inference Gateway: a drop-in reverse proxy that keeps vLLM and MindIE backends fast under overload."""

__version__ = "0.1.0"
