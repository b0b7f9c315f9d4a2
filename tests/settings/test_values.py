from __future__ import annotations

import pytest

from gateway.settings.values import (
    Replicas,
    clean_url,
    masked,
    parse_backends,
    parse_duration,
    parse_lane_durations,
    parse_lanes,
    parse_model_tokens,
    parse_networks,
    parse_replicas,
    parse_size,
    show_duration,
    show_size,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2", 2.0),
        ("500ms", 0.5),
        ("1.5s", 1.5),
        ("1m", 60.0),
        (".5", 0.5),
        ("1h", 3600.0),
        ("1m30s", 90.0),
        (" 2 s ", 2.0),
    ],
)
def test_durations_take_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "x", "-1", "1d", "1 2", "2s3", "1e3", "nan", "inf", "s", "1,5"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^$"):
        parse_duration(text)


@pytest.mark.parametrize("seconds", [0.0, 0.0005, 0.25, 1.0, 1.5, 90.0, 3600.0])
def test_a_shown_duration_reads_back(seconds: float) -> None:
    assert parse_duration(show_duration(seconds)) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "count", "shown"),
    [
        ("3", 3, "3"),
        ("http://gw1:8081, http://[fd00::1]:8081", 2, "http://gw1:8081,http://[fd00::1]:8081"),
        ("dns+http://gateways.prod.svc:8081", 1, "dns+http://gateways.prod.svc:8081"),
        ("dns+https://gateways:8081,https://gw1:8081", 1, "dns+https://gateways:8081,https://gw1:8081"),
    ],
)
def test_gateways_that_share_are_told_or_named(text: str, count: int, shown: str) -> None:
    found = parse_replicas(text)
    assert isinstance(found, Replicas)
    assert (found.count, str(found)) == (count, shown)
    assert parse_replicas(str(found)) == found


