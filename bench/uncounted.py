"""`python -m bench.uncounted serve …`: a broker that stops counting, and begins again, while it runs.

SIGUSR1 takes the statements that count out of the broker's code, SIGUSR2 puts them back: additions to `counts.*` and
`metrics.*`, and the timing of calls. Functions keep their identity and get the code of a second compilation of the same
source, in which those statements are left out and nothing stands in their place. So both sides of a comparison are one
process with one layout of memory; two processes of the same code differ by more than what is measured here.

`STRIPPED_MIN` keeps this honest: when the code changes so that fewer statements are found, it refuses to run.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import signal
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType

STRIPPED_MIN = 10
PACKAGE = "tidemill.broker"


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
        is_count = (
            ast.unparse(node.targets[0]) == "call.timing" or ast.unparse(node) == "counts = self.counts"
        )
        return self._without(node) if is_count else node

    def visit_If(self, node: ast.If) -> ast.AST:
        if ast.unparse(node.test) == "self.timing is not None":
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


def pairs() -> tuple[list[tuple[FunctionType, CodeType, CodeType]], list[str]]:
    """Functions that count, each with its code and with the code that does not; and the statements."""
    found, stripped = [], []
    for name, module in sorted(sys.modules.items()):
        if not name.startswith(f"{PACKAGE}.") or not module.__file__:
            continue
        source = inspect.getsource(module)
        uncounted = Uncounted()
        tree = ast.fix_missing_locations(uncounted.visit(ast.parse(source)))
        if not uncounted.stripped:
            continue
        stripped += [f"{name}: {statement}" for statement in uncounted.stripped]
        without = {code.co_qualname: code for code in _codes(compile(tree, module.__file__, "exec"))}
        for code in _codes(compile(source, module.__file__, "exec")):
            if code.co_code != without[code.co_qualname].co_code and "<" not in code.co_qualname:
                function = _function(module, code.co_qualname)
                found.append((function, function.__code__, without[code.co_qualname]))
    return found, stripped


def main() -> int:
    importlib.import_module("tidemill.broker.node")
    found, stripped = pairs()
    if len(stripped) < STRIPPED_MIN:
        print(f"only {len(stripped)} statements count: {stripped}", file=sys.stderr)
        return 1

    def stop_counting(*_: object) -> None:
        for function, _counting, without in found:
            function.__code__ = without

    def count(*_: object) -> None:
        for function, counting, _without in found:
            function.__code__ = counting

    signal.signal(signal.SIGUSR1, stop_counting)
    signal.signal(signal.SIGUSR2, count)
    tidemill = importlib.import_module("tidemill.cli.main")
    status: int = tidemill.main(sys.argv[1:])
    return status


if __name__ == "__main__":
    sys.exit(main())
