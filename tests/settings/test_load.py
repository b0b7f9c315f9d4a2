from __future__ import annotations

from pathlib import Path

import pytest

from gateway.settings import Loaded, Source, load


def lines(loaded: Loaded) -> list[str]:
    return [str(fault) for fault in loaded.faults]


def test_nothing_set_is_all_defaults_and_no_fault() -> None:
    loaded = load()
    assert loaded.ok
    assert lines(loaded) == []
    assert set(loaded.sources.values()) == {Source.DEFAULT}
    assert (loaded.settings.port, loaded.settings.admin_port) == (8080, 8081)


def test_the_environment_wins_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "my.env"
    file.write_text('export GATEWAY_PORT=1234\nGATEWAY_ADMIN_PORT="4321"  # comment\nOTHER=1\n', encoding="utf-8")
    monkeypatch.setenv("GATEWAY_ENV_FILE", str(file))
    monkeypatch.setenv("GATEWAY_PORT", "99")
    loaded = load()
    assert lines(loaded) == []
    assert (loaded.settings.port, loaded.settings.admin_port) == (99, 4321)
    assert loaded.sources["port"] is Source.ENVIRONMENT
    assert loaded.sources["admin_port"] is Source.FILE
    assert loaded.sources["host"] is Source.DEFAULT


def test_a_named_file_wins_over_the_one_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = tmp_path / "one.env", tmp_path / "two.env"
    one.write_text("GATEWAY_PORT=1\n", encoding="utf-8")
    two.write_text("GATEWAY_PORT=2\n", encoding="utf-8")
    monkeypatch.setenv("GATEWAY_ENV_FILE", str(one))
    assert load(str(two)).settings.port == 2


def test_no_file_is_read_unless_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".env").write_text("GATEWAY_PORT=1\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert load().settings.port == 8080


def test_an_empty_value_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_TTFT_OBJECTIVE", "")
    monkeypatch.setenv("GATEWAY_PORT", "")
    loaded = load()
    assert lines(loaded) == []
    assert loaded.settings.port == 8080
    assert loaded.settings.ttft_objective == {}


@pytest.mark.parametrize(
    "value", ["http://a:8000,http://b:8000", " http://a:8000 , http://b:8000/v1, ", '["http://a:8000","http://b:8000"]']
)
def test_C01_a_list_of_backends_is_taken_in_every_spelling(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_BACKENDS", value)
    loaded = load()
    assert lines(loaded) == []
    assert [(b.name, b.url) for b in loaded.settings.backends] == [
        ("a:8000", "http://a:8000"),
        ("b:8000", "http://b:8000"),
    ]


def test_backends_take_all_fields_in_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "GATEWAY_BACKENDS",
        '[{"name": "a", "url": "https://x/", "kind": "mindie", "models": ["m"],'
        ' "api_key": "k", "limit": 3, "max_model_len": 4096, "weight": 2, "tier": 1, "management_url": "https://x:1026/",'
        ' "metrics_url": "https://x:1027", "tls_verify": false}]',
    )
    (backend,) = load().settings.backends
    assert backend.api_key is not None
    assert backend.api_key.get_secret_value() == "k"
    assert backend.model_dump(exclude={"api_key"}) == {
        "name": "a",
        "url": "https://x",
        "kind": "mindie",
        "models": ("m",),
        "max_model_len": 4096,
        "limit": 3,
        "weight": 2.0,
        "tier": 1,
        "management_url": "https://x:1026",
        "metrics_url": "https://x:1027",
        "tls_verify": False,
        "tls_ca": None,
        "tls_cert": None,
        "tls_key": None,
    }


def test_a_backend_s_kind_is_found_out_where_it_is_not_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "GATEWAY_BACKENDS", '["http://a:1", {"url": "http://b:1"}, {"url": "http://c:1", "kind": "tgi"}]'
    )
    assert [backend.kind for backend in load().settings.backends] == ["auto", "auto", "tgi"]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ('"tls_ca": "FILE"', "tls_ca of 'a:1': got 'FILE' ("),
        ('"tls_cert": "FILE"', "tls_cert of 'a:1': got 'FILE' ("),
        ('"tls_key": "FILE"', "tls_key of 'a:1': a key without tls_cert, expected both"),
        (
            '"tls_ca": "/nowhere/ca.pem"',
            "GATEWAY_BACKENDS[0].tls_ca: got '/nowhere/ca.pem' (No such file or directory), expected a",
        ),
        ('"metrics_url": "a:1"', "GATEWAY_BACKENDS[0].metrics_url: got 'a:1', expected an http:// or https:// URL"),
    ],
)
def test_certificates_and_planes_of_a_backend_are_checked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fields: str, problem: str
) -> None:
    file = tmp_path / "no.pem"
    file.write_text("no certificate", encoding="utf-8")
    monkeypatch.setenv("GATEWAY_BACKENDS", f'[{{"url": "https://a:1", {fields.replace("FILE", str(file))}}}]')
    (fault,) = load().faults
    assert problem.replace("FILE", str(file)) in str(fault)
    assert fault.fatal


