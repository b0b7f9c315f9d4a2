"""Several relay processes and one that decides: what they say to each other."""
