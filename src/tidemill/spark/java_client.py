"""Options that change no result here, and the warning that says so.

A job that comes from Spark's own connector brings its tuning along. The source and the sink talk to brokers with a
client of their own, so the settings of Kafka's Java clients have nothing to tune. Such a job may also give the reader
the options of the writer, or the reverse; `catalog` knows both ends. The job runs, and each option is named once in the
log of the driver. A setting that would change which records are read or written is not here: the source and the sink
know it or refuse it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

logger = logging.getLogger("tidemill.spark")

_MEMBERSHIP = (
    "the source joins no consumer group; the option groupId shows a stream's progress in one",
    (
        "groupIdPrefix",
        "kafka.group.id",
        "kafka.group.instance.id",
        "kafka.group.protocol",
        "kafka.group.remote.assignor",
        "kafka.session.timeout.ms",
        "kafka.heartbeat.interval.ms",
        "kafka.partition.assignment.strategy",
        "kafka.auto.commit.interval.ms",
        "kafka.share.acknowledgement.mode",
        "kafka.share.acquire.mode",
    ),
)
_TUNING = (
    "it tunes Kafka's Java client, which is not used",
    (
        "kafka.fetch.max.wait.ms",
        "kafka.fetch.min.bytes",
        "kafka.max.poll.interval.ms",
        "kafka.max.poll.records",
        "kafka.check.crcs",
        "kafka.client.rack",
        "kafka.allow.auto.create.topics",
        "kafka.default.api.timeout.ms",
        "kafka.buffer.memory",
        "kafka.linger.ms",
        "kafka.max.block.ms",
        "kafka.max.in.flight.requests.per.connection",
        "kafka.retries",
        "kafka.compression.gzip.level",
        "kafka.compression.lz4.level",
        "kafka.compression.zstd.level",
        "kafka.metadata.max.idle.ms",
        "kafka.partitioner.adaptive.partitioning.enable",
        "kafka.partitioner.availability.timeout.ms",
        "kafka.auto.include.jmx.reporter",
        "kafka.client.dns.lookup",
        "kafka.connections.max.idle.ms",
        "kafka.enable.metrics.push",
        "kafka.metadata.max.age.ms",
        "kafka.metadata.recovery.rebootstrap.trigger.ms",
        "kafka.metadata.recovery.strategy",
        "kafka.metric.reporters",
        "kafka.metrics.num.samples",
        "kafka.metrics.recording.level",
        "kafka.metrics.sample.window.ms",
        "kafka.receive.buffer.bytes",
        "kafka.reconnect.backoff.max.ms",
        "kafka.reconnect.backoff.ms",
        "kafka.retry.backoff.max.ms",
        "kafka.retry.backoff.ms",
        "kafka.send.buffer.bytes",
        "kafka.socket.connection.setup.timeout.max.ms",
        "kafka.socket.connection.setup.timeout.ms",
    ),
)
# By name, with the reason.
NO_EFFECT = {name: reason for reason, names in (_MEMBERSHIP, _TUNING) for name in names}

_warned: set[str] = set()


def warn_of_no_effect(reasons: Mapping[str, str]) -> None:
    """Once for each name and reason: Spark makes the same source or sink several times in a process."""
    for name, reason in reasons.items():
        line = f"{name} has no effect: {reason}"
        if line not in _warned:
            _warned.add(line)
            logger.warning("%s", line)