def test_every_fault_is_listed_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "x.env"
    file.write_text("GATEWAY_LIMIT_WINDOW=fast\nthis is no line\nGATEWAY_HOTS=1.2.3.4\n", encoding="utf-8")
    for name, value in {
        "GATEWAY_PORT": "80a8",
        "GATEWAY_BAKENDS": "http://a",
        "GATEWAY_BACKENDS": '[{"url": "htp://a"}, {"url": "http://b", "limt": 3, "kind": "vlm"}, 7, {"name": "n"}]',
        "GATEWAY_LIMIT_MIN": "50",
        "GATEWAY_LIMIT_MAX": "20",
        "GATEWAY_MAX_BODY_SIZE": "64 megs",
        "GATEWAY_RETRY_BUDGET": "1.5",
    }.items():
        monkeypatch.setenv(name, value)
    loaded = load(str(file))
    assert not loaded.ok
    text = "\n".join(lines(loaded))
    for expected in (
        "GATEWAY_PORT: got '80a8', expected a port number",
        "GATEWAY_BAKENDS: no such setting (got 'http://a'); did you mean GATEWAY_BACKENDS?",
        "GATEWAY_BACKENDS[0].url: got 'htp://a', expected an http:// or https:// URL",
        "GATEWAY_BACKENDS[1].limt: no such key; did you mean limit?",
        "GATEWAY_BACKENDS[1].kind: got 'vlm', expected one of auto, openai, vllm, ",
        "GATEWAY_BACKENDS[2]: got neither, expected a URL or an object with url",
        "GATEWAY_BACKENDS[3].url: is missing, expected an http",
        "GATEWAY_LIMIT_MIN: got 50, expected at most GATEWAY_LIMIT_MAX=20",
        "GATEWAY_MAX_BODY_SIZE: got '64 megs', expected a size such as",
        "GATEWAY_RETRY_BUDGET: got '1.5', expected a number, at least 0, at most 1",
        "GATEWAY_LIMIT_WINDOW: got 'fast', expected a duration such as",
        f"{file}, line 2: cannot be read, expected NAME=value",
        f"GATEWAY_HOTS: no such setting in {file} (got '1.2.3.4'); did you mean GATEWAY_HOST?",
    ):
        assert expected in text
    assert len(loaded.faults) == 13
    assert all("\n" not in line for line in lines(loaded))


def test_no_fault_shows_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "GATEWAY_ADMIN_TOKEN": "s3cret with spaces",
        "GATEWAY_ADMIN_TOKNE": "s3cret",
        "GATEWAY_API_KEY": "s3cret",
        "GATEWAY_BACKENDS": '[{"url": "http://u:s3cret@b"},'
        ' {"url": "http://a", "api-key": "s3cret", "api_key": ["s3cret"]}]',
        "GATEWAY_BACKEND": '[{"url": "http://u:s3cret@b", "api_key": "s3cret"}]',
    }.items():
        monkeypatch.setenv(name, value)
    loaded = load()
    assert len(loaded.faults) == 7
    assert "s3cret" not in "\n".join(lines(loaded))


