"""``gateway keys``: make an API key, or hash one that is there."""

from __future__ import annotations

import json
import secrets
import sys
from typing import Final

from gateway.app.exits import EXIT_USAGE
from gateway.settings.keys import SHORT, hashed

_BYTES: Final = 32  # of chance: 256 bits cannot be guessed, so a fast hash is safe


def run_new(name: str) -> int:
    """Print a new key, and its entry for the file of keys; the key is shown this once."""
    key = f"sk-{secrets.token_urlsafe(_BYTES)}"
    sys.stdout.write(f"{key}\n")
    sys.stderr.write(
        "The key above is shown this once: give it to its holder. Its entry for GATEWAY_API_KEYS_FILE:\n"
        f"{json.dumps({'name': name, 'keys': [hashed(key)]})}\n"
    )
    return 0


def run_hash() -> int:
    """Print the hash of the key on standard input: arguments can be seen by everybody on the machine."""
    if sys.stdin.isatty():
        sys.stderr.write("Paste the key and press Enter: ")
        sys.stderr.flush()
    key = sys.stdin.readline().strip()
    if not (key.isascii() and key.isprintable()) or " " in key or not key:
        sys.stderr.write("got no key, expected one line of printable ASCII without spaces on standard input\n")
        return EXIT_USAGE
    if len(key) < SHORT:
        sys.stderr.write(
            f"The key has fewer than {SHORT} characters and may be guessed: `gateway keys new` makes one.\n"
        )
    sys.stdout.write(f"{hashed(key)}\n")
    return 0
