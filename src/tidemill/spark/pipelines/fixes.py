"""The user's `fix(record)` for dead letters: loaded from the text of a file, on the driver and on every executor."""

from __future__ import annotations

import sys
import types

from tidemill.dead_letters import FIX_FUNCTION, Fix
from tidemill.spark.pipelines import PipelineError

_FIX_MODULE = "tidemill_fix"


def load_fix(source: str, name: str) -> Fix:
    """The function `fix` of a file's text; every executor makes its own from it."""
    module = types.ModuleType(_FIX_MODULE)
    sys.modules[_FIX_MODULE] = module
    try:
        exec(compile(source, name, "exec"), module.__dict__)
    except Exception as error:
        raise PipelineError(f"{name} cannot be loaded: {type(error).__name__}: {error}") from error
    function = getattr(module, FIX_FUNCTION, None)
    if not callable(function):
        raise PipelineError(
            f"{name} has no function {FIX_FUNCTION}(record): it gets a record and returns it or None"
        )
    loaded: Fix = function
    return loaded