@pytest.mark.parametrize(
    "value", ["http://user:s3cret@a:8000", "http://b,http://user:s3,cret@a", '[{"api_key": "s3cret"']
)
def test_no_fault_shows_a_secret_of_the_short_form(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_BACKENDS", value)
    (line,) = lines(load())
    assert line.startswith("GATEWAY_BACKENDS: got ")
    assert "s3" not in line
    assert "cret" not in line.replace("credentials", "")


def test_a_service_named_gateway_in_kubernetes_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "GATEWAY_PORT": "tcp://10.0.0.1:8080",
        "GATEWAY_PORT_8080_TCP": "tcp://10.0.0.1:8080",
        "GATEWAY_PORT_8080_TCP_PROTO": "tcp",
        "GATEWAY_PORT_8080_TCP_PORT": "8080",
        "GATEWAY_PORT_8080_TCP_ADDR": "10.0.0.1",
        "GATEWAY_SERVICE_HOST": "10.0.0.1",
        "GATEWAY_SERVICE_PORT": "8080",
        "GATEWAY_SERVICE_PORT_HTTP": "8080",
        "GATEWAY_ADMIN_PORT": "tcp://10.0.0.2:8081",
        "GATEWAY_ADMIN_SERVICE_HOST": "10.0.0.2",
    }.items():
        monkeypatch.setenv(name, value)
    loaded = load()
    assert lines(loaded) == []
    assert loaded.settings.port == 8080
    assert loaded.sources["port"] is Source.DEFAULT


