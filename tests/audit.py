"""``python -m tests.audit``: known vulnerabilities in what the gateway runs on, as pip-audit finds them.

Only what is installed for users is looked at, in the versions that are installed here. Without a network, or where the
index does not know of vulnerabilities, it says so and is content: a check must not fail for want of an answer.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from packaging.requirements import Requirement

ROOT: Final = "inference-gateway"
_EXTRAS: Final = ("", "otel", "valkey")
_PATIENCE: Final = 60.0  # seconds in all
_ANSWER: Final = 5  # seconds for one answer


def installed(root: str = ROOT, extras: tuple[str, ...] = _EXTRAS) -> dict[str, str]:
    """Version of everything that ``root`` needs, itself excluded, by name."""
    found: dict[str, str] = {}
    queue = list(_needs(root, extras))
    while queue:
        requirement = queue.pop()
        name = _plain(requirement.name)
        if name in found or name == root:
            continue
        try:
            found[name] = distribution(name).version
        except PackageNotFoundError:
            continue  # an extra that is not installed here
        queue += _needs(name, ("", *requirement.extras))
    return dict(sorted(found.items()))


def _needs(name: str, extras: tuple[str, ...]) -> Iterator[Requirement]:
    for line in distribution(name).requires or ():
        requirement = Requirement(line)
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
            yield requirement


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def verdict(answer: str | None, asked: int) -> tuple[int, str]:
    """(exit code, what to say) of pip-audit's answer as JSON, None where there was none."""
    try:
        dependencies: list[dict[str, Any]] = json.loads(answer or "")["dependencies"]
    except (ValueError, LookupError, TypeError):
        return 0, "not audited: pip-audit got no answer"
    known = [each for each in dependencies if "vulns" in each]
    lines = [
        f"{each['name']} {each['version']}: {vulnerability['id']}, fixed in {_fixed(vulnerability)}"
        for each in known
        for vulnerability in each["vulns"]
    ]
    if lines:
        return 1, "\n".join(lines)
    if not known:
        return 0, "not audited: the index knows of no vulnerabilities of any package"
    return 0, f"no known vulnerability in {len(known)} of {asked} packages"


def _fixed(vulnerability: dict[str, Any]) -> str:
    return ", ".join(vulnerability["fix_versions"]) or "no version yet"


def _asked(packages: dict[str, str]) -> str | None:
    with TemporaryDirectory() as folder:
        pinned = Path(folder) / "requirements.txt"
        pinned.write_text("".join(f"{name}=={version}\n" for name, version in packages.items()), encoding="utf-8")
        command = [sys.executable, "-m", "pip_audit", "--requirement", str(pinned), "--no-deps", "--disable-pip"]
        command += ["--format", "json", "--progress-spinner", "off", "--timeout", str(_ANSWER)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False)  # noqa: S603 - ourselves
        except subprocess.TimeoutExpired:
            return None
        return done.stdout


def main() -> int:
    """Ask and tell; 1 where something is known to be vulnerable."""
    packages = installed()
    code, told = verdict(_asked(packages), len(packages))
    sys.stdout.write(f"{told}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
