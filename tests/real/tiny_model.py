"""A tiny Llama with random weights in llama.cpp's GGUF format, made from the standard library alone.

What it says is nonsense, but always whole words, some of them Chinese: dimension 0 of the embedding is a constant that
no layer writes to, so column 0 of the output matrix is a bias for each token, and whatever is no word gets a strongly
negative one. So no answer ends before its ``max_tokens``. A token takes about a millisecond on one core.

The layout is https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, version 3; the names of keys and tensors are
llama.cpp's. The seed is fixed: every machine makes the same model.
"""

from __future__ import annotations

import random
import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TypeAlias

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORDS = (
    "the of and to in is that for was with are this have from not they which one you were all their there been "
    "would when will more some what time about out then them can only other new could these two may first any like "
    "my now over such our man me even most made after also did many must before back through years where much your "
    "way well down should because long each just state people mr how too little good world make very year still see "
    "own work men day get here old life both between being under three know go last during another never against "
    "你好 世界 推理 网关 请求 队列 显卡 延迟"
)

LAYERS, HIDDEN, HEADS, KV_HEADS, FFN, CONTEXT = 16, 128, 4, 2, 256, 32768
HEAD_DIM = HIDDEN // HEADS
NEVER = -20.0  # a bias that no random score outweighs

Matrix: TypeAlias = "list[array[float]]"


@dataclass(frozen=True)
class Tensor:
    """A matrix by rows, or one row for a vector."""

    name: str
    rows: Matrix

    def shape(self) -> tuple[int, ...]:
        """Fastest dimension first, as GGUF wants it."""
        return (len(self.rows[0]), len(self.rows)) if len(self.rows) > 1 else (len(self.rows[0]),)

    def data(self) -> bytes:
        """Little-endian 32-bit floats, padded to the file's alignment."""
        return padded(b"".join(row.tobytes() for row in self.rows))


# --------------------------------------------------------------------------------------------------------------
# Vocabulary: GPT-2's byte pairs
# --------------------------------------------------------------------------------------------------------------


def byte_characters() -> dict[int, str]:
    """GPT-2's reversible map of bytes to printable characters."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return {byte: chr(byte if byte in printable else next(spare)) for byte in range(256)}


def vocabulary() -> tuple[list[str], list[str], set[str]]:
    """(tokens, merges, words): a word with its leading space is one token, grown from the left one byte at a time."""
    characters = byte_characters()
    tokens = dict.fromkeys([*SPECIAL, *characters.values()])
    merges: dict[str, None] = {}
    words: set[str] = set()
    for word in WORDS.split():
        left, *rest = (characters[byte] for byte in f" {word}".encode())
        for right in rest:
            merges[f"{left} {right}"] = None
            left += right
            tokens[left] = None
        words.add(left)
    return list(tokens), list(merges), words


# --------------------------------------------------------------------------------------------------------------
# Weights
# --------------------------------------------------------------------------------------------------------------


class Weights:
    """Random matrices from one seed."""

    def __init__(self, seed: int) -> None:
        self._gauss = random.Random(seed).gauss

    def matrix(self, rows: int, columns: int, deviation: float) -> Matrix:
        """Normal numbers around zero."""
        return [array("f", [self._gauss(0.0, deviation) for _ in range(columns)]) for _ in range(rows)]

    def silent_first(self, rows: int, columns: int, deviation: float) -> Matrix:
        """The same, but nothing is ever written to the constant dimension."""
        matrix = self.matrix(rows, columns, deviation)
        matrix[0] = array("f", [0.0] * columns)
        return matrix


def tensors(tokens: list[str], words: set[str], seed: int) -> Iterator[Tensor]:
    """All weights under llama.cpp's names; the layers are alike, which costs no time to make."""
    weights = Weights(seed)
    ones = [array("f", [1.0] * HIDDEN)]
    wide, narrow = HIDDEN**-0.5, FFN**-0.5
    share = 1 / LAYERS  # alike layers add up: together they write what one would

    embedding = weights.matrix(len(tokens), HIDDEN, 1.0)
    head = weights.matrix(len(tokens), HIDDEN, 2.5 * wide)
    for token, row, column in zip(tokens, embedding, head, strict=True):
        row[0], column[0] = 4.0, 0.0 if token in words else NEVER
    yield Tensor("token_embd.weight", embedding)
    yield Tensor("output_norm.weight", ones)
    yield Tensor("output.weight", head)

    layer = {
        "attn_norm": ones,
        "attn_q": weights.matrix(HEADS * HEAD_DIM, HIDDEN, wide),
        "attn_k": weights.matrix(KV_HEADS * HEAD_DIM, HIDDEN, wide),
        "attn_v": weights.matrix(KV_HEADS * HEAD_DIM, HIDDEN, wide),
        "attn_output": weights.silent_first(HIDDEN, HEADS * HEAD_DIM, wide * share),
        "ffn_norm": ones,
        "ffn_gate": weights.matrix(FFN, HIDDEN, wide),
        "ffn_up": weights.matrix(FFN, HIDDEN, wide),
        "ffn_down": weights.silent_first(HIDDEN, FFN, narrow * share),
    }
    for index in range(LAYERS):
        for name, matrix in layer.items():
            yield Tensor(f"blk.{index}.{name}.weight", matrix)


