"""Fails on names of `src` that nothing in `src`, `scripts` or `bench` uses.

Vulture finds functions, methods, properties and classes whose name occurs nowhere else. Names at the top level of a module
are checked by their module, too: constants, variables, functions and classes that the module does not read and that no
module imports from it. Tests do not count as users: what only a test calls is dead. `sim` is a tool of tests: what they
import from it has a user. `dead_code_allowed.txt` lists the names that are called from outside: by Python, Spark, Starlette,
pytest, users of the SDK and of `tidemill.testing`. An entry that is no longer needed fails, too.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from vulture import Vulture

ROOT = Path(__file__).parent.parent
ALLOWED = Path(__file__).parent / "dead_code_allowed.txt"
FOLDERS = ("src", "scripts", "bench")
# Attributes and variables are fields of messages and dataclasses more often than not.
KINDS = {"function", "method", "property", "class", "import", "unreachable_code"}
# What these decorate is called through a table.
DECORATORS = ["@serves", "@serves_raw", "@part.*"]
SIMULATION = ROOT / "src/tidemill/sim"
# One class for each message of the protocol, whether it is served or not.
SCHEMAS = ROOT / "src/tidemill/protocol/api"


class Unused(NamedTuple):
    name: str
    path: Path
    line: int
    kind: str


class Module:
    """The names that a module defines at its top level, those it reads, and those it takes from other modules."""

    def __init__(self, path: Path) -> None:
        self.path = path
        relative = path.relative_to(ROOT / "src" if path.is_relative_to(ROOT / "src") else ROOT)
        self.name = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
        tree = ast.parse(path.read_text())
        nodes = list(ast.walk(tree))
        self.defined = [found for statement in tree.body for found in self._definitions(statement)]
        self.read = {
            node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        }
        self.attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        self.attributes |= {
            str(node.args[1].value)
            for node in nodes
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr"
            if isinstance(node.args[1], ast.Constant)
        }
        # Modules by the name that they have here, and what is taken from a module.
        modules: dict[str, str] = {}
        self.taken: set[tuple[str, str]] = set()
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    self.taken.add((node.module, alias.name))
                    modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
            elif isinstance(node, ast.Import):
                modules.update({alias.asname or alias.name: alias.name for alias in node.names})
        owners = [node.value for node in nodes if isinstance(node, ast.Attribute)]
        for node in nodes:
            if isinstance(node, ast.Attribute) and (owner := ast.unparse(node.value)) in modules:
                self.taken.add((modules[owner], node.attr))
        # Modules that are passed on, or imported by their name: any attribute may be one of theirs.
        self.passed_on = {
            modules[node.id]
            for node in nodes
            if isinstance(node, ast.Name) and node.id in modules and node not in owners
        }
        self.passed_on |= {
            node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }

    def _definitions(self, statement: ast.stmt) -> Iterator[Unused]:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if not statement.decorator_list:
                yield Unused(statement.name, self.path, statement.lineno, "definition")
            return
        targets = (
            statement.targets
            if isinstance(statement, ast.Assign)
            else [statement.target]
            if isinstance(statement, ast.AnnAssign)
            else []
        )
        for target in targets:
            for node in ast.walk(target):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    yield Unused(node.id, self.path, node.lineno, "variable")


def unused_at_top_level(modules: list[Module]) -> list[Unused]:
    taken = {each for module in modules for each in module.taken}
    passed_on = {each for module in modules for each in module.passed_on}
    attributes = {each for module in modules for each in module.attributes}
    return [
        each
        for module in modules
        for each in module.defined
        if each.name not in module.read and (module.name, each.name) not in taken
        if module.name not in passed_on or each.name not in attributes
        if not each.name.startswith("__")
    ]


def unused_by_name() -> list[Unused]:
    vulture = Vulture(ignore_decorators=DECORATORS)
    vulture.scavenge([str(ROOT / folder) for folder in FOLDERS])
    return [
        Unused(item.name, Path(item.filename), item.first_lineno, item.typ)
        for item in vulture.get_unused_code()
        if item.typ in KINDS
    ]


def modules_of(*folders: str) -> list[Module]:
    return [Module(path) for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def main() -> int:
    modules = modules_of(*FOLDERS)
    names_of_paths = {module.path: module.name for module in modules}
    tested = {each for module in modules_of("tests") for each in module.taken}
    found = [
        each
        for each in {*unused_at_top_level(modules), *unused_by_name()}
        if each.path.is_relative_to(ROOT / "src") and not each.path.is_relative_to(SCHEMAS)
        if not each.path.is_relative_to(SIMULATION) or (names_of_paths[each.path], each.name) not in tested
    ]
    names = {each.name for each in found}
    lines = (line.partition("#")[0].strip() for line in ALLOWED.read_text().splitlines())
    allowed = {line for line in lines if line}
    for name, path, line, kind in sorted(found):
        if name not in allowed:
            print(f"{path.relative_to(ROOT)}:{line}: {kind} '{name}' has no user", file=sys.stderr)
    for name in sorted(allowed - names):
        print(f"{ALLOWED.name}: '{name}' has a user, or is gone", file=sys.stderr)
    return int(names != allowed)


if __name__ == "__main__":
    sys.exit(main())
