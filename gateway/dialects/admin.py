"""The engines' own administration, which a gateway refuses to forward unless the operator allows it.

One table for every engine family, because a backend's kind may be configured wrongly. An entry names an admin path
and where it was read. It also holds below a prefix, since engines can be served under one (``--root-path``,
``--api-prefix``) and platforms forward whole path suffixes (GPUStack's ``/model/proxy/{id}/{path}``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_READS: Final = frozenset({"GET", "HEAD"})


@dataclass(frozen=True, slots=True)
class AdminRoute:
    """One admin path, lower case; ``*`` stands for any rest. ``readable``: GET only shows state and passes."""

    path: str
    readable: bool = False


# vLLM 0.33, its start-up route list, with and without VLLM_SERVER_DEV_MODE=1 and VLLM_ALLOW_RUNTIME_LORA_UPDATING.
_VLLM: Final = (
    AdminRoute("/v1/load_lora_adapter"),
    AdminRoute("/v1/unload_lora_adapter"),
    AdminRoute("/start_profile"),
    AdminRoute("/stop_profile"),
    AdminRoute("/scale_elastic_ep"),
    AdminRoute("/fault_tolerance/*"),
    AdminRoute("/sleep"),
    AdminRoute("/wake_up"),
    AdminRoute("/pause"),
    AdminRoute("/resume"),
    AdminRoute("/release_kv_cache_memory"),
    AdminRoute("/reset_prefix_cache"),
    AdminRoute("/reset_mm_cache"),
    AdminRoute("/reset_encoder_cache"),
    AdminRoute("/collective_rpc"),
    AdminRoute("/server_info"),
    AdminRoute("/init_weight_transfer_engine"),
    AdminRoute("/shutdown_weight_transfer_engine"),
    AdminRoute("/start_weight_update"),
    AdminRoute("/start_draft_weight_update"),
    AdminRoute("/finish_weight_update"),
    AdminRoute("/update_weight*"),
    AdminRoute("/weight_checker"),
    AdminRoute("/weight_info"),
    AdminRoute("/get_world_size"),
)

# MindIE-LLM 3.0.0, src/server/endpoint/http_wrapper/http_handler.cpp; on one port with inference where ports are
# merged. GET /stopService ends the server. cpp-httplib answers HEAD with the GET handler, so no method is harmless.
_MINDIE: Final = (
    AdminRoute("/stopservice"),
    AdminRoute("/v1/role/*"),
    AdminRoute("/v2/role/*"),
    AdminRoute("/v1/engine-server/fault-handling-command"),
)

# SGLang 0.5, python/sglang/srt/entrypoints/http_server.py; most of these answer GET and POST alike.
_SGLANG: Final = (
    AdminRoute("/flush_cache"),
    AdminRoute("/clear_hicache_storage_backend"),
    AdminRoute("/hicache/*"),
    AdminRoute("/init_weights_*"),
    AdminRoute("/destroy_weights_*"),
    AdminRoute("/send_weights_*"),
    AdminRoute("/get_weights_*"),
    AdminRoute("/weights_checker"),
    AdminRoute("/release_memory_occupation"),
    AdminRoute("/resume_memory_occupation"),
    AdminRoute("/pause_generation"),
    AdminRoute("/continue_generation"),
    AdminRoute("/set_internal_state"),
    AdminRoute("/slow_down"),
    AdminRoute("/load_lora_adapter*"),
    AdminRoute("/unload_lora_adapter"),
    AdminRoute("/start_expert_distribution_record"),
    AdminRoute("/stop_expert_distribution_record"),
    AdminRoute("/dump_expert_distribution_record"),
    AdminRoute("/configure_logging"),
    AdminRoute("/freeze_gc"),
    AdminRoute("/set_trace_level"),
    AdminRoute("/add_external_corpus"),
    AdminRoute("/remove_external_corpus"),
    AdminRoute("/remote_instance_transfer_engine_info"),
    AdminRoute("/get_remote_instance_transfer_engine_info"),
    AdminRoute("/dumper/*"),
)

# LMDeploy, lmdeploy/serve/openai/api_server.py and serve/proxy/proxy.py. GET /terminate ends the server.
_LMDEPLOY: Final = (
    AdminRoute("/terminate"),
    AdminRoute("/terminate_all"),
    AdminRoute("/wakeup"),
    AdminRoute("/distserve/*"),
    AdminRoute("/nodes/*"),
)

# llama.cpp, tools/server/README.md: what a POST changes, a GET only shows.
_LLAMACPP: Final = (
    AdminRoute("/slots", readable=True),
    AdminRoute("/slots/*"),
    AdminRoute("/props", readable=True),
    AdminRoute("/lora-adapters", readable=True),
    AdminRoute("/models/load"),
    AdminRoute("/models/unload"),
)

ADMIN_ROUTES: Final = _VLLM + _MINDIE + _SGLANG + _LMDEPLOY + _LLAMACPP


def _matcher(routes: Iterable[AdminRoute]) -> re.Pattern[str]:
    """Any of ``routes``, at the end of a path and on a segment boundary."""
    return re.compile("(?:" + "|".join(re.escape(route.path).replace(r"\*", ".*") for route in routes) + ")$")


_DENIED: Final = _matcher(ADMIN_ROUTES)
_NOT_EVEN_READ: Final = _matcher(route for route in ADMIN_ROUTES if not route.readable)
_MODEL_NAME: Final = re.compile(r"/(?:v1|v2|v1-openai)/models/[^/]+")


def denied(method: str, path: str) -> bool:
    """Whether ``path`` (from ``paths.normalise``) is an engine's administration. Upper and lower case count alike."""
    folded = path.casefold()
    routes = _NOT_EVEN_READ if method in _READS else _DENIED
    return routes.search(folded) is not None and not (method in _READS and _MODEL_NAME.fullmatch(folded))
