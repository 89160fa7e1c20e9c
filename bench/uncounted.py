"""`python -m bench.uncounted serve …`: a broker that stops and restarts counting while it runs."""

from __future__ import annotations

import ast
import importlib
import inspect
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from types import CodeType, FunctionType, ModuleType

STRIPPED_MIN = 10
UNCOUNTED, COUNTING, CONTROL = signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP
PACKAGE = "tidemill.broker"
PREPARING = ("counts = self.counts", "took = self.took")
# A condition is removed together with the statement that it guards, when that is its only one.
GUARDING = ("self._metrics.is_watched", "took is not None")


class Uncounted(ast.NodeTransformer):
    def __init__(self) -> None:
        self.stripped: list[str] = []

    def _without(self, node: ast.stmt) -> ast.AST:
        self.stripped.append(ast.unparse(node).splitlines()[0])
        return ast.copy_location(ast.Pass(), node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        target = ast.unparse(node.target)
        is_count = target.startswith("counts.") or ".counts." in target or "metrics." in target
        return self._without(node) if is_count and isinstance(node.op, ast.Add) else node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        return self._without(node) if ast.unparse(node) in PREPARING else node

    def visit_If(self, node: ast.If) -> ast.AST:
        if ast.unparse(node.test) in GUARDING:
            return self._without(node)
        self.generic_visit(node)
        return node


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _function(module: ModuleType, qualified_name: str) -> FunctionType:
    found: object = module
    for part in qualified_name.split("."):
        found = inspect.getattr_static(found, part)
    assert isinstance(found, FunctionType), qualified_name
    return found


@dataclass(frozen=True, slots=True)
class Copies:
    """Three copies of the code of every counting function: two with the statements, and one without."""

    counting: dict[FunctionType, CodeType]
    control: dict[FunctionType, CodeType]
    uncounted: dict[FunctionType, CodeType]
    stripped: list[str]

    @staticmethod
    def use(codes: dict[FunctionType, CodeType]) -> None:
        for function, code in codes.items():
            function.__code__ = code


def copies(rng: Random) -> Copies:
    made = Copies({}, {}, {}, [])
    for name, module in sorted(sys.modules.items()):
        if not name.startswith(f"{PACKAGE}.") or not module.__file__:
            continue
        source = inspect.getsource(module)
        tree, uncounted = ast.parse(source), Uncounted()
        without = ast.fix_missing_locations(uncounted.visit(ast.parse(source)))
        if not uncounted.stripped:
            continue
        made.stripped.extend(f"{name}: {statement}" for statement in uncounted.stripped)
        changed = _changed(tree, without)
        sides = [(made.counting, tree), (made.control, tree), (made.uncounted, without)]
        rng.shuffle(sides)
        for codes, side in sides:
            _PADDING.append(bytearray(rng.randrange(4096)))
            for code in _codes(compile(side, module.__file__, "exec")):
                if code.co_qualname in changed:
                    codes[_function(module, code.co_qualname)] = code
    return made


# Kept, so that the next copy has another address.
_PADDING: list[bytearray] = []


def _changed(tree: ast.Module, without: ast.Module) -> set[str]:
    """The functions from which a statement was removed."""
    before, after = (
        {code.co_qualname: code.co_code for code in _codes(compile(each, "", "exec"))}
        for each in (tree, without)
    )
    return {name for name, code in before.items() if code != after[name] and "<" not in name}


def main() -> int:
    importlib.import_module("tidemill.broker.node")
    made = copies(Random())
    if len(made.stripped) < STRIPPED_MIN:
        print(f"only {len(made.stripped)} statements count: {made.stripped}", file=sys.stderr)
        return 1
    for number, codes in ((UNCOUNTED, made.uncounted), (COUNTING, made.counting), (CONTROL, made.control)):
        signal.signal(number, lambda *_, codes=codes: Copies.use(codes))
    tidemill = importlib.import_module("tidemill.cli.main")
    status: int = tidemill.main(sys.argv[1:])
    return status


if __name__ == "__main__":
    sys.exit(main())
