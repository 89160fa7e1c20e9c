"""`python -m bench.spark`: source, segment scan and sink on `local[2]`, beside Spark's own Kafka connector on one broker."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path

from bench import machine, report
from bench.__main__ import new_file, positive
from bench.brokers import Tidemill
from bench.goals import judge
from bench.run import say
from bench.spark import FAMILIES, jvm_connector
from bench.spark.connectors import CORES, JVM, OURS, Connector, start_session
from bench.spark.run import FULL, QUICK, Run


def _families(text: str) -> list[str]:
    names = [name if name.startswith("spark-") else f"spark-{name}" for name in text.split(",")]
    unknown = [name for name in names if name not in FAMILIES]
    if unknown:
        raise argparse.ArgumentTypeError(f"choose from {', '.join(FAMILIES)}, not {', '.join(unknown)}")
    return names


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text} is not of the form name=value")
    return name, value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument("--only", type=_families, metavar="NAME,…", help=f"of {', '.join(FAMILIES)}")
    parser.add_argument("--quick", action="store_true", help="a tenth of the data, one round")
    parser.add_argument("--rounds", type=positive, help="how often each case runs (the median counts)")
    parser.add_argument("--connector", choices=(OURS.name, JVM.name), help="only this one; default: both")
    parser.add_argument(
        "--conf",
        type=_setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of the Spark session",
    )
    parser.add_argument("--markdown", action="store_true", help="tables in Markdown")
    parser.add_argument("--json", type=new_file, metavar="FILE", help="write everything there as well")
    parser.add_argument(
        "--dir", type=Path, help="where the broker keeps its data; default: a temporary directory"
    )
    return parser


def _connectors(only: str | None) -> list[Connector]:
    connectors = [] if only == JVM.name else [OURS]
    if only != OURS.name:
        reason = jvm_connector.fetch()
        if reason is None:
            connectors.append(JVM)
        else:
            say(f"without Spark's own Kafka connector: {reason}")
    return connectors


def _headline(facts: dict[str, str | float]) -> str:
    return (
        f"Tidemill {Tidemill.version()}, Spark {version('pyspark')} on local[{CORES}], its Kafka connector "
        f"{jvm_connector.version()}; {facts['cores']} cores ({facts['cpu']}), "
        f"{int(facts['memory_bytes']) / 1e9:.0f} GB, Linux {facts['kernel']}, Python {facts['python']}"
    )


def main() -> int:
    options = _parser().parse_args()
    connectors = _connectors(options.connector)
    if not connectors:
        return 2
    scale = QUICK if options.quick else FULL
    scale = replace(scale, rounds=options.rounds or scale.rounds)
    facts, started_s = machine.facts(), time.monotonic()
    if warning := machine.busy_warning():
        say(warning)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with (
        tempfile.TemporaryDirectory(
            prefix="tidemill-bench-", dir=options.dir, ignore_cleanup_errors=True
        ) as scratch,
        Tidemill(Path(scratch) / "broker") as broker,
    ):
        session = start_session(
            Path(scratch),
            sys.executable,
            with_jvm_connector=JVM in connectors,
            settings=dict(options.conf),
        )
        run = Run(session, broker, broker.log_dir, connectors, options.only or FAMILIES, scale)
        try:
            run.to_the_end()
            status = 1 if any(result.error is not None for result in run.results) else 0
        except KeyboardInterrupt:
            say("interrupted; what was measured so far:")
            status = 130
        finally:
            session.stop()
    verdicts = judge(run.results, OURS.name, JVM.name)
    print(_headline(facts) + "\n")
    print(report.document(run.results, verdicts, is_markdown=options.markdown, measured="connector"))
    say(f"took {time.monotonic() - started_s:.0f} s")
    if options.json:
        about = {"machine": facts, "headline": _headline(facts), "scale": asdict(scale)}
        everything = about | report.as_json(run.results, verdicts)
        options.json.write_text(json.dumps(everything, indent=1, ensure_ascii=False) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
