"""What changes while it runs: settings, keys, certificates, backends; and that a bad change changes nothing."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest

from gateway.app import reload
from gateway.app.admin import AdminError, admin_port
from gateway.app.reload import LIVE
from gateway.settings import Settings
from gateway.settings.keys import hashed
from tests.app.house import House, engine
from tests.proxy.certificates import Authority
from tests.proxy.helpers import CHAT_STREAM, SSE_HEAD, Message, Peer, ScriptedBackend, chunked, event, reply
from tests.real.process import free_port

KEY = "sk-first-0123456789abcdef"
SECOND = "sk-second-0123456789abcdef"


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Look until ``condition`` holds, where nothing tells."""
    async with asyncio.timeout(20):
        while not await condition():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)


async def _is(found: Awaitable[int], expected: int) -> bool:
    return await found == expected


async def status_of(house: House, path: str) -> int:
    return (await house.admin("GET", path))[0]


def keys(folder: Path, *given: str, **terms: object) -> Path:
    file = folder / "keys.json"
    entries = [{"name": "team", "keys": [hashed(key) for key in given], **terms}] if given else []
    file.write_text(json.dumps(entries), encoding="utf-8")
    return file


# --------------------------------------------------------------------------------------------------------------
# Keys and certificates, by their files alone
# --------------------------------------------------------------------------------------------------------------


async def test_keys_are_rotated_by_their_file_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with (
        engine() as backend,
        House(tmp_path, backends=backend.url, api_keys_file=keys(tmp_path, KEY)).open() as house,
    ):
        look = house.service._reloader.look
        await look()
        assert [await house.chat(key) for key in (None, KEY, SECOND)] == [401, 200, 401]
        keys(tmp_path, KEY, SECOND)
        await look()
        assert [await house.chat(key) for key in (KEY, SECOND)] == [200, 200]
        keys(tmp_path, SECOND)
        await look()
        assert [await house.chat(key) for key in (KEY, SECOND)] == [401, 200]
        for bad in (f'[{{"name": "x", "keys": "{KEY}"}}]', "[{", ""):
            (tmp_path / "keys.json").write_text(bad or "{", encoding="utf-8")
            await look()
            await look()
            assert [await house.chat(key) for key in (None, KEY, SECOND)] == [401, 401, 200], "those before stay"
        (tmp_path / "keys.json").unlink()
        await look()
        assert [await house.chat(key) for key in (None, SECOND)] == [401, 200]
        keys(tmp_path)
        await look()
        assert await house.chat(SECOND) == 401, "an empty file lets nobody in"
        complaints = [record for record in caplog.records if "the keys before stay" in record.getMessage()]
        assert len(complaints) == 4, "each fault is told once"
        assert KEY not in caplog.text
        assert SECOND not in caplog.text


@pytest.mark.parametrize("in_file", [False, True])
async def test_keys_that_are_the_same_are_not_told_to_have_changed(tmp_path: Path, in_file: bool) -> None:
    given = {"api_keys_file": keys(tmp_path, KEY)} if in_file else {"api_keys": hashed(KEY)}
    async with engine() as backend, House(tmp_path, backends=backend.url, **given).open() as house:
        assert await house.admin("PUT", "/reload") == (200, {"changed": [], "needs_restart": []})
        if in_file:
            keys(tmp_path, SECOND)
            told = {"changed": ["GATEWAY_API_KEYS_FILE"], "needs_restart": []}
            assert await house.admin("PUT", "/reload") == (200, told)


async def test_a_file_of_keys_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.app.reload._LOOK", 0.01)
    async with (
        engine() as backend,
        House(tmp_path, backends=backend.url, api_keys_file=keys(tmp_path, KEY)).open() as house,
    ):
        keys(tmp_path, SECOND)
        await until(lambda: _is(house.chat(SECOND), 200))