# --------------------------------------------------------------------------------------------------------------
# The file
# --------------------------------------------------------------------------------------------------------------

ALIGNMENT = 32


class Kind(IntEnum):
    """Value types of GGUF metadata."""

    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9


class TokenKind(IntEnum):
    """llama.cpp's token types."""

    NORMAL = 1
    CONTROL = 3


def padded(data: bytes) -> bytes:
    """``data`` with zeros up to the next multiple of the alignment."""
    return data + b"\0" * (-len(data) % ALIGNMENT)


def string(text: str) -> bytes:
    """A length-prefixed UTF-8 string."""
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


Value = str | bool | int | float | list[str] | list[int]


def typed(value: Value) -> tuple[Kind, bytes]:
    """(type, bytes) of one metadata value."""
    match value:
        case bool():
            return Kind.BOOL, struct.pack("<?", value)
        case int():
            return Kind.UINT32, struct.pack("<I", value)
        case float():
            return Kind.FLOAT32, struct.pack("<f", value)
        case str():
            return Kind.STRING, string(value)
        case list():
            element = Kind.STRING if isinstance(value[0], str) else Kind.INT32
            items = b"".join(string(item) if isinstance(item, str) else struct.pack("<i", item) for item in value)
            return Kind.ARRAY, struct.pack("<IQ", element, len(value)) + items


def metadata(tokens: list[str], merges: list[str]) -> dict[str, Value]:
    """What llama.cpp must know of the model and its tokenizer."""
    return {
        "general.architecture": "llama",
        "general.name": "tiny",
        "general.file_type": 0,
        "llama.block_count": LAYERS,
        "llama.context_length": CONTEXT,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": FFN,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.rope.dimension_count": HEAD_DIM,
        "llama.rope.freq_base": 10000.0,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.vocab_size": len(tokens),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [int(TokenKind.CONTROL if t in SPECIAL else TokenKind.NORMAL) for t in tokens],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def write_tiny_model(path: Path, seed: int = 1) -> None:
    """Write the model to ``path``: ten megabytes, a fraction of a second."""
    tokens, merges, words = vocabulary()
    facts = metadata(tokens, merges)
    weights = list(tensors(tokens, words, seed))
    head = b"GGUF" + struct.pack("<IQQ", 3, len(weights), len(facts))
    for key, value in facts.items():
        kind, encoded = typed(value)
        head += string(key) + struct.pack("<I", kind) + encoded
    body = bytearray()
    for tensor in weights:
        shape = tensor.shape()
        head += string(tensor.name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(body))
        body += tensor.data()
    path.write_bytes(padded(head) + body)
