"""The demo's load: speech for the emulated C550, five times what it can serve, from clients that retry.

The same load once straight at the engine and once through a gateway; see ``overload``.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import orjson

from gateway.emulator.engine import Engine, Profile
from gateway.emulator.intake import AUDIO_TOKENS_PER_SECOND, SPEECH_TOKENS_PER_SECOND
from gateway.emulator.load import Ask, Mix, Plan
from gateway.emulator.profiles import C550_ASR

OVERLOAD: Final = 5.0  # times the engine's best throughput
DIRECT_SECONDS: Final = 10.0  # of the demo straight at the engine, which is enough to see it
GATED_SECONDS: Final = 16.0  # and through the gateway, which has to learn the engine first
PATIENCE: Final = 5.0  # seconds after which the demo's clients time out
BYTES_PER_SECOND: Final = 1625  # of audio: GSM 6.10 in a WAV file, so that the load is requests and not bytes
CLIP: Final = (4.6, 8.4)  # seconds of audio, evenly
_BOUNDARY: Final = "emulated-load"


@dataclass(frozen=True, slots=True)
class Overload:
    """A load that is too much. ``best`` is the engine's best throughput in requests a second."""

    profile: Profile
    best: float
    plan: Plan


def overload(duration: float, timeout: float = 10.0, times: float = OVERLOAD, seed: int = 0) -> Overload:
    """``times`` the best throughput of the emulated C550 for ``duration`` seconds, as speech to transcribe."""
    best = best_throughput(C550_ASR, clip_tokens)
    return Overload(C550_ASR, best, Plan(speech(C550_ASR.name), times * best, duration, timeout, seed=seed))


def clip_tokens(chance: random.Random) -> tuple[int, int]:
    """(prompt, output) tokens of a clip."""
    seconds = chance.uniform(*CLIP)
    return round(seconds * AUDIO_TOKENS_PER_SECOND), round(seconds * SPEECH_TOKENS_PER_SECOND)


def speech(model: str) -> Mix:
    """Clips for /v1/audio/transcriptions."""

    def mix(chance: random.Random) -> Ask:
        audio = wav(chance.uniform(*CLIP))
        body = (
            f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="model"\r\n\r\n{model}\r\n'
            f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="clip.wav"\r\n'
            "Content-Type: audio/wav\r\n\r\n"
        ).encode()
        body += audio + f"\r\n--{_BOUNDARY}--\r\n".encode()
        return Ask("/v1/audio/transcriptions", body, f"multipart/form-data; boundary={_BOUNDARY}", kind="speech")

    return mix


def wav(seconds: float) -> bytes:
    """A WAV file of so many seconds, GSM 6.10 by its header, silent."""
    data = b"\0" * round(seconds * BYTES_PER_SECOND)
    form = (49).to_bytes(2, "little") + (1).to_bytes(2, "little") + (8000).to_bytes(4, "little")
    form += BYTES_PER_SECOND.to_bytes(4, "little") + (65).to_bytes(2, "little") + b"\0\0"
    chunks = b"WAVEfmt " + len(form).to_bytes(4, "little") + form + b"data" + len(data).to_bytes(4, "little") + data
    return b"RIFF" + len(chunks).to_bytes(4, "little") + chunks


def chat(model: str, prompt: tuple[int, int], output: tuple[int, int], *, stream: bool = True, kind: str = "") -> Mix:
    """Chats of evenly drawn lengths in tokens."""

    def mix(chance: random.Random) -> Ask:
        words, tokens = chance.randint(*prompt), chance.randint(*output)
        message = {"role": "user", "content": "word " * words}
        document = {"model": model, "messages": [message], "max_tokens": tokens, "stream": stream}
        return Ask("/v1/chat/completions", orjson.dumps(document), stream=stream, kind=kind)

    return mix


def best_throughput(
    profile: Profile, draw: Callable[[random.Random], tuple[int, int]], seed: int = 0, rounds: int = 12
) -> float:
    """Requests a second at the best fixed concurrency, found on the model itself.

    Concurrency grows by a quarter until throughput has fallen twice.
    """
    best, falls, concurrency = 0.0, 0, 1.0
    while falls < 2 and concurrency <= profile.max_num_seqs:  # noqa: PLR2004 - one may be chance
        found = _throughput(profile, draw, random.Random(seed), round(concurrency), rounds)  # noqa: S311 - repeatable
        best, falls = (found, 0) if found > best else (best, falls + 1)
        concurrency = max(concurrency + 1, concurrency * 1.25)
    return best


def _throughput(
    profile: Profile,
    draw: Callable[[random.Random], tuple[int, int]],
    chance: random.Random,
    concurrency: int,
    rounds: int,
) -> float:
    engine = Engine(profile)
    total, key, finished, warm_at, now = concurrency * rounds, concurrency, 0, 0.0, 0.0
    for first in range(concurrency):
        engine.submit(first, *draw(chance), 0.0)
    while finished < total:
        now = engine.next_event() or now
        for emission in engine.advance(now):
            if emission.finished:
                finished += 1
                warm_at = now if finished == concurrency else warm_at
                engine.submit(key, *draw(chance), now)
                key += 1
    return (total - concurrency) / (now - warm_at)
