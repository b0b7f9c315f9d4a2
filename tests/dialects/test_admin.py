from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.admin import ADMIN_ROUTES, denied
from gateway.dialects.paths import normalise
from gateway.model import Access
from tests.dialects.helpers import CAPTURES, resolve

# Every one changes or ends an engine, by the documents named in admin.py.
HARMFUL = [
    ("GET", "/stopService"),
    ("HEAD", "/stopService"),
    ("GET", "/stopService?mode=Force"),
    ("POST", "/v1/role/prefill"),
    ("POST", "/v2/role/decode"),
    ("POST", "/v1/engine-server/fault-handling-command"),
    ("POST", "/v1/load_lora_adapter"),
    ("POST", "/v1/unload_lora_adapter"),
    ("POST", "/load_lora_adapter_from_tensors"),
    ("POST", "/sleep"),
    ("POST", "/wake_up"),
    ("POST", "/pause"),
    ("POST", "/resume"),
    ("POST", "/reset_prefix_cache"),
    ("POST", "/collective_rpc"),
    ("POST", "/scale_elastic_ep"),
    ("POST", "/fault_tolerance/apply"),
    ("POST", "/start_profile"),
    ("POST", "/update_weights"),
    ("GET", "/server_info"),
    ("GET", "/flush_cache"),
    ("POST", "/update_weights_from_disk"),
    ("POST", "/release_memory_occupation"),
    ("POST", "/pause_generation"),
    ("POST", "/set_internal_state"),
    ("GET", "/slow_down"),
    ("PUT", "/hicache/storage-backend"),
    ("GET", "/terminate"),
    ("POST", "/distserve/p2p_initialize"),
    ("POST", "/slots/3?action=erase"),
    ("POST", "/slots"),
    ("POST", "/props"),
    ("POST", "/lora-adapters"),
    ("POST", "/models/load"),
    ("POST", "/models/unload"),
]


@pytest.mark.parametrize(("method", "path"), HARMFUL)
@pytest.mark.parametrize("prefix", ["", "/root/path", "/model/proxy/7"])
def test_S03_admin_routes_of_every_engine_are_refused(method: str, path: str, prefix: str) -> None:
    _, route = resolve(method, prefix + path)
    assert (route.label, route.access) == ("admin", Access.DENY)


@pytest.mark.parametrize(("method", "path"), HARMFUL)
@pytest.mark.parametrize(
    "spelling",
    [
        str.upper,
        str.lower,
        lambda path: path + "/",
        lambda path: "//" + path,
        lambda path: "/v1/.." + path,
        lambda path: "/x/%2e%2e" + path,
        lambda path: "/x/%252e%252e%252f" + path[1:],
        lambda path: "http://engine:1025" + path,
        lambda path: path[:2] + f"%{ord(path[2]):02x}" + path[3:],
        lambda path: path[:2] + f"%25{ord(path[2]):02x}" + path[3:],
        lambda path: path[:2] + f"%u{ord(path[2]):04x}" + path[3:],
    ],
)
def test_S01_no_spelling_gets_round_the_deny_table(method: str, path: str, spelling: object) -> None:
    assert callable(spelling)
    path, mark, query = path.partition("?")
    _, route = resolve(method, spelling(path) + mark + query)
    assert route.access is Access.DENY


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/slots"),
        ("HEAD", "/slots"),
        ("GET", "/props"),
        ("GET", "/lora-adapters"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/sleep"),
        ("GET", "/v2/models/pause"),
        ("POST", "/v1/chat/completions"),
        ("GET", "/health"),
        ("POST", "/asleep"),
        ("POST", "/pause/later"),
        ("POST", "/api/my-props"),
    ],
)
def test_what_is_no_administration_passes(method: str, path: str) -> None:
    assert not denied(method, path)


def test_the_table_holds_plain_lower_case_paths_once() -> None:
    paths = [route.path for route in ADMIN_ROUTES]
    assert len(set(paths)) == len(paths)
    assert all(path == path.lower() and path.startswith("/") for path in paths)
    assert all(path == normalise(path) or path.endswith("*") for path in paths)


VLLM_CHANGES = {
    "/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache", "/collective_rpc", "/server_info", "/sleep",
    "/release_kv_cache_memory", "/wake_up", "/pause", "/resume", "/init_weight_transfer_engine",
    "/shutdown_weight_transfer_engine", "/start_weight_update", "/start_draft_weight_update", "/update_weights",
    "/finish_weight_update", "/update_weight_version", "/weight_info", "/weight_checker", "/get_world_size",
    "/scale_elastic_ep",
}  # fmt: skip


@pytest.mark.parametrize("name", ["routes_default", "routes_devmode"])
def test_S03_of_the_routes_that_vllm_lists_at_its_start_exactly_the_admin_ones_are_refused(name: str) -> None:
    refused = set()
    for line in (CAPTURES / "vllm" / f"{name}.txt").read_text().splitlines():
        if line.startswith("Route: "):
            path, _, methods = line.removeprefix("Route: ").partition(", Methods: ")
            for method in methods.split(", "):
                if resolve(method, path)[1].access is Access.DENY:
                    refused.add(path)
    assert refused == (VLLM_CHANGES if name == "routes_devmode" else {"/scale_elastic_ep"})


@given(st.sampled_from(["GET", "POST", "PUT", "DELETE"]), st.text())
def test_any_path_is_judged(method: str, path: str) -> None:
    assert denied(method, path) in {True, False}
