"""The exceptions of the SDK. Each message is one line: what happened, to which topic, and what to do.

    TidemillError
    └── ClientError
        ├── MissingExtra         confluent-kafka is not installed (an ImportError, too)
        ├── InvalidSetting       a setting or argument that is unknown or not allowed
        ├── Unreachable          no broker answered in time
        ├── UnknownTopic         the topic, or that partition of it, does not exist
        ├── TopicExists          it was to be created, and is there already
        ├── NotAuthorized        the broker does not let this client do that
        ├── DeliveryFailed       a record was not acknowledged
        │   └── QueueFull        there was no room for it
        ├── CommitFailed         offsets were not committed, for another reason than a rebalance
        ├── NotAssigned          another member of the group has the partition
        ├── TransactionFailed    a batch's transaction was aborted; its records are handed out again
        ├── Fenced               another instance has taken this one's place; only a new `consume` can go on
        ├── JobLost              the job's lock is gone; another worker has it, or will
        ├── JobSettled           the job was done, retried or failed before
        ├── Closed               used after its end
        └── ClaimError           a large payload that is not in the record (tidemill.claims.errors)

`code` is Kafka's error code where there is one. `is_retriable` says whether doing the same again may help.
"""

from __future__ import annotations

from tidemill.errors import ClientError as ClientError


class MissingExtra(ClientError, ImportError):
    """A package that the SDK needs is not installed."""


class InvalidSetting(ClientError, ValueError):
    """A setting or argument that is unknown or not allowed."""


class Unreachable(ClientError):
    """No broker answered in time."""


class UnknownTopic(ClientError):
    """The topic, or that partition of it, does not exist."""


class TopicExists(ClientError):
    """The topic was to be created, and is there already."""


class NotAuthorized(ClientError):
    """The broker does not let this client do that."""


class DeliveryFailed(ClientError):
    """A record was not acknowledged. It may be in the log all the same when the time was over before the answer came."""


class QueueFull(DeliveryFailed):
    """No room for another record came in time: the brokers are slower than the publisher."""


class CommitFailed(ClientError):
    """Offsets were not committed, for another reason than a rebalance."""


class NotAssigned(ClientError):
    """Another member of the group has the partition."""


class TransactionFailed(ClientError):
    """The batch's transaction was aborted: nothing of it counts, and its records are handed out again."""


class Fenced(ClientError):
    """Another instance has taken this one's place. Its transaction is aborted; only a new `consume` can go on."""


class JobLost(ClientError):
    """The job is no longer locked for this worker: another one has it, or will. What was done may be done again."""


class JobSettled(ClientError):
    """The job was done, retried or failed before."""


class Closed(ClientError):
    """Used after its end."""
