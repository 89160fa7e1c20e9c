"""Tidemill on Spark through PySpark: a source, a sink, a topic as a table, and ready pipelines.

Needs `tidemill[spark]` and Java 17.

Spark starts its workers as `python3` and finds `format("tidemill")` only if that Python has Tidemill. A program that is
run by the Python of a virtual environment which is not activated has another `python3` on PATH. So importing this package,
before the session starts, makes workers run the Python of this process, unless the environment says which one.

Spark uses a worker for many tasks and collects its garbage after each, which walks everything that was imported: 40 ms of
a core with Tidemill, Arrow and PySpark. `freeze_imports` takes that out of collections.
"""

from __future__ import annotations

import functools
import gc
import logging
import os
import sys
from collections.abc import MutableMapping

_VARIABLES = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
# Set where spark-submit has started this process: the JVM is there already, and its settings say which Python runs.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
# Set in workers that are used again.
_REUSED = "SPARK_REUSE_WORKER"


def use_this_python(environment: MutableMapping[str, str] = os.environ) -> None:
    """Sets what is unset; a session that is there already keeps the Python that it has."""
    if _SUBMITTED in environment or not sys.executable:
        return
    is_set = _VARIABLES[0] in environment
    for name in _VARIABLES:
        environment.setdefault(name, sys.executable)
    running = _running_python()
    if running is not None and not is_set and running != sys.executable:
        logging.getLogger(__name__).warning(
            "the session has started before tidemill.spark was imported, and its workers run %s, not %s: if Spark says "
            "DATA_SOURCE_NOT_FOUND, import tidemill.spark first, or set PYSPARK_PYTHON",
            running,
            sys.executable,
        )


def _running_python() -> str | None:
    """Returns the Python of this session's workers, if there is a session. PySpark is not imported to find out."""
    module = sys.modules.get("pyspark.core.context")
    context = getattr(getattr(module, "SparkContext", None), "_active_spark_context", None)
    found: str | None = getattr(context, "pythonExec", None)
    return found


@functools.cache
def freeze_imports() -> None:
    """Exempts what a reused worker holds from garbage collection, at the first call. Garbage goes before that."""
    if _REUSED in os.environ:
        gc.collect()
        gc.freeze()


use_this_python()
