"""How many prompt tokens an image or a recording costs, from the few bytes at its head.

Nothing is decoded but headers. Token counts follow Qwen's models as vLLM 0.33 computes them (qwen2_vl.py and
qwen3_asr.py): an image costs one token per 28 x 28 pixels, audio 13 tokens a second. What cannot be seen (a URL) gets a
fixed prior.
"""

from __future__ import annotations

import binascii
from typing import Any, Final

_PATCH: Final = 28  # pixels on a side of what becomes one token (patch 14, merged 2 x 2)
_IMAGE_MIN: Final = 4
_IMAGE_MAX: Final = 16_384  # max_pixels 12,845,056 of Qwen2-VL
_IMAGE_PRIOR: Final = 1_024  # about 1024 x 768
_AUDIO_RATE: Final = 13.0  # tokens a second
_AUDIO_PRIOR: Final = 390  # half a minute
_AUDIO_MAX: Final = 1_000_000
_VIDEO_PRIOR: Final = 4_096
_FILE_PRIOR: Final = 2_048

# Bytes a second where no header says it: 16-bit mono PCM at 16 kHz, else what 128 kbit/s makes.
_PCM_RATE: Final = 32_000.0
_COMPRESSED_RATE: Final = 16_000.0
_RAW_FORMATS: Final = ("pcm", "raw", "pcm16", "wav")

_HEAD: Final = 48 * 1024  # bytes decoded to find a picture's size: EXIF may stand before it
_AUDIO_HEAD: Final = 256
_JPEG_SIZES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF0..SOF15 without DHT, JPG, DAC
_JPEG_LONE: Final = frozenset({0x01, *range(0xD0, 0xD9)})  # markers without a length: TEM, RST0..7, SOI


def image_tokens(value: Any) -> int:
    """Tokens of the image in a content part's value: a data URL, base64, or an object that holds one."""
    size = _picture_size(_decoded(_encoded(value), _HEAD))
    if size is None:
        return _IMAGE_PRIOR
    width, height = size
    return min(max(round(width / _PATCH) * round(height / _PATCH), _IMAGE_MIN), _IMAGE_MAX)


def audio_tokens(value: Any) -> int:
    """Tokens of the recording in a content part's value."""
    encoded = _encoded(value)
    if not encoded:
        return _AUDIO_PRIOR
    named = value.get("format") if isinstance(value, dict) else None
    return recording_tokens(_decoded(encoded, _AUDIO_HEAD), len(encoded) * 3 // 4, str(named))


def further_tokens(head: str, left_out: int) -> int:
    """Tokens of ``left_out`` bytes of base64 that follow ``head``: a recording's, as a picture's are in its head."""
    encoded = _encoded(head)
    start = _decoded(encoded, _HEAD)
    if not start or _picture_size(start) is not None or head.startswith(("data:image", "data:video", "data:appl")):
        return 0
    seen = len(encoded) * 3 // 4
    whole = recording_tokens(start[:_AUDIO_HEAD], seen + left_out * 3 // 4, "")
    return whole - recording_tokens(start[:_AUDIO_HEAD], seen, "")


def video_tokens(_value: Any) -> int:
    """A fixed prior: frames and their sampling are the engine's business."""
    return _VIDEO_PRIOR


def file_tokens(_value: Any) -> int:
    """A fixed prior for an attached document."""
    return _FILE_PRIOR


def recording_tokens(head: bytes, size: int, name: str) -> int:
    """Tokens of a recording of ``size`` bytes that begins with ``head``; ``name`` is its format or file name."""
    rate = _wav_rate(head) or (_PCM_RATE if name.lower().endswith(_RAW_FORMATS) else _COMPRESSED_RATE)
    return int(min(size / rate * _AUDIO_RATE, _AUDIO_MAX))


def _wav_rate(head: bytes) -> float | None:
    """Bytes a second out of a RIFF header; its ``fmt`` chunk may stand behind others."""
    if head[:4] != b"RIFF" or head[8:12] != b"WAVE":
        return None
    found = head.find(b"fmt ", 12)
    rate = int.from_bytes(head[found + 16 : found + 20], "little") if found >= 0 else 0
    return float(rate) or None


def _encoded(value: Any) -> str:
    """The base64 text in a part's value; empty where it is a URL or nothing."""
    if isinstance(value, dict):
        value = value.get("data") or value.get("url")
    if not isinstance(value, str):
        return ""
    if value.startswith("data:"):
        return value.partition(",")[2] if "," in value[:256] else ""
    return "" if "://" in value[:32] else value


def _decoded(encoded: str, size: int) -> bytes:
    """The first ``size`` bytes at most; empty where it is not base64."""
    head = encoded[: size // 3 * 4]
    try:
        return binascii.a2b_base64(head[: len(head) // 4 * 4])
    except ValueError:
        return b""


def _picture_size(head: bytes) -> tuple[int, int] | None:
    """(width, height) out of a PNG, JPEG, WebP or GIF header."""
    if head.startswith(b"\x89PNG") and head[12:16] == b"IHDR":
        return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
    if head.startswith(b"GIF8"):
        return int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:10], "little")
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return _webp_size(head)
    return _jpeg_size(head) if head.startswith(b"\xff\xd8") else None


def _webp_size(head: bytes) -> tuple[int, int] | None:
    """The three WebP forms of RFC 9649: extended, lossless, lossy."""
    kind = head[12:16]
    if kind == b"VP8X":
        return int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        return int.from_bytes(head[26:28], "little") & 0x3FFF, int.from_bytes(head[28:30], "little") & 0x3FFF
    return None


def _jpeg_size(head: bytes) -> tuple[int, int] | None:
    """The frame header (ITU T.81 B.2.2), behind whatever segments stand before it."""
    at = 2
    while at + 9 <= len(head) and head[at] == 0xFF:  # noqa: PLR2004 - a JPEG marker begins with 0xFF
        marker = head[at + 1]
        if marker in _JPEG_SIZES:
            return int.from_bytes(head[at + 7 : at + 9], "big"), int.from_bytes(head[at + 5 : at + 7], "big")
        at += 2 if marker in _JPEG_LONE else 2 + int.from_bytes(head[at + 2 : at + 4], "big")
    return None
