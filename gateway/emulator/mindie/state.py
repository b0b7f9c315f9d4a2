"""What MindIE's management plane tells (http_wrapper/http_handler.cpp: health, status, config, slots)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, unique
from typing import Any, Final

from gateway.emulator.engine import Engine, Profile
from gateway.emulator.mindie.asks import ITERATIONS
from gateway.emulator.mindie.http import Answer, json_answer


@unique
class Service(Enum):
    """What the service says of itself."""

    NORMAL = "normal"
    BUSY = "busy"  # alive, and not ready
    ABNORMAL = "abnormal"
    STOPPED = "stopped"


_HEALTH: Final = frozenset({"/v2/health/live", "/v2/health/ready", "/health"})


def health(path: str, service: Service) -> Answer | None:
    """The answer to a health route, None to another: 200 without a body where all is well.

    A busy service is alive: only ``/v2/health/ready`` says no.
    """
    if path not in _HEALTH:
        return None
    if service is Service.STOPPED:
        return json_answer({"error": "The service has been stopped.", "error_type": "Service Unavailable"}, 503)
    if service is Service.ABNORMAL:
        return json_answer({"message": "Service is abnormal"}, 500)
    if service is Service.BUSY and path == "/v2/health/ready":
        return json_answer({"message": "Service is alive but busy. Consider reducing request frequency"}, 503)
    if service is Service.BUSY and path == "/v2/health/live":
        return json_answer({"message": "Service is alive but busy"})
    return Answer(content_type="")


def told(path: str, profile: Profile, engine: Engine, models: Sequence[str]) -> Answer | None:
    """The answer to a route that tells of limits or of load, None to another."""
    if path in {"/v1/status", "/v2/status"}:
        return json_answer(_status(profile, engine))
    if path == "/v1/config":
        return json_answer(_config(profile, models[0]))
    if path == "/info":
        cards = [{"model_name": name, "max_total_tokens": profile.max_model_len} for name in models]
        return json_answer({"models": cards, "max_batch_size": profile.max_num_seqs})
    if path == "/metrics-json":
        return json_answer({
            "waitingInferRequestNum": engine.waiting,
            "processingInferRequestNum": engine.running,
            "remainBlocks": _free(profile, engine),
        })  # fmt: skip
    return None


def slots(profile: Profile, engine: Engine) -> dict[str, int]:
    """``getSlotCount``: a slot is a place in the running batch (maxBatchSize)."""
    return {
        "total_slots": profile.max_num_seqs,
        "free_slots": max(0, profile.max_num_seqs - engine.running - engine.waiting),
        "available_tokens_length": _free(profile, engine) * profile.block_size,
    }


def _free(profile: Profile, engine: Engine) -> int:
    return profile.kv_blocks - engine.kv_tokens // profile.block_size


def _status(profile: Profile, engine: Engine) -> dict[str, Any]:
    resource = {
        "availSlotsNum": max(0, profile.max_num_seqs - engine.running),
        "availBlockNum": _free(profile, engine),
        "waitingRequestNum": engine.waiting,
        "runningRequestNum": engine.running,
        "swappedRequestNum": 0,
        "freeNpuBlockNums": _free(profile, engine),
        "freeCpuBlockNums": 0,
        "totalNpuBlockNums": profile.kv_blocks,
        "totalCpuBlockNums": 0,
    }
    service = {"roleStatus": "RoleReady", "currentRole": "none"}
    return {"service": service, "resource": resource, "linkStatus": {"peers": []}}


def _config(profile: Profile, model: str) -> dict[str, Any]:
    return {
        "modelName": model,
        "maxSeqLen": profile.max_model_len,
        "npuMemSize": -1,
        "cpuMemSize": 5,
        "worldSize": 1,
        "maxOutputLen": ITERATIONS,
        "cacheBlockSize": profile.block_size,
    }
