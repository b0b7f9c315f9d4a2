"""The production admission on simulated time, between clients that behave as SDKs do and emulated engines.

Nothing here reads a clock, waits or opens a socket: a run is a function of its setup, seed included.
"""
