"""The tiny model in the folder layout of Hugging Face, as vLLM loads it; from the standard library alone.

Weights, vocabulary and chat template are those of ``tiny_model``. The layouts are safetensors
(https://github.com/huggingface/safetensors#format) and tokenizer.json of the ``tokenizers`` library.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, Final

from tests.real import tiny_model as tiny

_OUTER: Final = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_INNER: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def name_of(gguf: str) -> str:
    """What transformers calls the tensor that llama.cpp calls ``gguf``."""
    if gguf in _OUTER:
        return _OUTER[gguf]
    _, layer, name, _ = gguf.split(".")
    return f"model.layers.{layer}.{_INNER[name]}.weight"


def model_config(tokens: int) -> dict[str, Any]:
    """config.json."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": tiny.HIDDEN,
        "intermediate_size": tiny.FFN,
        "num_hidden_layers": tiny.LAYERS,
        "num_attention_heads": tiny.HEADS,
        "num_key_value_heads": tiny.KV_HEADS,
        "head_dim": tiny.HEAD_DIM,
        "vocab_size": tokens,
        "max_position_embeddings": tiny.CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        **special_tokens(),
        "torch_dtype": "float32",
    }


def special_tokens() -> dict[str, int]:
    """generation_config.json, and a part of config.json: indices into ``SPECIAL``."""
    return {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0}


def tokenizer(tokens: list[str], merges: list[str]) -> dict[str, Any]:
    """tokenizer.json: byte-level pairs, with GPT-2's rule for words."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": index, "content": token, **flags, "special": True} for index, token in enumerate(tiny.SPECIAL)
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in merges],
        },
    }


TOKENIZER_CONFIG: Final = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": tiny.CONTEXT,
    "eos_token": "<|im_end|>",
    "pad_token": "<|endoftext|>",
    "clean_up_tokenization_spaces": False,
    "chat_template": tiny.CHAT_TEMPLATE,
}


def safetensors(weights: list[tiny.Tensor]) -> bytes:
    """All tensors in one file: a header of JSON, then their data without gaps."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = bytearray()
    for tensor in weights:
        data = b"".join(row.tobytes() for row in tensor.rows)
        place = [len(body), len(body) + len(data)]
        header[name_of(tensor.name)] = {"dtype": "F32", "shape": tensor.shape()[::-1], "data_offsets": place}
        body += data
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    return struct.pack("<Q", len(encoded)) + encoded + bytes(body)


def write_hf_model(folder: Path, seed: int = 1) -> None:
    """Write the model's files into ``folder``, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens, merges, words = tiny.vocabulary()
    documents = {
        "config": model_config(len(tokens)),
        "generation_config": special_tokens(),
        "tokenizer": tokenizer(tokens, merges),
        "tokenizer_config": TOKENIZER_CONFIG,
    }
    for name, document in documents.items():
        (folder / f"{name}.json").write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    (folder / "model.safetensors").write_bytes(safetensors(list(tiny.tensors(tokens, words, seed))))
