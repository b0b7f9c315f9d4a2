"""Engines to stand in for: constants fitted to public figures."""

from __future__ import annotations

from typing import Final

from gateway.emulator.engine import Profile

FLAT: Final = Profile(name="flat", base=0.01, block_size=1)
C550_ASR: Final = Profile(
    name="c550-asr", base=0.0028, per_sequence=0.0006, per_prefill_token=2e-4, collapse_beyond=50, collapse=8e-6
)
QWEN3_8B_910B: Final = Profile(
    name="910b-qwen3-8b", base=0.042, per_sequence=3.5e-4, per_kv_token=5e-8, per_prefill_token=1e-4, kv_tokens=250_000
)
MINDIE_910B: Final = Profile(
    name="910b-mindie",
    base=0.025,
    per_sequence=3.5e-4,
    per_kv_token=5e-8,
    per_prefill_token=1e-4,
    kv_tokens=250_000,
    max_num_seqs=200,
    prefill_first=True,
)
LLAMA3_8B_A100: Final = Profile(
    name="a100-llama3-8b",
    base=0.0095,
    per_sequence=2e-5,
    per_kv_token=7.7e-8,
    per_prefill_token=9e-5,
    per_attention=2.6e-9,
    max_num_batched_tokens=2048,
    long_prefill_threshold=32,
    kv_tokens=430_000,
    max_model_len=131_072,
)
DUO_310P: Final = Profile(
    name="310p", base=0.37, per_sequence=0.04, per_prefill_token=1.5e-3, max_num_seqs=8, kv_tokens=32_768
)

PROFILES: Final = {
    profile.name: profile for profile in (FLAT, C550_ASR, QWEN3_8B_910B, MINDIE_910B, LLAMA3_8B_A100, DUO_310P)
}
