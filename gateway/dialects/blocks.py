"""Hashes of a prompt's blocks: what two prompts share from their beginning on, told without a tokenizer.

Engines cache whole blocks of tokens, each under a hash of itself and of all before it (vLLM's automatic prefix caching,
SGLang's radix tree). The same is done here with blocks of text. A block's CRC is mixed into the hash of those before it
by the hash of a tuple of integers, which has no seed: each process of a gateway gets the same. Two blocks that collide
send a request to the wrong backend, and that is all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from zlib import crc32

from gateway.model import BLOCK_BYTES, BLOCKS_MAX

MOST: Final = BLOCK_BYTES * BLOCKS_MAX  # bytes of a prompt that are looked at


def hashed(name: str, texts: Iterable[str]) -> tuple[int, ...]:
    """Chained hashes of the whole blocks of ``texts``, one after another; what is left over has none.

    ``name`` is that of the cache: prompts to different models share nothing, whatever they say.
    """
    return chain(name, joined(texts))


def joined(texts: Iterable[str]) -> bytes:
    """The beginning of the texts as one, with a mark between two of them."""
    parts: list[str] = []
    room = MOST
    for text in texts:
        parts.append(text[:room])
        room -= len(text) + 1
        if room <= 0:
            break
    return "\0".join(parts).encode("utf-8", "surrogatepass")[:MOST]


def chain(name: str, data: bytes) -> tuple[int, ...]:
    """The hash of each whole block of ``data``."""
    link = crc32(name.encode("utf-8", "surrogatepass"))
    links: list[int] = []
    for start in range(0, len(data) - BLOCK_BYTES + 1, BLOCK_BYTES):
        link = hash((link, crc32(data[start : start + BLOCK_BYTES])))
        links.append(link)
    return tuple(links)
