"""READ AND WRITE a backend's language. Pure: bytes and dicts in, values out."""
