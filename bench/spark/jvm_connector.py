"""Spark's own Kafka connector (`format("kafka")`): its jars from Maven Central, through `pom.xml` beside this file.

    reason = missing()                        # None when the jars are here; needs no network, so it is quick
    session.config("spark.jars", spark_jars())

`python -m bench.spark.jvm_connector` fetches them. Maven Central may be behind PySpark on PyPI: then the newest
connector there runs on the newer Spark.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench import maven

HERE = Path(__file__).resolve().parent
WHAT = "Spark's Kafka connector"


def version() -> str:
    return maven.property_of(HERE, "connector.version")


def missing() -> str | None:
    """None when the jars are here; else one line: how to get them."""
    if maven.has_jars(HERE):
        return None
    return f"the jars of {WHAT} are not here: `make spark-jvm` fetches them from Maven Central (needs mvn)"


def fetch() -> str | None:
    """None when the jars are here now; else why they cannot be fetched."""
    try:
        maven.jars(HERE, WHAT)
    except maven.JarsMissingError as error:
        return str(error)
    return None


def paths() -> list[Path]:
    return sorted((HERE / "target" / "jars").glob("*.jar"))


def spark_jars() -> str:
    """As Spark's setting `spark.jars` wants them."""
    return ",".join(map(str, paths()))


def main() -> int:
    reason = fetch()
    if reason is not None:
        print(f"Maven Central cannot be reached: {reason}", file=sys.stderr)
    return 0 if reason is None else 2


if __name__ == "__main__":
    sys.exit(main())
