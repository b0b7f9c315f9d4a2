"""What is asked of every kind of engine, and how a kind is found out."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.admin import denied
from gateway.dialects.base import EngineDialect, Plane
from gateway.dialects.engines import AUTO, ENGINES, GENERIC
from gateway.dialects.kinds import QUESTIONS, first_model, recognise, served_models
from gateway.dialects.registry import standard
from gateway.model import Access
from tests.dialects.helpers import capture

ALL = sorted(ENGINES)


@pytest.mark.parametrize("kind", ALL)
def test_every_kind_has_its_questions(kind: str) -> None:
    engine: EngineDialect = ENGINES[kind]
    assert engine.kind == kind
    assert engine.gauges
    assert engine.health[-1].plane is Plane.SERVING  # the last word is the port's that serves


@pytest.mark.parametrize("kind", ALL)
def test_questions_change_nothing_and_work_no_engine(kind: str) -> None:
    engine = ENGINES[kind]
    paths = [probe.path for probe in engine.health] + [path for gauges in engine.gauges for path in gauges.paths]
    for path in [*paths, *QUESTIONS]:
        assert not denied("GET", path)
        assert standard().resolve("GET", path)[1].access is Access.BYPASS
    assert "/health" not in [probe.path for probe in ENGINES["sglang"].health]  # generates a token
    assert not any("timed" in path for path in paths)  # MindIE's, which runs an inference


def test_mindie_is_asked_for_life_and_not_for_readiness() -> None:
    assert all("ready" not in probe.path for probe in ENGINES["mindie"].health)  # 503 where it is merely busy
    assert ENGINES["mindie"].closes_when_full
    assert ENGINES["mindie"].single_use
    assert not any(engine.single_use for kind, engine in ENGINES.items() if kind != "mindie")


def test_auto_and_the_generic_kind() -> None:
    assert AUTO not in ENGINES
    assert GENERIC in ENGINES


def models(*owners: object) -> bytes:
    return orjson.dumps(
        {"object": "list", "data": [{"id": f"m{n}", "owned_by": owner} for n, owner in enumerate(owners)]}
    )


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/v1/models", models("vllm"), "vllm"),
        ("/v1/models", models("sglang"), "sglang"),
        ("/v1/models", models("lmdeploy"), "lmdeploy"),
        ("/v1/models", models("llamacpp"), "llamacpp"),
        ("/v1/models", models("MindIE Server"), "mindie"),
        ("/v1/models", models("somebody", "vllm"), "vllm"),
        ("/v1/models", models("openai"), None),
        ("/v1/models", models(None, 7), None),
        ("/v1/models", b'{"data":{"owned_by":"vllm"}}', None),
        ("/v1/models", b'{"data":["vllm"]}', None),
        ("/version", b'{"version":"0.32.0"}', "vllm"),
        ("/version", b'{"version":"1","build":"x"}', None),
        ("/props", b'{"default_generation_settings":{},"total_slots":4}', "llamacpp"),
        ("/props", b"{}", None),
        ("/info", b'{"model_id":"a","max_concurrent_requests":128,"router":"text-generation-router"}', "tgi"),
        ("/info", b'{"max_batch_size":200,"models":[]}', None),
        ("/get_model_info", b'{"model_path":"a","is_generation":true}', "sglang"),
        ("/get_model_info", b'{"detail":"Not Found"}', None),
        ("/v2", b'{"name":"triton","version":"2.60.0","extensions":[]}', "triton"),
        ("/v2", b'{"name":"MindIE Server","version":"3.0.0"}', "mindie"),
        ("/v2", b'{"name":"kserve"}', None),
        ("/v2", b"no json", None),
        ("/v2", b"[1]", None),
    ],
)  # fmt: skip
def test_an_answer_gives_the_kind_away_or_nothing(path: str, body: bytes, kind: str | None) -> None:
    assert recognise(path, 200, body) == kind
    assert recognise(path, 404, body) is None


@pytest.mark.parametrize(
    ("name", "path", "kind"),
    [
        ("vllm/models", "/v1/models", "vllm"),
        ("vllm/version", "/version", "vllm"),
        ("llamacpp/models", "/v1/models", "llamacpp"),
        ("llamacpp/props", "/props", "llamacpp"),
    ],
)
def test_real_engines_are_recognised(name: str, path: str, kind: str) -> None:
    reply = capture(name)
    assert recognise(path, reply.status, reply.body) == kind


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (models("vllm"), "m0"),
        (b'{"data":[{"id":7},{"id":"b"}]}', "b"),
        (b'{"data":[7]}', None),
        (b'{"data":7}', None),
        (b"[]", None),
        (b"no json", None),
    ],
)
def test_a_model_s_name_is_found(body: bytes, name: str | None) -> None:
    assert first_model(body) == name


def test_models_are_read_with_vllm_s_context_lengths_and_adapters_share_their_base_s() -> None:
    cards = [
        {"id": "base", "owned_by": "vllm", "max_model_len": 2048, "parent": None},
        {"id": "lora", "owned_by": "vllm", "parent": "base"},
        {"id": "orphan", "owned_by": "vllm", "parent": ["base"]},
        {"id": "other", "owned_by": "sglang", "max_model_len": 4096},
        {"id": "odd", "owned_by": "vllm", "max_model_len": True},
        {"id": "none", "owned_by": "vllm", "max_model_len": -1},
        {"id": 7},
        7,
    ]
    assert served_models(orjson.dumps({"data": cards})) == {
        "base": 2048, "lora": 2048, "orphan": None, "other": None, "odd": None, "none": None,
    }  # fmt: skip
    assert served_models(capture("vllm/models").body) == {"tiny": 2048}


@given(st.sampled_from(sorted(QUESTIONS)), st.binary() | st.recursive(
    st.none() | st.integers(-5, 5) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["data", "owned_by", "name", "version"]), inner),
).map(orjson.dumps))  # fmt: skip
def test_any_answer_is_read(path: str, body: bytes) -> None:
    assert recognise(path, 200, body) in {None, *ENGINES}
    first_model(body)