async def test_a_fault_in_a_look_does_not_end_the_looking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gateway.app.reload._LOOK", 0.01)
    stamp = reload._stamp
    monkeypatch.setattr(reload, "_stamp", lambda _path: 1 / 0)
    file = keys(tmp_path, KEY)
    async with engine() as backend, House(tmp_path, backends=backend.url, api_keys_file=file).open() as house:
        await until(lambda: _said(caplog, "failed inside the gateway"))
        monkeypatch.setattr(reload, "_stamp", stamp)
        keys(tmp_path, SECOND)
        await until(lambda: _is(house.chat(SECOND), 200))


async def _said(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    return text in caplog.text


async def test_the_settings_in_effect_have_a_name_that_changes_with_them(tmp_path: Path) -> None:
    async def name(house: House) -> str:
        async with aiohttp.ClientSession() as session, session.get(f"{house.service.admin_url}/metrics") as answer:
            (line,) = [line for line in (await answer.text()).splitlines() if line.startswith("gateway_config_info{")]
            return line

    async with engine() as one, engine() as two, House(tmp_path, backends=one.url).open() as house:
        first = await name(house)
        house.write(max_headers=300)
        await house.admin("PUT", "/reload")
        second = await name(house)
        await house.admin("PUT", "/backends", entry("two", two))
        third = await name(house)
        await house.admin("DELETE", "/backends/two")
        assert len({first, second, third}) == 3
        assert await name(house) == second


async def test_certificates_are_replaced_by_their_files_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = Authority(tmp_path / "ca", "root")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def put(name: str) -> None:
        made = authority.issue(name)
        key.write_bytes(made.key.read_bytes())
        cert.write_bytes(made.cert.read_bytes())

    async def shown(house: House) -> str:
        names = set()
        for url in (house.service.gateway.url, house.service.admin_url):
            assert url.startswith("https:")
            port = int(url.rpartition(":")[2])
            context = authority.root.context()
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            (((_, name),),) = writer.get_extra_info("peercert")["subject"]
            names.add(str(name))
            writer.close()
        assert len(names) == 1
        return names.pop()

    put("before")
    files = {"listen_tls_cert": cert, "listen_tls_key": key, "admin_tls_cert": cert, "admin_tls_key": key}
    async with engine() as backend, House(tmp_path, backends=backend.url, **files).open() as house:
        look = house.service._reloader.look
        await look()
        assert await shown(house) == "before"
        assert await house.chat(context=authority.root.context()) == 200
        whole = key.read_bytes()
        put("after")
        after, _ = key.read_bytes(), key.write_bytes(whole)
        await look()
        assert await shown(house) == "before", "the key of the new one is not there yet"
        assert "the certificates before stay" in caplog.text
        key.write_bytes(after)
        await look()
        assert await shown(house) == "after"


async def test_the_admin_port_has_tls_and_the_gateways_own_tools_trust_it(tmp_path: Path) -> None:
    authority, other = (Authority(tmp_path / name, name) for name in ("root", "other"))
    made = authority.issue("elsewhere", "10.0.0.1")
    files = {"admin_tls_cert": made.cert, "admin_tls_key": made.key, "admin_port": free_port()}
    async with engine() as backend, House(tmp_path, backends=backend.url, **files).open() as house:
        async with admin_port(None, str(house.file)) as ask:
            assert "version" in json.loads(await ask("GET", "/state", ()))
        with pytest.raises(AdminError, match="not valid for"):  # who asks by name is told
            async with admin_port(house.service.admin_url, str(house.file)) as ask:
                await ask("GET", "/state", ())
        stranger = other.issue("stranger")
        house.write(admin_tls_cert=stranger.cert, admin_tls_key=stranger.key)
        with pytest.raises(AdminError, match="certificate verify failed"):
            async with admin_port(None, str(house.file)) as ask:
                await ask("GET", "/state", ())


# --------------------------------------------------------------------------------------------------------------
# All settings
# --------------------------------------------------------------------------------------------------------------


async def test_a_reload_puts_in_effect_what_can_be_and_names_the_rest(tmp_path: Path) -> None:
    async with engine() as backend, House(tmp_path, backends=backend.url).open() as house:
        assert await house.admin("PUT", "/reload") == (200, {"changed": [], "needs_restart": []})
        house.write(api_keys=hashed(KEY), max_body_size="20", tpot_objective="50ms", lane_weights="short=5", port=1)
        status, told = await house.admin("PUT", "/reload")
        assert status == 200
        assert sorted(told["changed"]) == [
            "GATEWAY_API_KEYS",
            "GATEWAY_LANE_WEIGHTS",
            "GATEWAY_MAX_BODY_SIZE",
            "GATEWAY_TPOT_OBJECTIVE",
        ]
        assert told["needs_restart"] == ["GATEWAY_PORT"]
        assert [await house.chat(key) for key in (None, KEY)] == [401, 413]
        _, limits = await house.admin("GET", "/limits")
        assert (limits["tpot_objective_seconds"], limits["lanes"]["short"]["weight"]) == (0.05, 5.0)
        assert (await house.setting("max_body_size"), await house.setting("port")) == ("20", "0")
        house.write(api_keys=None, max_body_size=None)
        await house.service.reload()
        assert await house.chat() == 200


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"max_body_size": "huge"}, "GATEWAY_MAX_BODY_SIZE: got 'huge', expected a size"),
        ({"max_bdy_size": "5"}, "GATEWAY_MAX_BDY_SIZE: no such setting"),
        ({"limit_min": 9, "limit_max": 5}, "GATEWAY_LIMIT_MIN: got 9, expected at most GATEWAY_LIMIT_MAX=5"),
        ({"api_keys_file": "FOLDER/none.json"}, "GATEWAY_API_KEYS_FILE: got "),
        ({"api_keys": '[{"name": "x"}]'}, "GATEWAY_API_KEYS[0].keys: is missing"),
        ({"backends": "http://a,http://a"}, "GATEWAY_BACKENDS: 2 engines have the name 'a'"),
        ({"tls_ca": "FOLDER/gateway.env"}, "GATEWAY_TLS_CA: got "),
        (
            {"backends": '[{"name": "a", "url": "http://elsewhere:1"}]'},
            "'a' is another engine now, expected another name",
        ),
    ],
)
async def test_a_bad_configuration_is_refused_whole_and_the_one_before_stays(
    tmp_path: Path, change: dict[str, str], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with engine() as backend:
        given = json.dumps([{"name": "a", "url": backend.url}])
        async with House(tmp_path, backends=given, max_headers=300).open() as house:
            before = (await house.admin("GET", "/config"), await house.admin("GET", "/limits"))
            good = {"max_headers": 400, "api_keys": hashed(KEY), "tpot_objective": "1s"}
            house.write(**good | {name: str(value).replace("FOLDER", str(tmp_path)) for name, value in change.items()})
            status, answer = await house.admin("PUT", "/reload")
            assert status == 400
            assert told in answer["error"]
            assert told in caplog.text
            assert (await house.admin("GET", "/config"), await house.admin("GET", "/limits")) == before
            assert await house.chat() == 200


async def test_a_broken_env_file_is_refused_too(tmp_path: Path) -> None:
    async with engine() as backend, House(tmp_path, backends=backend.url, api_keys=hashed(KEY)).open() as house:
        house.file.unlink()
        status, answer = await house.admin("PUT", "/reload")
        assert (status, "GATEWAY_ENV_FILE: got " in answer["error"]) == (400, True)
        house.file.write_text("what is this\n", encoding="utf-8")
        assert (await house.admin("PUT", "/reload"))[0] == 400
        assert await house.chat() == 401, "not open because nothing could be read"


def test_what_a_reload_changes_are_settings() -> None:
    assert set(Settings.model_fields) >= LIVE


async def test_C04_what_the_operator_changed_by_hand_stays_where_the_settings_did_not_change(tmp_path: Path) -> None:
    async with engine() as backend, House(tmp_path, backends=backend.url).open() as house:
        name = backend.url.removeprefix("http://")
        await house.admin("PATCH", "/limits", {"tpot_objective_seconds": 0.2, "backends": {name: {"limit": 7}}})
        house.write(lane_weights="short=5")
        assert (await house.admin("PUT", "/reload"))[0] == 200
        _, limits = await house.admin("GET", "/limits")
        assert (limits["tpot_objective_seconds"], limits["backends"][name]["limit"]) == (0.2, 7)


# --------------------------------------------------------------------------------------------------------------
# Backends
# --------------------------------------------------------------------------------------------------------------


async def states(house: House) -> dict[str, str]:
    _, state = await house.admin("GET", "/state")
    return {backend["name"]: backend["health"] for backend in state["backends"]}


def entry(name: str, backend: ScriptedBackend, **more: object) -> dict[str, object]:
    return {"name": name, "url": backend.url, **more}


async def gone(house: House, name: str) -> None:
    await until(lambda: _lacks(states(house), name))


async def _lacks(found: Awaitable[dict[str, str]], name: str) -> bool:
    return name not in await found


async def test_backends_come_and_go_with_the_settings_and_streams_go_on(tmp_path: Path) -> None:
    more = asyncio.Event()

    async def slow(peer: Peer, message: Message) -> None:
        if b"stream" not in message.body:
            await peer.send(reply())
            return
        await peer.send(SSE_HEAD + chunked(event("a")))
        await more.wait()
        await peer.send(chunked(event("b")) + b"0\r\n\r\n")

    async with (
        engine(slow) as old,
        engine() as new,
        House(tmp_path, backends=json.dumps([entry("old", old)])).open() as house,
        aiohttp.ClientSession() as session,
    ):
        url = f"{house.service.gateway.url}/v1/chat/completions"
        async with session.post(url, data=CHAT_STREAM) as running:
            assert await running.content.readany() == event("a")
            house.write(backends=json.dumps([entry("new", new, api_key="k1")]))
            assert (await house.admin("PUT", "/reload"))[0] == 200
            assert (await states(house))["old"] == "drained"
            assert [await house.chat() for _ in range(4)] == [200] * 4
            assert len(old.requests) == 1
            assert {message.get("Authorization") for message in new.requests} == {"Bearer k1"}
            house.write(backends=json.dumps([entry("old", old), entry("new", new)]))
            assert "has not left yet" in (await house.admin("PUT", "/reload"))[1]["error"]
            more.set()
            assert await running.content.read() == event("b")
        await gone(house, "old")
        assert (await house.admin("PUT", "/reload"))[0] == 200
        assert [await house.chat() for _ in range(4)] == [200] * 4
        assert len(old.requests) > 1, "it is back"
        assert new.requests[-1].get("Authorization") is None, "its key was taken away"


async def test_backends_come_and_go_by_the_admin_port(tmp_path: Path) -> None:
    async with (
        engine() as first,
        engine() as second,
        engine() as third,
        House(tmp_path, backends=json.dumps([entry("a", first)])).open() as house,
    ):
        status, told = await house.admin("DELETE", "/backends/a")
        assert (status, told) == (400, {"error": "'a' is the only backend, and one must stay"})
        status, told = await house.admin("PUT", "/backends", [entry("b", second), entry("c", third)])
        assert (status, told["changed"]) == (200, ["b added", "c added"])
        assert [await house.chat() for _ in range(9)] == [200] * 9
        assert first.requests
        assert second.requests
        assert third.requests
        assert await house.admin("DELETE", "/backends/a") == (200, {"changed": ["a leaves"], "needs_restart": []})
        await gone(house, "a")
        seen = len(first.requests)
        assert [await house.chat() for _ in range(4)] == [200] * 4
        assert len(first.requests) == seen
        assert "second" not in await house.setting("backends")
        assert '"name": "b"' in await house.setting("backends")
        house.write(max_headers=400)
        assert (await house.admin("PUT", "/reload"))[0] == 200
        assert set(await states(house)) >= {"b", "c"}, "what was added by hand stays"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([{"name": "b"}], "GATEWAY_BACKENDS[0].url: is missing"),
        ([{"name": "b", "url": "ftp://x"}], "GATEWAY_BACKENDS[0].url: got 'ftp://x', expected an http://"),
        ([{"name": "a", "url": "http://127.0.0.1:1"}], "GATEWAY_BACKENDS: 2 engines have the name 'a'"),
        (
            [{"name": "b", "url": "http://x", "api_key": "canary-5ecret", "color": 1}],
            "GATEWAY_BACKENDS[0].color: no such",
        ),
        ([], "GATEWAY_BACKENDS: none are described"),
    ],
)
async def test_a_backend_that_is_wrong_is_not_added(tmp_path: Path, given: object, told: str) -> None:
    async with engine() as first, House(tmp_path, backends=json.dumps([entry("a", first)])).open() as house:
        status, answer = await house.admin("PUT", "/backends", given)
        assert (status, told in answer["error"]) == (400, True), answer
        assert "canary" not in answer["error"]
        assert set(await states(house)) == {"a"}
        assert (await house.admin("DELETE", "/backends/x"))[1]["error"] == "there is no backend 'x', expected one of a"


