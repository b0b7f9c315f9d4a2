"""DECIDE: who runs where and when, who waits and who is refused. Pure: no clock, no I/O, no chance of its own."""
