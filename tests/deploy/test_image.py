"""`make test-image`: the real Dockerfile built by a real builder without a daemon, and the image run.

No registry of images is needed: the base is Debian's Python in the place of Docker Hub's. The isolation is a chroot, so
what is not covered is what a runtime adds around it: its own network, and a root file system that even root cannot
write to. The user of the image cannot write to it either, and that is tested.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.helpers import ROOT, instructions, ran, tool
from tests.deploy.test_dockerfile import health
from tests.real.process import free_port

pytestmark = [pytest.mark.image, pytest.mark.timeout(1500)]

_SOURCE = "apt-get install buildah mmdebstrap"
_CERTIFICATES = Path("/etc/ssl/certs")


class Builder:
    """buildah with everything that it keeps in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._program = (tool("buildah", _SOURCE), "--root", str(folder / "store"), "--runroot", str(folder / "run"))
        self._environment = os.environ | {"STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}

    def __call__(self, *arguments: str | Path) -> str:
        """Its answer to one command."""
        return ran(*self._program, *arguments, environment=self._environment, timeout=1000).strip()


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    folder = tmp_path_factory.mktemp("buildah")
    yield Builder(folder)
    shutil.rmtree(folder)


@pytest.fixture(scope="module", params=["pure", "compiled"])
def container(request: pytest.FixtureRequest, builder: Builder) -> str:
    """Of an image made of the Dockerfile as it is, or with what a request runs through made C."""
    form: str = request.param
    arguments = dict.fromkeys(("BASE", "BUILD_BASE"), _debian(builder, "base"))
    if form == "compiled":
        arguments["BUILD_BASE"] = _debian(builder, "build", "gcc", "libc6-dev", "python3-dev")
        arguments["GATEWAY_COMPILE"] = "1"
    # What this machine trusts, so that pip and uv reach a mirror with a certificate of its own.
    (builder.folder / "pip.conf").write_text(f"[global]\ncert = {_CERTIFICATES}/ca-certificates.crt\n")
    (builder.folder / "uv.toml").write_text("native-tls = true\n")
    mounted = (_CERTIFICATES, builder.folder / "pip.conf", builder.folder / "uv.toml")
    places = (_CERTIFICATES, "/etc/pip.conf", "/etc/uv/uv.toml")
    mounts = [f"--volume={source}:{place}:ro" for source, place in zip(mounted, places, strict=True)]
    given = [f"--build-arg={name}={value}" for name, value in arguments.items()]
    builder("bud", "--format", "docker", "-q", *mounts, *given, "-t", form, ROOT)
    made = builder("from", f"localhost/{form}")
    where = builder("run", made, "--", "python", "-c", "import gateway.proxy.relay as relay; print(relay.__file__)")
    assert where.endswith(".so") == (form == "compiled")
    return made


def _debian(build: Builder, name: str, *packages: str) -> str:
    """The name of an image of Debian with its Python, made where it is not there yet."""
    image = f"localhost/{name}"
    root = build.folder / name
    if not root.exists():
        include = ",".join(("python3", "python3-venv", "ca-certificates", *packages))
        program = tool("mmdebstrap", _SOURCE)
        ran(program, "--variant=essential", f"--include={include}", "trixie", root, timeout=500)
        (root / "usr/bin/python").symlink_to("python3")
        base = build("from", "scratch")
        build("add", "-q", base, root, "/")
        build("config", "--env", "PATH=/usr/local/bin:/usr/bin:/bin", base)
        build("commit", "-q", base, image)
    return image


def test_it_runs_as_nobody_who_can_write(builder: Builder, container: str) -> None:
    assert builder("run", container, "--", "id", "-u") == "65532"
    search = (
        r"find / -xdev -path /proc -prune -o -type d -writable -print -o -type f -writable -print 2>/dev/null || true"
    )
    found = builder("run", container, "--", "sh", "-c", search).split()
    assert set(found) <= {"/tmp", "/var/tmp", "/run/lock"}  # noqa: S108 - Debian's own, a tmpfs where the root is read-only


def test_it_serves_and_drains(builder: Builder, container: str) -> None:
    ports = {"HOST": "127.0.0.1", "PORT": free_port(), "ADMIN_HOST": "127.0.0.1", "ADMIN_PORT": free_port()}
    for name, value in ports.items():
        builder("config", "--env", f"GATEWAY_{name}={value}", container)
    check = shlex.join(health(dict(instructions(ROOT / "Dockerfile", stage=2))["HEALTHCHECK"]))
    ready = f"n=0; until {check}; do kill -0 $pid; n=$((n+1)); test $n -lt 300; sleep 0.1; done"
    printed = builder("run", container, "--", "sh", "-ec", f"gateway serve & pid=$!; {ready}; kill $pid; wait $pid")
    assert f"http://127.0.0.1:{ports['PORT']}" in printed