async def test_C16_it_starts_with_no_backend_up_says_which_and_is_ready_when_one_comes(tmp_path: Path) -> None:
    async with (
        engine() as one,
        House(tmp_path, backends='[{"name": "dead", "url": "http://127.0.0.1:9"}]').open() as house,
    ):
        assert await status_of(house, "/readyz") == 503
        await until(lambda: _told_of(house, "backend dead is unknown: no connection: Connection refused"))
        await house.admin("PUT", "/backends", entry("up", one))
        await until(lambda: _is(status_of(house, "/readyz"), 200))


async def _told_of(house: House, reason: str) -> bool:
    _, told = await house.admin("GET", "/readyz")
    return reason in told["reasons"]


async def test_a_change_needs_this_machine_or_the_token(tmp_path: Path) -> None:
    async with engine() as one, House(tmp_path, backends=one.url).open() as house, aiohttp.ClientSession() as session:
        for method, path in (("PUT", "/reload"), ("PUT", "/backends"), ("DELETE", "/backends/a")):
            url = house.service.admin_url + path
            async with session.request(method, url, headers={"X-Forwarded-For": "10.0.0.9"}) as answer:
                assert answer.status == 403


async def test_a_log_level_is_changed(tmp_path: Path) -> None:
    level = logging.getLogger().level
    try:
        async with engine() as one, House(tmp_path, backends=one.url).open() as house:
            house.write(log_level="error")
            assert (await house.admin("PUT", "/reload"))[0] == 200
            assert logging.getLogger().level == logging.ERROR
    finally:
        logging.getLogger().setLevel(level)


async def test_F10_a_reload_changes_no_count_of_what_runs(tmp_path: Path) -> None:
    more = asyncio.Event()

    async def slow(peer: Peer, _message: Message) -> None:
        await peer.send(SSE_HEAD + chunked(event("a")))
        await more.wait()
        await peer.send(b"0\r\n\r\n")

    async with (
        engine(slow) as one,
        House(tmp_path, backends=one.url).open() as house,
        aiohttp.ClientSession() as session,
    ):
        url = f"{house.service.gateway.url}/v1/chat/completions"
        async with session.post(url, data=CHAT_STREAM) as running:
            assert await running.content.readany() == event("a")
            for number in range(5):
                house.write(max_headers=100 + number, lane_weights=f"short={number + 1}", api_keys=hashed(KEY))
                assert (await house.admin("PUT", "/reload"))[0] == 200
                _, state = await house.admin("GET", "/state")
                assert [backend["running"] for backend in state["backends"]] == [1]
            more.set()
            await running.read()
        await until(lambda: _is(_running(house), 0))


async def _running(house: House) -> int:
    _, state = await house.admin("GET", "/state")
    return sum(backend["running"] for backend in state["backends"])
