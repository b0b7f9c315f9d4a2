"""The process log: both styles, levels, and entries that go wrong."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.telemetry.logs import configure

LOG = logging.getLogger("gateway.test")


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    """Give the root logger back as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers = handlers
    root.setLevel(level)


def test_plain(capfd: pytest.CaptureFixture[str]) -> None:
    handler = configure("info", "plain")
    LOG.debug("hidden")
    LOG.warning("backend %s is down", "gpu1")
    handler.close()
    out, err = capfd.readouterr()
    assert out == ""
    _, _, rest = err.strip().split(" ", 2)
    assert rest == "WARNING gateway.test: backend gpu1 is down"


def test_json(capfd: pytest.CaptureFixture[str]) -> None:
    handler = configure("debug", "json")
    LOG.debug("two\nlines")
    handler.close()
    fields = json.loads(capfd.readouterr().err)
    assert fields.pop("time").endswith("+00:00")
    assert fields == {"level": "debug", "logger": "gateway.test", "message": "two\nlines"}


def test_json_with_an_exception_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    handler = configure("info", "json")
    try:
        int("boom")
    except ValueError:
        LOG.exception("failed")
    handler.close()
    (text,) = capfd.readouterr().err.splitlines()
    assert "ValueError: invalid literal" in json.loads(text)["exception"]


@pytest.mark.parametrize("style", ["plain", "json"])
def test_an_entry_that_cannot_be_formatted_does_not_raise(style: str, capfd: pytest.CaptureFixture[str]) -> None:
    handler = configure("info", style)
    LOG.info("%d apples", "no number")
    LOG.info("next")
    handler.close()
    err = capfd.readouterr().err
    assert "gateway.test" in err
    assert "cannot be formatted" in err
    assert "next" in err


@pytest.mark.parametrize("style", ["plain", "json"])
def test_long_and_odd_entries(style: str, capfd: pytest.CaptureFixture[str]) -> None:
    handler = configure("info", style)
    LOG.info("z" * 1_000_000)
    LOG.info("lone \udcff surrogate \x00")
    handler.close()
    first, second = capfd.readouterr().err.splitlines()
    assert 16_000 < len(first) < 20_000
    assert "surrogate" in second
    if style == "json":
        assert json.loads(first)["message"] == "z" * 16_384
        assert json.loads(second)["message"] == "lone ? surrogate \x00"


def test_configuring_again_replaces_the_first(tmp_path: Path) -> None:
    configure("info", "plain", str(tmp_path / "first"))
    LOG.info("one")
    handler = configure("info", "plain", str(tmp_path / "second"))
    LOG.info("two")
    handler.close()
    assert (tmp_path / "first").read_text().endswith("one\n")
    assert (tmp_path / "second").read_text().endswith("two\n")


@pytest.mark.parametrize(("level", "style"), [("loud", "plain"), ("INFO", "plain"), ("info", "xml")])
def test_wrong_values_are_named(level: str, style: str) -> None:
    with pytest.raises(ValueError, match=r"log (level|style) '.*' given, expected one of"):
        configure(level, style)
