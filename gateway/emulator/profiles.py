"""Engines to stand in for: constants fitted to public figures.

``tests/emulator/test_profiles.py`` prints every profile against the figures it was fitted to, and holds the bands.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gateway.emulator.engine import Profile

FLAT: Final = Profile(name="flat", base=0.01, block_size=1, prefix_cache=False)
"""Every step lasts 10 ms whatever it holds and was asked before: for tests that state instants."""

C550_ASR: Final = Profile(
    name="c550-asr",
    base=0.0073,
    per_sequence=0.00117,
    per_prompt=0.0044,
    per_prefill_token=1e-4,
    collapse_beyond=50,
    collapse=1.23e-5,
    max_num_seqs=256,
    kv_tokens=300_000,
    max_model_len=4096,
)
"""Qwen3-ASR-1.7B on a MetaX C550 under vLLM (MetaX-MACA/vLLM-metax#299), clips of about five seconds.

Fitted to the reported mean latency at 1 to 100 concurrent requests. The same report's QPS column is not fitted: it is
three to four times concurrency over mean latency, which Little's law forbids. Even the mean latencies ask for a
throughput that falls from 5 to 20 requests at once and rises again to 50; no batch costs less than a smaller one, so
the fit runs between them (0.7 to 1.4 of each). That throughput falls under heavy load is the report's point, and is
the quadratic term beyond 50 sequences. The audio encoder's work is in the cost of a prompt token: 13 tokens a second
of audio.
"""

QWEN3_8B_910B: Final = Profile(
    name="910b-qwen3-8b",
    base=0.0485,
    per_sequence=1.71e-4,
    per_kv_token=2.1e-8,
    per_prompt=0.02,
    per_prefill_token=4.3e-5,
    per_attention=1.7e-8,
    max_num_seqs=256,
    max_num_batched_tokens=2048,
    kv_tokens=250_000,
    block_size=128,
)
"""Qwen3-8B on one Ascend 910B under vLLM-Ascend 0.9.1 (GPUStack performance lab, qwen3-8b/910b).

Fitted to its ShareGPT run of 1000 requests at once, to the run at concurrency 4, and to the random sets of 128 to
32,000 prompt tokens. The page's tuned random blocks contradict its own table and are not used.
"""

MINDIE_910B: Final = Profile(
    name="910b-mindie",
    base=0.016,
    per_sequence=1.96e-4,
    per_kv_token=1.5e-9,
    per_prompt=8.8e-5,
    per_prefill_token=5e-5,
    per_attention=1e-8,
    max_num_seqs=1024,
    max_num_batched_tokens=8192,
    kv_tokens=300_000,
    block_size=128,
    prefill_first=True,
    max_prefill_seqs=50,
)
"""Qwen3-8B-W8A8 on one Ascend 910B under MindIE 2.1 with its prefix cache (GPUStack performance lab).

Prompts go first and decodes stand meanwhile, hence a low TTFT and a mean TPOT four times its median: an answer of two
tokens waits between them until all prompts are through. All 1000 requests of the run had their first token within
11 s, so its batch did not bound them. The mean and P99 of TPOT hang on the share of answers of two to six tokens,
which the report does not tell; they are reproduced within a factor of two.
"""

LLAMA3_8B_A100_NO_FLAG: Final = Profile(
    name="a100-llama3-8b-noflag",
    base=0.0095,
    per_sequence=2e-5,
    per_kv_token=7.7e-8,
    per_prefill_token=9e-5,
    per_attention=2.6e-9,
    max_num_seqs=256,
    max_num_batched_tokens=2048,
    kv_tokens=430_000,
    max_model_len=131_072,
)
"""Llama-3.1-8B in bf16 on one A100 of 80 GB under vLLM, from first principles.

Weights: 16 GB at 1.7 of the 2.04 TB/s. KV: 131 kB a token (32 layers, 8 heads of 128, keys and values) at the same
rate, and 57 GB of room. Prompt: 16 GFLOP a token, attention 524 kFLOP a pair (4 x 4096 x 32), both at about 200 of
312 TFLOP/s. A prompt of 128,000 tokens takes 33 s alone and, without a bound on its share of a step, everybody behind
it waits for it.
"""

LLAMA3_8B_A100: Final = replace(LLAMA3_8B_A100_NO_FLAG, name="a100-llama3-8b", long_prefill_threshold=32)
"""The same with the engine flag ``--long-prefill-token-threshold 32``, which this profile assumes.

With it no prompt takes more than 32 tokens of a step, so short prompts interleave with a long one: the long one
takes 71 s instead of 33, and a short one's TTFT less than doubles instead of growing to half a minute.
"""

QWEN3_8B_H100: Final = Profile(
    name="h100-qwen3-8b",
    base=0.0073,
    per_sequence=6.4e-5,
    per_kv_token=4.4e-8,
    per_prompt=0.0028,
    per_prefill_token=3e-5,
    per_attention=1.3e-9,
    max_num_seqs=1024,
    max_num_batched_tokens=8192,
    kv_tokens=350_000,
    max_model_len=40_960,
)
"""Qwen3-8B in bf16 on one H100 of 80 GB under vLLM (GPUStack performance lab).

Fitted to the run of 1000 ShareGPT requests at once of "The Impact of Quantization on vLLM Inference Performance" (with
0.9.2) and to the runs at concurrency 1 to 8 of qwen3-8b/h100-latency (0.11). KV: 147 kB a token (36 layers, 8 heads of
128, keys and values) at 3.35 TB/s, and 52 GB of room. The TTFT at concurrency 4 is not fitted: it is 64 ms for prompts
that take 10 ms when a thousand are read at once, for a step that holds a prompt runs without vLLM's captured graphs.
"""

DUO_310P: Final = Profile(
    name="310p",
    base=0.37,
    per_sequence=0.04,
    per_prefill_token=1.5e-3,
    max_num_seqs=8,
    max_num_batched_tokens=1024,
    kv_tokens=32_768,
    block_size=128,
    max_model_len=8192,
)
"""An Ascend 310P: 2.5 tokens a second for one stream and eight slots, as its users report."""

PROFILES: Final = {
    profile.name: profile
    for profile in (
        FLAT,
        C550_ASR,
        QWEN3_8B_910B,
        MINDIE_910B,
        LLAMA3_8B_A100,
        LLAMA3_8B_A100_NO_FLAG,
        QWEN3_8B_H100,
        DUO_310P,
    )
}
"""Every profile by name."""
