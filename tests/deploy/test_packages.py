"""The sdist and the wheel that is built from it, installed where nothing else is."""

from __future__ import annotations

import os
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from gateway import __version__
from tests.deploy.helpers import ROOT, ran, tool
from tests.real.process import Program, free_port
from tests.real.wire import Request, exchange


@pytest.mark.real
@pytest.mark.timeout(180)
def test_what_is_released_can_be_installed_and_serves(tmp_path: Path) -> None:
    out = tmp_path / "dist"
    ran(
        sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT, timeout=100
    )  # the wheel, from the sdist
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    assert sdist.name == f"inference_gateway-{__version__}.tar.gz"
    assert wheel.name == f"inference_gateway-{__version__}-py3-none-any.whl"  # for every system and Python

    with tarfile.open(sdist) as archive:
        tops = {Path(name).parts[1] for name in archive.getnames() if len(Path(name).parts) > 1}
    assert tops <= {path.name for path in ROOT.iterdir()} | {"PKG-INFO"}
    assert {"gateway", "tests", "docs", "config", "deploy", "Dockerfile", "LICENSE", "README.md", "Makefile"} <= tops
    assert not tops & {".venv", ".cache", ".git", ".env"}
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("gateway/")}
    source = {str(path.relative_to(ROOT)) for path in (ROOT / "gateway").rglob("*") if path.is_file()}
    assert packed == {name for name in source if "__pycache__" not in name}

    uv, place = tool("uv", "pip install uv"), tmp_path / "clean"
    python, command = place / "bin/python", place / "bin/gateway"
    ran(uv, "venv", "--quiet", "--python", sys.executable, place)
    ran(uv, "pip", "install", "--quiet", "--python", python, wheel, timeout=150)
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("GATEWAY_", "PYTHON"))}
    assert ran(command, "--version", environment=outside) == f"Inference Gateway {__version__}\n"
    assert "_shtab_gateway" in ran(command, "completion", "bash", environment=outside)
    assert "910b-mindie" in ran(command, "emulate", "--list", environment=outside)

    admin = free_port()
    settings = {"GATEWAY_PORT": str(free_port()), "GATEWAY_ADMIN_PORT": str(admin), "GATEWAY_HOST": "127.0.0.1"}
    installed = Program("installed", ["gateway", "serve"], tmp_path / "log", settings, python, tmp_path)
    try:
        installed.wait_until_ready(admin, "/readyz")
        assert b"<html" in exchange(admin, Request("GET", "/")).body  # the status page came along
    finally:
        assert installed.stop() == 0


def test_the_changelog_tells_of_this_version() -> None:
    assert f"\n## {__version__}" in (ROOT / "CHANGELOG.md").read_text()