@pytest.mark.parametrize(
    "text", ["x", "-1", "2.5", "http://gw1", "ftp://gw1:8081", "k8s+http://a.b:8081", "http://gw1:8081/readyz", "gw1"]
)
def test_what_names_no_gateway_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=text.replace("+", ".")):
        parse_replicas(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1048576", 1048576),
        ("64MiB", 64 * 1024**2),
        ("64 mib", 64 * 1024**2),
        ("64MB", 64_000_000),
        ("1.5KiB", 1536),
        ("2GiB", 2 * 1024**3),
        ("10k", 10_000),
        ("12b", 12),
    ],
)
def test_sizes_take_units(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "64iB", "64TB", "1 2", "0x10"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^$"):
        parse_size(text)


@pytest.mark.parametrize("size", [0, 1, 1000, 1024, 1536, 64 * 1024**2, 3 * 1024**3, 1024**3 + 1])
def test_a_shown_size_reads_back(size: int) -> None:
    assert parse_size(show_size(size)) == size


def test_lanes_ascend_to_one_without_a_bound() -> None:
    assert parse_lanes("short=500, medium=8000,long") == (("short", 500), ("medium", 8000), ("long", None))
    assert parse_lanes("all") == (("all", None),)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "last lane"),
        ("short=1000", "last lane"),
        ("short,long", "last lane"),
        ("a=2,b=1,c", "ascend"),
        ("a=1,b=1,c", "ascend"),
        ("a=1,a", "names differ"),
        ("a=x,b", "'x'"),
        ("a=0,b", "'0'"),
        ("A=1,b", "'A'"),
    ],
)
def test_wrong_lanes_say_why(text: str, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        parse_lanes(text)


def test_values_by_lane_may_be_bare() -> None:
    assert parse_lane_durations("1") == {"": 1.0}
    assert parse_lane_durations("short=500ms, long=8") == {"short": 0.5, "long": 8.0}


@pytest.mark.parametrize("text", ["1,long=2", "1,2", "short=0", "short=x", "a=1,a=2", "-1"])
def test_wrong_values_by_lane_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^$"):
        parse_lane_durations(text)


@pytest.mark.parametrize(
    "text",
    [
        "http://a:8000,http://b:8000",
        " http://a:8000 , http://b:8000 ",
        "http://a:8000,http://b:8000,",
        '["http://a:8000", "http://b:8000"]',
        '[{"url": "http://a:8000"}, {"url": "http://b:8000", "name": "b:8000"}]',
    ],
)
def test_every_spelling_of_two_backends_is_the_same(text: str) -> None:
    assert parse_backends(text) == [
        {"name": "a:8000", "url": "http://a:8000"},
        {"name": "b:8000", "url": "http://b:8000"},
    ]


@pytest.mark.parametrize("text", ["http://a", '"http://a"', '{"url": "http://a"}', "http://a,"])
def test_a_single_backend_needs_no_list(text: str) -> None:
    assert parse_backends(text) == [{"name": "a", "url": "http://a"}]


def test_models_may_be_a_text() -> None:
    assert parse_backends('[{"url": "http://a", "models": "x, y"}]') == [
        {"name": "a", "url": "http://a", "models": ["x", "y"]}
    ]


@pytest.mark.parametrize(
    ("given", "root"),
    [
        ("http://a:8000", "http://a:8000"),
        ("http://a:8000/", "http://a:8000"),
        ("http://a:8000/v1", "http://a:8000"),
        ("https://a/engine/v1/", "https://a/engine"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_a_url_is_cut_to_the_root_of_the_engine(given: str, root: str) -> None:
    assert clean_url(given) == root


@pytest.mark.parametrize(
    "url",
    ["", "a:8000", "ftp://a", "http://", "http://a:0", "http://a:99999", "http://a b", "http://a?x=1", "http://u:p@a"],
)
def test_what_is_no_url_of_an_engine_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"^$|credentials|[Pp]ort"):
        clean_url(url)


@pytest.mark.parametrize(
    "text",
    [
        "http://user:s3cret@a:8000",
        "http://user:s3@cret@a:8000",
        "http//user:s3cret@a",
        "user:s3cret@a",
        "http://a?api_key=s3cret",
        '[{"url": "http://a", "api_key": "s3cret"}]',
        '[{"url": "http://a", "apikey": "s3cret"}]',
        '[{"url": "http://u:s3cret@a"}]',
        '{"url": "http://a", "headers": {"authorization": "s3cret"}}',
        '[{"url": "http://a", "api_key": "s3cret"',
        "[{'url': 'http://a', 'api_key' 's3cret'}]",
    ],
)
def test_secrets_are_never_shown(text: str) -> None:
    assert "s3" not in masked(text)
    assert "cret" not in masked(text)


def test_plain_values_are_shown_as_given() -> None:
    assert masked("80a8") == "'80a8'"
    assert masked('[{"url": "htp://a", "limit": 3}]') == repr('[{"url": "htp://a", "limit": 3}]')
    assert len(masked("x" * 10_000)) < 200


@pytest.mark.parametrize(
    ("text", "caps"),
    [
        ("8000", {"": 8000}),
        ("qwen/qwen3-8b=30000, 8000", {"qwen/qwen3-8b": 30000, "": 8000}),
        ("a=b=7", {"a=b": 7}),
        ("", {}),
    ],
)
def test_tokens_by_model(text: str, caps: dict[str, int]) -> None:
    assert parse_model_tokens(text) == caps


@pytest.mark.parametrize("text", ["x", "=5", "a=", "a=0", "a=-1", "a=1.5", "1,2", "a=1,a=2"])
def test_what_is_no_tokens_by_model(text: str) -> None:
    with pytest.raises(ValueError, match=r"^$|int"):
        parse_model_tokens(text)


@pytest.mark.parametrize(
    ("text", "networks"),
    [("10.0.0.0/8, ::1", ("10.0.0.0/8", "::1/128")), ("127.0.0.1", ("127.0.0.1/32",)), ("none", ())],
)
def test_networks(text: str, networks: tuple[str, ...]) -> None:
    assert parse_networks(text) == networks


@pytest.mark.parametrize("text", ["10.0.0.1/8", "host", "none, ::1", "10.0.0.0/33"])
def test_what_is_no_network_is_told(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_networks(text)
