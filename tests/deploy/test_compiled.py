"""The compiled form: asked for by name only, of modules that there are; `make test-compiled` builds it and tries it."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.deploy.helpers import ROOT


def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_module_that_is_compiled_is_there() -> None:
    hot = hook().HOT
    assert len(hot) == len(set(hot))
    assert [name for name in hot if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize(("said", "wanted"), [(None, False), ("", False), ("0", False), ("1", True)])
def test_it_is_compiled_only_where_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, said: str | None, wanted: bool
) -> None:
    monkeypatch.delenv("GATEWAY_COMPILE", raising=False)
    if said is not None:
        monkeypatch.setenv("GATEWAY_COMPILE", said)
    assert hook()._wanted() is wanted


def test_no_attribute_of_a_compiled_class_is_a_word_of_c() -> None:
    """mypyc puts an underscore before each, and only the C compiler would tell."""
    for name in hook().HOT:
        assert not re.search(r"self\._(_?thread|_?int128|_?attribute_?|_?asm_?)\b", (ROOT / name).read_text()), name


def test_none_is_cast_to_no_class() -> None:
    """A cast is looked at where it is compiled, so that the module could not be imported."""
    for name in hook().HOT:
        assert not re.search(r"\bcast\([^()]*, None\)", (ROOT / name).read_text()), name


def classes(name: str) -> list[ast.ClassDef]:
    return [node for node in ast.walk(ast.parse((ROOT / name).read_text())) if isinstance(node, ast.ClassDef)]


def test_no_interpreted_class_inherits_from_a_compiled_one() -> None:
    hot = set(hook().HOT)
    open_to_all = {"Protocol", "Enum", "IntEnum", "Word", "Exception", "NamedTuple"}
    shut = {each.name for name in hot for each in classes(name) if not open_to_all & {*map(ast.unparse, each.bases)}}
    found = []
    for path in (ROOT / "gateway").rglob("*.py"):
        name = path.relative_to(ROOT).as_posix()
        if name in hot:
            continue
        source, own = path.read_text(), {each.name for each in classes(name)}
        imported = {
            alias.asname or alias.name
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.ImportFrom) and f"{(node.module or '').replace('.', '/')}.py" in hot
            for alias in node.names
        }
        taken = (shut & imported) - own
        found += [f"{name}: {each.name}" for each in classes(name) if taken & {*map(ast.unparse, each.bases)}]
    assert found == []


_DATACLASSES = """
from array import array
from dataclasses import dataclass, field


@dataclass(slots=True)
class Plain:
    one: int
    two: str = "b"
    many: list[int] = field(default_factory=lambda: [1])
    later: float | None = field(default=None, repr=False)
    own: int = field(default=7, init=False)

    @property
    def both(self) -> str:
        return f"{self.one}{self.two}"


@dataclass(frozen=True, slots=True)
class Frozen:
    one: int
"""


def test_constructors_that_are_written_out_do_what_dataclasses_does() -> None:
    written = hook().spelt_out(_DATACLASSES)
    ours: dict[str, Any] = {"__name__": __name__}
    theirs: dict[str, Any] = {"__name__": __name__}
    exec(written, ours)  # noqa: S102 - the source above
    exec(_DATACLASSES, theirs)  # noqa: S102 - the source above
    for arguments, named in (((1,), {}), ((1, "c", [2]), {"later": 0.5}), ((), {"one": 3, "many": []})):
        mine, other = ours["Plain"](*arguments, **named), theirs["Plain"](*arguments, **named)
        assert repr(mine) == repr(other)
        assert (mine.own, mine.later, mine.both) == (other.own, other.later, other.both)
    assert ours["Plain"](1).many is not ours["Plain"](1).many
    assert written.count("def __init__") == 1  # a frozen one may not set its own fields


def test_no_tuple_that_is_compiled_begins_with_a_number() -> None:
    """mypyc keeps it as a struct, and takes it for one that was never set wherever it is read (NameError).

    As ``Final[tuple[float, ...]]`` it is an object like any other.
    """
    found = [
        f"{name}: {ast.unparse(line)}"
        for name in hook().HOT
        for line in ast.walk(ast.parse((ROOT / name).read_text()))
        if isinstance(line, ast.AnnAssign) and ast.unparse(line.annotation) == "Final"
        if isinstance(line.value, ast.Tuple) and isinstance(first := line.value.elts[0], ast.Constant)
        if isinstance(first.value, (int, float)) and not isinstance(first.value, bool)
    ]
    assert found == []


def test_what_bounds_a_slice_has_no_effect() -> None:
    """mypyc works it out twice where it knows no slice of its own, as of a memoryview: every line was written twice."""
    found = [
        f"{name}: {ast.unparse(node)}"
        for name in hook().HOT
        for node in ast.walk(ast.parse((ROOT / name).read_text()))
        if isinstance(node, ast.Slice)
        for call in ast.walk(node)
        if isinstance(call, (ast.NamedExpr, ast.Await))
        or (isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] not in {"len", "find", "end"})
    ]
    assert found == []


def test_nothing_is_made_without_its_constructor() -> None:
    """``__new__`` of a compiled class calls it, whatever it is given."""
    for name in hook().HOT:
        assert ".__new__(" not in (ROOT / name).read_text(), name


_TRANSLATE = """
import runpy, sys
from pathlib import Path
found = runpy.run_path(sys.argv[1])["translated"](Path(sys.argv[1]).parent, Path.cwd())
print(len(found))
"""


@pytest.mark.timeout(300)  # half a minute of CPU time, on a machine that does other things
def test_every_module_that_is_compiled_is_a_source_for_mypyc(tmp_path: Path) -> None:
    """Translated to C only, which needs no C compiler; what a mypyc of tomorrow refuses is seen here, too."""
    translate = [sys.executable, "-c", _TRANSLATE, str(ROOT / "hatch_build.py")]
    done = subprocess.run(translate, cwd=tmp_path, check=False, capture_output=True, text=True)  # noqa: S603 - our own
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[-1]) >= len(hook().HOT)


@pytest.mark.compiled
@pytest.mark.timeout(3600)
def test_the_compiled_gateway_is_accepted_as_the_pure_one_is(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps"]
    environment = os.environ | {"GATEWAY_COMPILE": "1"}
    subprocess.run([*pip, "--wheel-dir", str(tmp_path), str(ROOT)], check=True, env=environment)  # noqa: S603 - our own
    (wheel,) = tmp_path.glob("*.whl")
    assert "none-any" not in wheel.name
    place = tmp_path / "compiled"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    for folder in ("tests", "config", "deploy", "docs"):
        shutil.copytree(ROOT / folder, place / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", place)
    where = [sys.executable, "-c", "import gateway.proxy.handler as handler; print(handler.__file__)"]
    found = subprocess.run(where, cwd=place, check=True, capture_output=True, text=True)  # noqa: S603 - our own
    assert Path(found.stdout.strip()).parent == place / "gateway" / "proxy"
    assert Path(found.stdout.strip()).suffix != ".py"
    # Not the tests of single rooms: they put stand-ins in the place of classes that take none once they are compiled.
    tests = [sys.executable, "-m", "pytest", "-q", "-n", "2", "tests/acceptance"]
    assert subprocess.run(tests, cwd=place, check=False).returncode == 0  # noqa: S603 - our own
