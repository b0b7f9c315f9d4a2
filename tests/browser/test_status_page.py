"""The status page in a real browser, in front of a real gateway under traffic."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, Request, Response, Route, expect

from tests.acceptance.engine import EmulatedEngine
from tests.browser.helpers import CLIPPED, POOR_CONTRAST, Traffic, shot
from tests.real.gateway import GatewayProcess

Engines = Callable[..., EmulatedEngine]
Gateways = Callable[..., GatewayProcess]
Contexts = Callable[..., BrowserContext]

PATIENCE = 30_000.0
ASIDE = re.compile(r"/(curve|diagnosis|events)(\?|$)")


def at(gateway: GatewayProcess, host: str = "127.0.0.1") -> str:
    return f"http://{host}:{gateway.admin_port}/"


def verdict(page: Page) -> Any:
    return expect(page.locator("#verdict strong"))


def tile(page: Page, name: str) -> Any:
    return page.locator(".tile", has=page.locator(".name", has_text=name))


# --------------------------------------------------------------------------------------------------------------
# What it shows
# --------------------------------------------------------------------------------------------------------------


def test_an_idle_gateway_is_well(page: Page, gateway: Gateways) -> None:
    page.goto(at(gateway()))
    verdict(page).to_have_text("All is well")
    expect(page.locator("#verdict p").first).to_have_text("No traffic at the moment.")
    expect(page.locator("#live")).to_have_text("live")
    expect(page).to_have_title(re.compile("All is well"))
    expect(page.locator("#backends article")).to_have_count(1)
    expect(page.locator("#shed")).to_have_text("Nothing was refused.")
    shot(page, "idle")


def test_it_moves_with_the_traffic(page: Page, gateway: Gateways) -> None:
    process = gateway(ttft_objective="short=2,long=9", tpot_objective="100ms")
    page.goto(at(process))
    before = page.locator("#about").inner_text()
    with Traffic(process.url, 8.0):
        expect(tile(page, "Goodput").locator(".value")).not_to_have_text("0 /s")
        expect(tile(page, "Goodput").locator(".more")).to_have_text(re.compile(r"\d+ % in objective"))
        expect(tile(page, "TTFT").locator(".more")).to_have_text("short, objective 2 s")
        expect(tile(page, "TPOT").locator(".value")).to_have_text(re.compile(r"[\d.]+ ms · [\d.]+ ms"))
        expect(page.locator("#chart-requests path.stroke.good")).to_have_attribute("d", re.compile("L"))
        expect(page.locator("#chart-ttft .mark-name")).to_have_text("objective of short")
        expect(page.locator("#lanes tbody tr")).to_have_count(2)
        card = page.locator("#backends article")
        expect(card.locator(".number")).to_have_text(re.compile(r"\d+ / \d+ running"))
        expect(card.locator("dl")).to_contain_text("KV cache")
        expect(page.locator("#about")).not_to_have_text(before)
        shot(page, "calm")


def test_it_shows_overload_and_why_requests_are_refused(page: Page, gateway: Gateways, engine: Engines) -> None:
    backend = f'[{{"name": "gpu-a", "url": "{engine().url}", "limit": 1}}]'
    process = gateway(backends=backend, overload_after="2s")
    with Traffic(process.url, 20.0, tokens=60):
        page.goto(at(process))
        verdict(page).to_have_text(re.compile("Overloaded|are refused"), timeout=PATIENCE)
        expect(page.locator("#verdict")).to_have_class(re.compile("warning|critical"))
        expect(page.locator("#shed table")).to_contain_text("could not start in time")
        expect(page.locator("#backends .badge.info")).to_have_text("pinned")
        expect(tile(page, "Running").locator(".more")).to_have_text("at the limit")
        expect(page.locator("#chart-requests path.fill.shed")).to_be_visible()
        shot(page, "overloaded")


def test_it_shows_a_backend_that_is_gone_and_one_that_comes_back(
    page: Page, gateway: Gateways, engine: Engines
) -> None:
    first, second = engine(), engine()
    backends = f'[{{"name": "gpu-a", "url": "{first.url}"}}, {{"name": "gpu-b", "url": "{second.url}"}}]'
    process = gateway(backends=backends, probe_interval="200ms")
    page.goto(at(process))
    verdict(page).to_have_text("All is well")
    second.program.kill()
    verdict(page).to_have_text("gpu-b is out", timeout=PATIENCE)
    card = page.locator("#backends article", has_text="gpu-b")
    expect(card.locator(".badge").first).to_have_text("down")
    expect(page.locator("#event-list")).to_contain_text("gpu-b: its health check fails", timeout=PATIENCE)
    shot(page, "backend-down")


def test_a_gateway_that_stops_is_told_and_another_one_in_its_place_is_shown(page: Page, gateway: Gateways) -> None:
    process = gateway()
    page.goto(at(process))
    verdict(page).to_have_text("All is well")
    process.program.stop()
    verdict(page).to_have_text("The gateway does not answer", timeout=PATIENCE)
    expect(page.locator("#verdict p").first).to_contain_text("no connection")
    expect(page.locator("#live")).to_have_text("no answer")
    shot(page, "no-answer")
    gateway(admin_port=str(process.admin_port), drain_grace="1s")
    verdict(page).to_have_text("All is well", timeout=PATIENCE)
    expect(page.locator("#live")).to_have_text("live")


# --------------------------------------------------------------------------------------------------------------
# How it asks
# --------------------------------------------------------------------------------------------------------------


def test_it_asks_for_what_is_new_only_and_takes_304(page: Page, gateway: Gateways) -> None:
    asked: list[Request] = []
    answered: list[Response] = []
    page.on("request", lambda request: asked.append(request) if "/status?" in request.url else None)
    page.on("response", lambda response: answered.append(response) if "/status?" in response.url else None)
    page.goto(at(gateway()))
    verdict(page).to_have_text("All is well")
    page.wait_for_function("() => document.querySelectorAll('#chart-running path').length > 0")
    expect(page.locator("#about")).to_contain_text(re.compile("up [4-9] s"))
    own = [request for request in asked if "if-none-match" in request.headers]
    assert own
    assert all(request.headers["if-none-match"].startswith('W/"') for request in own)
    later = [int(request.url.rpartition("=")[2]) for request in own]
    assert later == sorted(later)
    assert later[-1] > 0
    statuses = page.evaluate(
        """async () => {
            const ask = (headers) => fetch('status?since=0', { cache: 'no-store', headers });
            for (let times = 0; times < 10; times += 1) {  // a second may pass between the two
                const tag = (await ask({})).headers.get('ETag');
                if ((await ask({ 'If-None-Match': tag })).status === 304) return 304;
            }
            return null;
        }"""
    )
    assert statuses == 304


def test_without_the_other_routes_their_panels_are_hidden(page: Page, gateway: Gateways) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if ASIDE.search(request.url) else None)
    page.route(ASIDE, lambda route: route.fulfill(status=404, json={"error": "Not Found"}))
    page.goto(at(gateway()))
    verdict(page).to_have_text("All is well")
    expect(page.locator("#about")).to_contain_text(re.compile("up ([7-9]|[1-9][0-9]) s"), timeout=PATIENCE)
    for panel in ("#diagnosis", "#events", "#curve"):
        expect(page.locator(panel)).to_be_hidden()
    assert len(asked) == 3  # what is not there is not asked for again and again


LEVEL = {
    "held_seconds": 60.0, "seen_seconds_ago": 1.0, "requests": 100, "ttft": None, "in_objective": None, "enough": True,
    "latency": {"mean": 1.0, "p95": 2.0, "p99": 3.0},
}  # fmt: skip


def level(low: int, high: int, tokens: float, tpot: float) -> dict[str, Any]:
    return {
        **LEVEL,
        "low": low,
        "high": high,
        "level": (low + high) / 2,
        "requests_per_second": tokens / 100,
        "tokens_per_second": tokens,
        "tpot": {"mean": tpot, "p95": 2 * tpot, "p99": 3 * tpot},
    }


def happened(number: int, severity: str, backend: str, text: str) -> dict[str, Any]:
    found = {"id": number, "at": 1796042131.2 + number, "kind": "x", "severity": severity}
    return {**found, "backend": backend, "text": text, "data": {}}


TOLD = {
    "curve": {
        "objectives": {"ttft": {}, "tpot": None},
        "curves": [
            {
                "backend": "gpu-a",
                "model": None,
                "limit": 31.4,
                "running": 29,
                "knee": 24,
                "best": 31,
                "note": None,
                "levels": [
                    level(1, 1, 50, 0.02),
                    level(2, 2, 95, 0.021),
                    level(24, 25, 480, 0.05),
                    level(31, 32, 520, 0.06),
                ],
                "unseen": [[3, 23], [26, 30]],
            },
            {
                "backend": "gpu-b",
                "model": "qwen",
                "limit": 4.0,
                "running": 0,
                "knee": None,
                "best": None,
                "note": "too few levels were held for long enough",
                "levels": [level(1, 1, 50, 0.02)],
                "unseen": [],
            },
        ],
    },
    "diagnosis": {
        "at": 1796042131.2,
        "window_seconds": 60.0,
        "findings": [
            {
                "cause": "kv_bound",
                "title": "The KV cache of gpu-a is full",
                "severity": "warning",
                "backend": "gpu-a",
                "since": 1796042071.0,
                "evidence": ["KV usage 98 %", "<img src=x onerror=alert(1)>"],
                "advice": ["GATEWAY_TOKEN_LIMIT: 210000"],
            }
        ],
        "unknown": ["gpu-b tells no gauges"],
    },
    "events": {
        "last": 2,
        "events": [
            {
                "id": 1,
                "at": 1796042131.2,
                "kind": "limit_cut",
                "severity": "info",
                "backend": "gpu-a",
                "text": "limit 40 -> 28",
                "data": {},
            },
            {
                "id": 2,
                "at": 1796042132.2,
                "kind": "backend_down",
                "severity": "critical",
                "backend": "gpu-b",
                "text": "<b>down</b>",
                "data": {},
            },
        ],
    },
}


def told(route: Route) -> None:
    found = ASIDE.search(route.request.url)
    assert found is not None
    later = found[1] == "events" and not route.request.url.endswith("since=0")
    route.fulfill(json={"last": 2, "events": []} if later else TOLD[found[1]])


def test_the_curve_the_diagnosis_and_events_are_shown_as_text(page: Page, gateway: Gateways) -> None:
    page.route(ASIDE, told)
    page.goto(at(gateway()))
    expect(page.locator("#findings")).to_contain_text("The KV cache of gpu-a is full")
    expect(page.locator("#findings .advice")).to_have_text("GATEWAY_TOKEN_LIMIT: 210000")
    expect(page.locator("#findings")).to_contain_text("gpu-b tells no gauges")
    expect(page.locator("#findings")).to_contain_text("<img src=x onerror=alert(1)>")
    assert page.locator("#findings img").count() == 0
    events = page.locator("#event-list li")
    expect(events.first).to_contain_text("gpu-b: <b>down</b>")
    expect(events.last).to_contain_text("gpu-a: limit 40 -> 28")

    expect(page.locator("#curve-throughput circle.dot")).to_have_count(4)
    path = page.locator("#curve-throughput path.stroke").get_attribute("d") or ""
    assert path.count("M") == 3  # levels 1 and 2 are joined; what was not seen is a gap
    assert page.locator("#curve-throughput .mark-name").all_text_contents() == ["knee", "best", "limit 31"]
    page.get_by_role("button", name="gpu-b · qwen").click()
    expect(page.locator("#curve-throughput circle.dot")).to_have_count(1)
    expect(page.locator("#curve-note")).to_have_text("too few levels were held for long enough")
    shot(page, "all-panels")


# --------------------------------------------------------------------------------------------------------------
# Who may look
# --------------------------------------------------------------------------------------------------------------


def test_from_elsewhere_it_asks_for_the_token_and_keeps_it_in_the_tab(
    page: Page, gateway: Gateways, context: Contexts
) -> None:
    process = gateway(admin_token="s3cret")
    page.goto(at(process, "gateway.test"))
    expect(page.locator("#door-why")).to_contain_text("expected localhost or an address")
    expect(page.locator("#page")).to_be_hidden()
    expect(page.locator("#live")).to_have_text("locked")
    shot(page, "door")
    page.get_by_label("Admin token").fill("wrong")
    page.get_by_role("button", name="Open").click()
    expect(page.locator("#door-why")).to_contain_text("wrong token")
    page.get_by_label("Admin token").fill("s3cret")
    page.get_by_role("button", name="Open").click()
    verdict(page).to_have_text("All is well")
    expect(page.locator("#door")).to_be_hidden()
    page.reload()
    verdict(page).to_have_text("All is well")
    other = context().new_page()
    other.goto(at(process, "gateway.test"))
    expect(other.locator("#door-why")).to_contain_text("expected localhost or an address")
    assert page.evaluate("() => [document.cookie, localStorage.length]") == ["", 0]


def test_on_this_machine_no_token_is_asked_for(page: Page, gateway: Gateways) -> None:
    page.goto(at(gateway(admin_token="s3cret"), "localhost"))
    verdict(page).to_have_text("All is well")


# --------------------------------------------------------------------------------------------------------------
# How it looks
# --------------------------------------------------------------------------------------------------------------


def test_it_fits_light_and_dark_on_any_screen(gateway: Gateways, context: Contexts) -> None:
    process = gateway(ttft_objective="short=2,long=9", tpot_objective="100ms")
    with Traffic(process.url, 10.0):
        for width in (360, 768, 1280, 2200):
            for scheme in ("light", "dark"):
                page = context(scheme, width).new_page()
                page.route(ASIDE, told)
                page.goto(at(process))
                expect(page.locator("#chart-ttft path.stroke.p50")).to_have_attribute("d", re.compile("M"))
                expect(page.locator("#curve")).to_be_visible()
                shot(page, f"{scheme}-{width}")
                assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth"), width
                assert not page.evaluate(CLIPPED), width
                ground = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
                brightness = sum(map(int, re.findall(r"\d+", ground))) / 3
                assert brightness < 60 if scheme == "dark" else brightness > 200
                page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(scheme: str, gateway: Gateways, context: Contexts) -> None:
    """Contrast of at least 4.5 to 1, as WCAG 2.1 asks of text (1.4.3)."""
    page = context(scheme).new_page()
    page.route(ASIDE, told)
    page.goto(at(gateway()))
    expect(page.locator("#findings")).to_contain_text("KV cache")
    poor = page.evaluate(POOR_CONTRAST)
    assert not poor


def test_under_the_pointer_a_chart_tells_its_values(page: Page, gateway: Gateways) -> None:
    process = gateway()
    with Traffic(process.url, 8.0):
        page.goto(at(process))
        expect(page.locator("#chart-requests path.stroke.good")).to_have_attribute("d", re.compile("L"))
        picture = page.locator("#chart-requests svg")
        box = picture.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] - 20, box["y"] + 60)
        expect(page.locator("#chart-requests .when")).to_have_text(re.compile("now|ago"))
        expect(page.locator("#chart-requests .cursor")).to_have_attribute("visibility", "visible")
        page.mouse.move(5, 5)
        expect(page.locator("#chart-requests .when")).to_have_text("")


def test_the_time_shown_can_be_chosen(page: Page, gateway: Gateways) -> None:
    page.goto(at(gateway()))
    expect(page.locator("#chart-running .tick").get_by_text("-5 min")).to_be_visible()
    page.get_by_role("button", name="15 min").click()
    expect(page.locator("#chart-running .tick").get_by_text("-15 min")).to_be_visible()
    expect(page.get_by_role("button", name="15 min")).to_have_attribute("aria-pressed", "true")