def test_a_misspelt_port_is_a_fault_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_ADMN_PORT", "9")
    assert lines(load()) == ["GATEWAY_ADMN_PORT: no such setting (got '9'); did you mean GATEWAY_ADMIN_PORT?"]


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_one_fault(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "x.env"
    if content is not None:
        file.write_bytes(content)
    (line,) = lines(load(str(file)))
    assert line.startswith(f"GATEWAY_ENV_FILE: got {str(file)!r}, expected a readable file (")


def test_a_name_without_a_value_in_a_file_is_a_fault(tmp_path: Path) -> None:
    file = tmp_path / "x.env"
    file.write_text("# head\n\nGATEWAY_PORT\n", encoding="utf-8")
    assert lines(load(str(file))) == [f"{file}, line 3: cannot be read, expected NAME=value"]


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"PORT": "90", "ADMIN_PORT": "90"}, "GATEWAY_ADMIN_PORT: got 90, expected another port than GATEWAY_PORT"),
        (
            {"BACKENDS": '[{"url": "http://a", "name": "x"}, {"url": "http://b", "name": "x"}]'},
            "GATEWAY_BACKENDS: 2 engines have the name 'x', expected each to have its own",
        ),
        (
            {"BACKENDS": '[{"url": "http://a", "name": "x"}, {"url": "http://a/v1", "name": "y"}]'},
            "GATEWAY_BACKENDS: 2 engines have the url 'http://a', expected each to have its own",
        ),
        (
            {"LIMIT_INITIAL": "3000"},
            "GATEWAY_LIMIT_INITIAL: got 3000, expected 1 to 1024 (GATEWAY_LIMIT_MIN to GATEWAY_LIMIT_MAX)",
        ),
        (
            {"BREAKER_COOLDOWN": "2m"},
            "GATEWAY_BREAKER_COOLDOWN: got 120s, expected at most GATEWAY_BREAKER_COOLDOWN_MAX=60s",
        ),
        (
            {"TTFT_OBJECTIVE": "shrt=1"},
            "GATEWAY_TTFT_OBJECTIVE: no lane is named 'shrt', expected short or long; did you mean short?",
        ),
    ],
)
def test_contradictions_are_faults(given: dict[str, str], line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in given.items():
        monkeypatch.setenv(f"GATEWAY_{name}", value)
    loaded = load()
    assert lines(loaded) == [line]
    assert not loaded.ok


def test_one_port_on_two_addresses_is_no_contradiction(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"HOST": "127.0.0.1", "PORT": "90", "ADMIN_HOST": "127.0.0.2", "ADMIN_PORT": "90"}.items():
        monkeypatch.setenv(f"GATEWAY_{name}", value)
    assert lines(load()) == []


@pytest.mark.parametrize(
    "given",
    [{"TTFT_OBJECTIVE": "1", "MAX_WAIT": "2"}, {"QUEUE_MAX_BYTES": "1MiB"}],
    ids=["max_wait", "queue_max_bytes"],
)
def test_what_is_only_unwise_is_a_warning(given: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in given.items():
        monkeypatch.setenv(f"GATEWAY_{name}", value)
    loaded = load()
    assert len(loaded.faults) == 1
    assert loaded.ok


def test_a_key_without_its_certificate_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key.pem").touch()
    monkeypatch.setenv("GATEWAY_TLS_KEY", str(tmp_path / "key.pem"))
    assert lines(load()) == ["GATEWAY_TLS_KEY: a key without GATEWAY_TLS_CERT, expected both"]


def test_a_file_that_is_not_there_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_TLS_CA", str(tmp_path / "none.pem"))
    (line,) = lines(load())
    assert line.endswith("(No such file or directory), expected a file that can be read")


@pytest.mark.parametrize(
    ("value", "ok"),
    [
        ('{"gateway_x": [0.1, 1]}', True),
        ('{"x": [1, 0.1]}', False),
        ('{"x": []}', False),
        ("[1]", False),
        ("1,2", False),
    ],
)
def test_bucket_edges_rise(value: str, ok: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_METRICS_BUCKETS", value)
    assert load().ok is ok


def test_files_that_hold_no_certificates_are_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.pem").write_text("garbage", encoding="utf-8")
    monkeypatch.setenv("GATEWAY_TLS_CA", str(tmp_path / "x.pem"))
    monkeypatch.setenv("GATEWAY_TLS_CERT", str(tmp_path / "x.pem"))
    authorities, certificate = lines(load())
    assert authorities.startswith(f"GATEWAY_TLS_CA: got '{tmp_path}/x.pem' (")
    assert authorities.endswith("), expected certificates as PEM")
    assert certificate.startswith(f"GATEWAY_TLS_CERT: got '{tmp_path}/x.pem' (")
    assert certificate.endswith("), expected a certificate and its unencrypted key as PEM")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("listen_tls_cert",), "GATEWAY_LISTEN_TLS_CERT: got 'FILE' ("),
        (("listen_tls_key",), "GATEWAY_LISTEN_TLS_KEY: a key without GATEWAY_LISTEN_TLS_CERT, expected both"),
        (
            ("listen_tls_client_ca",),
            "GATEWAY_LISTEN_TLS_CLIENT_CA: authorities without GATEWAY_LISTEN_TLS_CERT, expected both",
        ),
        (("listen_tls_client_ca",), "GATEWAY_LISTEN_TLS_CLIENT_CA: got 'FILE' ("),
        (("admin_tls_cert",), "GATEWAY_ADMIN_TLS_CERT: got 'FILE' ("),
        (("admin_tls_key",), "GATEWAY_ADMIN_TLS_KEY: a key without GATEWAY_ADMIN_TLS_CERT, expected both"),
    ],
)
def test_certificates_of_the_listeners_are_checked(
    given: tuple[str, ...], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "x.pem"
    file.write_text("no certificate", encoding="utf-8")
    for name in given:
        monkeypatch.setenv(f"GATEWAY_{name.upper()}", str(file))
    found = lines(load())
    assert any(line.startswith(expected.replace("FILE", str(file))) for line in found), found
