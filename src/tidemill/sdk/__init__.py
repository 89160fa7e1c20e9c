"""The Python SDK: `tidemill.Client` and `tidemill.AsyncClient`, thin over confluent-kafka.

It adds no protocol, so it works with any Kafka. Queues use `tidemill.client`, as no other Python client has share
groups whole. It adds rules that are hard to break by accident: every record has a delivery result, a batch is committed
when it is done, and nothing waits without end.

| module | owns |
|---|---|
| `client.py`, `async_client.py` | what users call; how each of them waits |
| `core.py` | what both share: topics, the one producer, the consumers that are open |
| `consuming/batches.py` | batches of records, and the iterator over them |
| `publishing/publisher.py` | one producer: delivery results, back pressure, failures whose results were not read |
| `publishing/async_publisher.py` | the same from an event loop |
| `consuming/reader.py` | one consumer: membership, what is read and what is done with it |
| `claims.py` | records whose payload is in an object store |
| `consuming/positions.py` | where it stands: seeking, pausing, lag |
| `consuming/guarantees.py` | when a batch's offsets are committed: at least once, at most once, exactly once |
| `consuming/retries.py` | what becomes of a record that failed: retried later, or a dead letter |
| `consuming/commits.py` | committing offsets, in bounded time |
| `publishing/transactions.py` | the transactional producer, and what each kind of its errors requires |
| `queues/queue.py` | queues: the member of a share group, iterators of jobs, their limits, shutdown |
| `queues/jobs.py` | what becomes of a job: done, retried, failed, its lock extended |
| `publishing/hot_keys.py` | spreading a key that is a large share of a topic |
| `settings.py` | the configuration of each librdkafka client, from what the user gave |
| `tokens.py` | bearer tokens, from a function or a file |
| `stopping.py` | SIGTERM as Ctrl-C, for programs that ask for it |
| `waiting.py` | calls of librdkafka that may take long: bounded, and open to Ctrl-C |
| `errors.py`, `kafka_errors.py` | what users catch, and how Kafka's errors become that |
"""
