from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.paths import normalise


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        ("/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/models?limit=2", "/v1/models"),
        ("/v1/models#top", "/v1/models"),
        ("/v1/models/", "/v1/models"),
        ("//v1///models//", "/v1/models"),
        ("/v1/./models", "/v1/models"),
        ("/v1/../stopService", "/stopService"),
        ("/../../stopService", "/stopService"),
        ("/a/b/../../stopService", "/stopService"),
        ("/%76%31/models", "/v1/models"),
        ("/v1%2Fmodels", "/v1/models"),
        ("/v1%252fmodels", "/v1/models"),
        ("/v1%25252fmodels", "/v1/models"),
        ("/v1\\models", "/v1/models"),
        ("/v1%5cmodels", "/v1/models"),
        ("/%u0073topService", "/stopService"),
        ("/%U0073topService", "/stopService"),
        ("http://engine:8000/v1/models?x=1", "/v1/models"),
        ("HTTPS://user@[::1]:8000//v1", "/v1"),
        ("http://engine", "/"),
        ("/v1/x?next=http://elsewhere/stopService", "/v1/x"),
        ("/stopService%3Fmode=Force", "/stopService"),
        ("/100%", "/100%"),
        ("/v1/models/%E6%A8%A1%E5%9E%8B", "/v1/models/模型"),
        ("/v1/models?q=%00%ff", "/v1/models"),
        ("", "/"),
        ("/", "/"),
        ("*", "/*"),
        ("/V1/Chat/Completions", "/V1/Chat/Completions"),
    ],
)
def test_a_path_has_one_spelling(raw: str, path: str) -> None:
    assert normalise(raw) == path


@pytest.mark.parametrize(
    "raw",
    [
        "/v1/%00models",
        "/v1/models%0d%0aX: 1",
        "/v1/%0amodels",
        "/v1/mo\x00dels",
        "/v1/models\r",
        "/v1/%7fmodels",
        "/%ff%fe",
        "/%c0%ae%c0%ae/stopService",
        "/\udcff",
        "/%ud800",
        "/%2525252525252573topService",
    ],
)
def test_a_hostile_path_is_not_read(raw: str) -> None:
    assert normalise(raw) is None


@pytest.mark.parametrize("dots", ["..", "%2e%2e", "%2E.", ".%2e", "%252e%252e", "%u002e%u002e"])
@pytest.mark.parametrize("slash", ["/", "%2f", "%252F", "\\", "%5c", "%u002f"])
def test_S18_encoded_dot_segments_are_resolved_before_a_path_is_matched(dots: str, slash: str) -> None:
    assert normalise(f"/v1/models{slash}{dots}{slash}{dots}{slash}stopService") == "/stopService"


@given(st.text())
def test_any_text_is_read_or_refused(raw: str) -> None:
    path = normalise(raw)
    if path is not None:
        assert path.startswith("/")
        assert "//" not in path
        assert not {".", ".."} & set(path.split("/"))
        assert path == "/" or not path.endswith("/")


@given(st.lists(st.sampled_from(["..", ".", "%2e", "%252e%2e", "%2f", "//", "v1", "sleep", "%73leep", "?", "\\"])))
def test_a_spelling_that_was_read_once_reads_the_same_again(parts: list[str]) -> None:
    path = normalise("/" + "/".join(parts))
    assert path is not None
    assert normalise(path) == path
