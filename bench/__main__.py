"""`python -m bench`: measure the broker, alone or beside Apache Kafka, and print the tables."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

from bench import machine, report
from bench.apache_kafka import ApacheKafka
from bench.brokers import Target, Tidemill, apache_kafka_target, tidemill_target
from bench.cases import FULL, QUICK
from bench.cluster.loads import PRODUCER_SETTINGS as CLUSTER_PRODUCER_SETTINGS
from bench.cluster.nodes import kafka_cluster_target, tidemill_cluster_target
from bench.goals import judge
from bench.librdkafka_loads import CONSUMER_SETTINGS, PRODUCER_SETTINGS
from bench.run import CLUSTER, ONE_BROKER, SECURED, Run, say
from bench.secured.nodes import kafka_secured_target, tidemill_secured_target


def _families(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    known = (*ONE_BROKER.families, *CLUSTER.families, *SECURED.families)
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise argparse.ArgumentTypeError(
            f"choose from {', '.join(known)}, not {', '.join(unknown) or text!r}"
        )
    return names


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"at least 1, not {text}")
    return value


def new_file(text: str) -> Path:
    """Check the output file before the measurement, which may take half an hour."""
    path = Path(text)
    if not path.parent.is_dir() or path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} cannot be written")
    return path


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--cluster", action="store_true", help="measure a cluster of three brokers")
    parser.add_argument("--secured", action="store_true", help="measure one broker over TLS, and its quotas")
    parser.add_argument(
        "--only",
        type=_families,
        metavar="NAME,…",
        help=f"of {', '.join(ONE_BROKER.families)}; with --cluster of {', '.join(CLUSTER.families)}; with --secured of "
        f"{', '.join(SECURED.families)}",
    )
    parser.add_argument("--quick", action="store_true", help="less data, fewer cases, one round")
    parser.add_argument("--rounds", type=positive, help="how often each live case runs (the median counts)")
    parser.add_argument("--kafka", action="store_true", help="the same beside Apache Kafka, alternating")
    parser.add_argument("--kafka-only", action="store_true", help="only Apache Kafka")
    parser.add_argument("--markdown", action="store_true", help="tables in Markdown")
    parser.add_argument("--json", type=new_file, metavar="FILE", help="write everything there as well")
    parser.add_argument(
        "--dir", type=Path, help="where the brokers keep their data; default: a temporary directory"
    )
    return parser


def _targets(options: argparse.Namespace) -> list[Target]:
    ours, theirs = tidemill_target, apache_kafka_target
    if options.cluster:
        ours, theirs = tidemill_cluster_target, kafka_cluster_target
    elif options.secured:
        ours, theirs = tidemill_secured_target, kafka_secured_target
    targets: list[Target] = [] if options.kafka_only else [ours()]
    if options.kafka or options.kafka_only:
        missing = ApacheKafka.available()
        if missing is None:
            targets.append(theirs())
        else:
            say(f"without Apache Kafka: {missing}")
    return targets


def _headline(targets: list[Target], facts: dict[str, str | float]) -> str:
    brokers = ", ".join(f"{target.name} {target.version}" for target in targets)
    memory_gb = int(facts["memory_bytes"]) / 1e9
    return (
        f"{brokers}; {facts['cores']} cores ({facts['cpu']}), {memory_gb:.0f} GB, Linux {facts['kernel']}, "
        f"Python {facts['python']}, confluent-kafka {facts['confluent_kafka']}"
    )


def main() -> int:
    parser = _parser()
    options = parser.parse_args()
    suite = CLUSTER if options.cluster else SECURED if options.secured else ONE_BROKER
    families = options.only or list(suite.families)
    if not suite.families.keys() >= set(families):
        parser.error(f"--only: choose from {', '.join(suite.families)}")
    if not options.kafka_only and not Path(Tidemill.command()).exists():
        say(f"{Tidemill.command()} is missing: install the package into the environment that runs this")
        return 2
    targets = _targets(options)
    if not targets:
        return 2
    scale = QUICK if options.quick else FULL
    scale = replace(scale, rounds=options.rounds or scale.rounds)
    facts, started_s = machine.facts(), time.monotonic()
    if warning := machine.busy_warning():
        say(warning)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(
        prefix="tidemill-bench-", dir=options.dir, ignore_cleanup_errors=True
    ) as scratch:
        run = Run(suite, targets, families, scale, Path(scratch))
        try:
            run.to_the_end()
            status = 1 if any(result.error is not None for result in run.results) else 0
        except KeyboardInterrupt:
            say("interrupted; what was measured so far:")
            status = 130
    verdicts = judge(run.results, "tidemill", "kafka")
    print(_headline(targets, facts) + "\n")
    print(report.document(run.results, verdicts, is_markdown=options.markdown))
    say(f"took {time.monotonic() - started_s:.0f} s")
    if options.json:
        about = {
            "machine": facts,
            "brokers": {target.name: target.version for target in targets},
            "scale": asdict(scale),
            "producer_settings": CLUSTER_PRODUCER_SETTINGS if options.cluster else PRODUCER_SETTINGS,
            "consumer_settings": CONSUMER_SETTINGS,
        }
        everything = about | report.as_json(run.results, verdicts)
        options.json.write_text(json.dumps(everything, indent=1, ensure_ascii=False) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
