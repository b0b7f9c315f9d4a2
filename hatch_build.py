"""A wheel with its hot modules compiled, where ``GATEWAY_COMPILE=1`` asks for one; else it is pure Python.

mypyc makes C of the modules as they are, with their own annotations, so both forms are one source. It takes a C
compiler and a minute or two, and the wheel is then for one Python and one kind of machine.
"""

from __future__ import annotations

import ast
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_ROOMS = {
    "admission": "affinity backlog balancer breaker config controller estimator flow growth lag limit pace pool queue "
    "retries session shedder spot tokens window",
    "brain": "codec desk remote wire words",
    "dialects": "openai registry reply request sse usage",
    "proxy": "bodies client config fit gate handler heads http inbound keys known load relay trust turns upstream",
    "telemetry": "access_log clients curve entry history ladder metrics record_file rows series sink wear window",
}
HOT = ("gateway/model.py", *(f"gateway/{room}/{name}.py" for room, names in _ROOMS.items() for name in names.split()))
"""What a request runs through. Not the listener: it inherits from aiohttp, which a compiled class cannot."""


class CompiledHook(BuildHookInterface[Any]):
    """Called by hatchling for each wheel."""

    def dependencies(self) -> list[str]:
        """What has to be there to build: mypy, and what the modules import."""
        return ["mypy>=1.17", "setuptools>=75", *self.metadata.core.dependencies] if _wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and add what came of it to the wheel. An editable installation stays pure: it is to be edited."""
        if not _wanted() or version == "editable":
            return
        folder = tempfile.mkdtemp()
        for library in compiled(Path(self.root), Path(folder)):
            build_data["force_include"][str(library)] = str(library.relative_to(folder))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def _wanted() -> bool:
    return os.environ.get("GATEWAY_COMPILE", "0") not in {"", "0"}


def spelt_out(source: str) -> str:
    """``source`` with the constructors of its dataclasses written out.

    The one that ``dataclass`` makes is interpreted, in a compiled module too: it took a tenth of a request. A frozen
    one is left as it is, for nobody but its own constructor may set its fields.
    """
    lines = source.splitlines(keepends=True)
    classes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
    for node in sorted(classes, key=lambda each: -each.lineno):
        if len(node.decorator_list) == 1 and not node.bases and _makes_a_constructor(node.decorator_list[0]):
            lines.insert(node.end_lineno or 0, _constructor(node))
            at = node.decorator_list[0].lineno - 1
            lines[at] = lines[at].replace("@dataclass(", "@dataclass(init=False, ", 1)
    return "".join(lines)


def _makes_a_constructor(decorator: ast.expr) -> bool:
    if not isinstance(decorator, ast.Call) or ast.unparse(decorator.func) != "dataclass":
        return False
    return not {"frozen", "kw_only", "init"} & {str(keyword.arg) for keyword in decorator.keywords}


def _constructor(node: ast.ClassDef) -> str:
    taken, set_up = ["self"], []
    for each in node.body:
        if not isinstance(each, ast.AnnAssign) or not isinstance(each.target, ast.Name):
            continue
        name, kind, value = each.target.id, ast.unparse(each.annotation), each.value
        how: dict[str, str] = {}
        if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
            how = {str(keyword.arg): ast.unparse(keyword.value) for keyword in value.keywords}
            made = how.get("default_factory")
            default = how.get("default") if made is None else "None"
        else:
            made, default = None, None if value is None else ast.unparse(value)
        if how.get("init") == "False":
            set_up.append(f"self.{name} = {default if made is None else f'({made})()'}")
            continue
        kind = kind if made is None else f"{kind} | None"
        taken.append(f"{name}: {kind}" if default is None else f"{name}: {kind} = {default}")
        set_up.append(f"self.{name} = " + (name if made is None else f"({made})() if {name} is None else {name}"))
    if any(isinstance(each, ast.FunctionDef) and each.name == "__post_init__" for each in node.body):
        set_up.append("self.__post_init__()")
    body = "".join(f"        {line}\n" for line in set_up)
    return f"\n    def __init__({', '.join(taken)}) -> None:\n{body}"


def translated(root: Path, folder: Path) -> list[Any]:
    """The hot modules as extensions in C, written to ``folder``, which the process is to be in. No compiler is run.

    Raises:
        SystemExit: a module is no source for mypyc.
    """
    from mypyc.build import mypycify

    shutil.copytree(root / "gateway", folder / "gateway", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for module in HOT:
        source = folder / module
        source.write_text(spelt_out(source.read_text(encoding="utf-8")), encoding="utf-8")
    flags = ["--ignore-missing-imports", "--follow-imports=silent", f"--python-executable={sys.executable}"]
    extensions: list[Any] = mypycify([*flags, *HOT], opt_level="2", debug_level="0", group_name="gateway")
    return extensions


def compiled(root: Path, folder: Path) -> list[Path]:
    """The libraries of the hot modules, made in ``folder``."""
    from setuptools import Distribution

    here = Path.cwd()
    os.chdir(folder)
    try:
        distribution = Distribution({"name": "gateway", "ext_modules": translated(root, folder)})
        distribution.get_command_obj("build_ext").inplace = True
        distribution.run_command("build_ext")
    finally:
        os.chdir(here)
    return sorted(path for path in folder.rglob("*") if path.suffix in {".so", ".pyd"} and "build" not in path.parts)
