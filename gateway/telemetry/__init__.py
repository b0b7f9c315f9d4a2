"""TELL what happened: each module is an Observer of Records."""
