"""Celery and kombu on Tidemill: the transport `tidemill://` (extra `[celery]`).

Importing this package makes kombu know `tidemill://HOST:PORT//`. A durable queue is a topic with a share group; a
message is a record, locked for one worker until it is acknowledged. A transient queue (exclusive or auto-delete) has no
topic: it is a position in the stream of each exchange that it is bound to, so nothing is left of it.

| module | owns |
|---|---|
| `names.py` | which topics and groups queues and exchanges have: pure |
| `envelope.py` | a kombu message as a record, with its priority and the time at which it is due: pure |
| `routing.py` | exchanges and bindings, as a compacted topic has them: pure |
| `backend.py` | topics, groups, publishing and the table of bindings: blocking calls |
| `failures.py` | failures as the errors that kombu acts on |
| `inboxes.py` | messages that wait to be delivered to consumers, and the threads that fetch them |
| `channel.py` | kombu's channel |
| `transport.py` | kombu's transport: options, events, errors |
"""

from __future__ import annotations

from kombu.transport import TRANSPORT_ALIASES

from tidemill.celery.transport import Transport

__all__ = ["Transport"]

TRANSPORT_ALIASES["tidemill"] = "tidemill.celery:Transport"
