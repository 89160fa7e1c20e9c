"""Connects a pipeline to the cluster: the options that all pipelines have, and what is checked before any job starts.

A missing topic, or a broker that does not answer, is reported before Spark plans anything. A topic that is written
to is created when it is missing, with as many partitions as the one that is read.
"""

from __future__ import annotations

import argparse
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence

from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.client.retry import UnknownTopic
from tidemill.spark.access import COMMAND_CONFIG, BrokerAccess, security_properties
from tidemill.spark.pipelines import Pipeline, PipelineError
from tidemill.spark.session import state_dir

FORMAT = "tidemill"
DEFAULT_TIMEOUT_S = 15.0
CLIENT_ID = "tidemill-pipeline"
_NAME_CHARS_MAX = 80


def connection_options(options: argparse.Namespace) -> dict[str, str]:
    """For `spark.read.format("tidemill").options(**…)` and the same of writers: the address, and security.

    Secrets stay in the user's file: what is an option of Spark is shown by Spark.
    """
    given: Mapping[str, str] = getattr(options, "kafka", None) or {}
    file = getattr(options, "security_file", None)
    return {
        "kafka.bootstrap.servers": options.bootstrap,
        **{f"kafka.{key}": value for key, value in given.items()},
        **({COMMAND_CONFIG: str(file)} if file is not None else {}),
    }


def open_cluster(options: argparse.Namespace) -> Cluster:
    """Use as a context manager."""
    given = connection_options(options)
    return BrokerAccess(
        options.bootstrap,
        client_id=CLIENT_ID,
        timeout_s=getattr(options, "timeout", DEFAULT_TIMEOUT_S),
        security=security_properties(given),
        config_file=given.get(COMMAND_CONFIG),
    ).cluster()


def require_topics(cluster: Cluster, topics: Iterable[str]) -> dict[str, int]:
    """Returns the number of partitions of each topic; one that is missing is an error."""
    counts = {}
    for topic in topics:
        try:
            counts[topic] = len(Admin(cluster).topic(topic).partitions)
        except UnknownTopic:
            raise PipelineError(
                f"there is no topic {topic}; `tidemill topics list` shows which there are"
            ) from None
    return counts


def ensure_topic(cluster: Cluster, topic: str, *, partition_count: int) -> bool:
    """Whether it had to be created."""
    admin = Admin(cluster)
    if admin.existing_topics([topic]):
        return False
    admin.create_topic(topic, partition_count=partition_count)
    return True


def add_checkpoint_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint",
        metavar="DIR",
        help="where the query keeps its progress, a path or URL that all executors reach "
        "(default: a directory of the user's state, named after the pipeline, the cluster and the topics)",
    )


def checkpoint_dir(options: argparse.Namespace, cluster: Cluster, name: str, topics: Iterable[str]) -> str:
    """Returns --checkpoint, or always the same directory for the same pipeline, cluster and topics."""
    if getattr(options, "checkpoint", None):
        return str(options.checkpoint)
    cluster_id = Admin(cluster).describe_cluster().cluster_id
    words = [name, *topics]
    digest = hashlib.sha256("\0".join([cluster_id, *words]).encode()).hexdigest()[:12]
    readable = re.sub(r"[^A-Za-z0-9._-]+", "_", "-".join(words))[:_NAME_CHARS_MAX]
    return str(state_dir() / "checkpoints" / f"{readable}-{digest}")


def parse_words(
    pipeline: Pipeline | None,
    parser: argparse.ArgumentParser,
    words: Sequence[str],
    options: argparse.Namespace | None = None,
) -> argparse.Namespace:
    """Parsed into `options`; a pipeline that knows its options only in a session gets the rest as `later_words`."""
    parsed, rest = parser.parse_known_args(list(words), options or argparse.Namespace())
    if rest and not getattr(pipeline, "has_later_options", False):
        message = f"unrecognized arguments: {' '.join(rest)}"
        if parser.exit_on_error:
            parser.error(message)
        raise PipelineError(f"{parser.prog}: {message}")
    parsed.later_words = rest
    return parsed


def options_of(pipeline: Pipeline, words: Sequence[str], *, bootstrap: str) -> argparse.Namespace:
    """The options that `tidemill pipeline run` would parse, for pipelines that run in a session of the caller."""
    parser = argparse.ArgumentParser(prog=pipeline.NAME, exit_on_error=False)
    pipeline.add_arguments(parser)
    try:
        options = parse_words(pipeline, parser, words)
    except argparse.ArgumentError as error:
        raise PipelineError(str(error)) from None
    options.bootstrap, options.timeout, options.kafka = bootstrap, DEFAULT_TIMEOUT_S, {}
    return options
