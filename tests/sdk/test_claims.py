"""Large payloads through `Client` and `AsyncClient`: in the store, not in the log, and back as if nothing had been."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from tests.brokers import eventually
from tidemill import AsyncClient, Client, Job, LargePayloads, Queue, Record, to_json
from tidemill.claims.claim import Claim
from tidemill.claims.errors import (
    ClaimCorrupt,
    ClaimForged,
    ClaimInvalid,
    ClaimMissing,
    ClaimStoreDown,
    ClaimTooLarge,
    ClaimUnresolved,
    PayloadUnreadable,
)
from tidemill.sdk.claims import ClaimedRecord
from tidemill.sdk.errors import InvalidSetting
from tidemill.testing import InProcessBroker

LARGE = b"large " * 50


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    root.mkdir()
    return root


@pytest.fixture
def large(root: Path) -> LargePayloads:
    return LargePayloads(str(root), threshold_bytes=100, limit_bytes=1000)


@pytest.fixture
def client(shared: InProcessBroker, large: LargePayloads) -> Iterator[Client]:
    with Client(shared.bootstrap, timeout_s=20, fetch_wait_max_ms=50, large_payloads=large) as client:
        yield client


def read(client: Client, topic: str, group: str = "g") -> list[Record]:
    with client.consume(topic, group=f"{topic}-{group}", idle_timeout_s=0.1) as batches:
        return [record for batch in batches for record in batch]


def raw(shared: InProcessBroker, topic: str) -> list[Record]:
    with Client(shared.bootstrap, timeout_s=20, fetch_wait_max_ms=50) as client:
        return read(client, topic, "raw")


def claim_of(record: Record) -> Claim:
    assert isinstance(record, ClaimedRecord)
    assert record.claim is not None
    return record.claim


def test_large_value_is_in_the_store_and_comes_back_with_key_headers_and_timestamp(
    client: Client, shared: InProcessBroker, topic: str, root: Path
) -> None:
    client.publish(topic, LARGE, key="k", headers={"trace": "1"}, timestamp_ms=1_700_000_000_000).result()
    (record,) = read(client, topic)
    assert (record.value, record.text()) == (LARGE, LARGE.decode())
    assert (record.key, record.headers, record.timestamp_ms) == (b"k", (("trace", b"1"),), 1_700_000_000_000)
    (stored,) = [path for path in root.rglob("*") if path.is_file()]
    assert stored.read_bytes() == LARGE
    assert stored.relative_to(root).parts[0] == topic
    assert [name for name, _ in raw(shared, topic)[0].headers] == [
        "trace",
        "tidemill-claim-uri",
        "tidemill-claim-size",
        "tidemill-claim-sha256",
    ]


def test_small_values_tombstones_and_empty_values_stay_in_the_log(
    client: Client, shared: InProcessBroker, topic: str, root: Path
) -> None:
    for value in (b"small", b"x" * 100, None, b""):
        client.publish(topic, value, key="k")
    client.flush()
    assert [record.value for record in read(client, topic)] == [b"small", b"x" * 100, None, b""]
    assert [record.value for record in raw(shared, topic)] == [b"small", b"x" * 100, None, b""]
    assert list(root.iterdir()) == []


def test_size_counts_after_the_serializer(client: Client, topic: str, root: Path) -> None:
    client.publish(topic, ["x"] * 100, serializer=to_json).result()
    (record,) = read(client, topic)
    assert isinstance(record, ClaimedRecord)
    assert record.json() == ["x"] * 100


def test_order_of_large_and_small_records_is_kept(client: Client, topic: str) -> None:
    values = [(b"%03d" % number) * (1 if number % 3 else 40) for number in range(60)]
    client.publish_many(topic, values)
    assert [record.value for record in read(client, topic)] == values


def test_tombstone_with_claim_headers_of_another_record_is_a_tombstone(client: Client, topic: str) -> None:
    claim = Claim(f"https://evil.example/t/2026-11-17/{'ab' * 32}", 5, "ab" * 32)
    client.publish(topic, None, key="k", headers=claim.headers()).result()
    (record,) = read(client, topic)
    assert record.value is None


def test_claim_without_a_store_is_unresolved_not_empty(
    client: Client, shared: InProcessBroker, topic: str
) -> None:
    client.publish(topic, LARGE, key="k").result()
    (record,) = raw(shared, topic)
    assert record.key == b"k"
    with pytest.raises(
        ClaimUnresolved, match=rf"{topic}-0 at offset 0: the payload of 300 bytes .* large_payloads"
    ):
        _ = record.value
    with pytest.raises(ClaimUnresolved):
        record.text()


def test_relayed_claim_stays_a_claim(client: Client, shared: InProcessBroker, topic: str, name: str) -> None:
    shared.create_topic(f"{name}-copy")
    client.publish(topic, LARGE).result()
    (record,) = raw(shared, topic)
    client.publish(f"{name}-copy", b"", headers=record.headers).result()
    assert [each.value for each in read(client, f"{name}-copy")] == [LARGE]


def test_large_value_with_claim_headers_is_refused(client: Client, topic: str) -> None:
    with pytest.raises(InvalidSetting, match="tidemill-claim-size is for claims"):
        client.publish(topic, LARGE, headers={"tidemill-claim-size": "5"})


def test_missing_forged_corrupt_and_invalid_claims_raise_at_their_record_and_others_are_read(
    client: Client, shared: InProcessBroker, topic: str, root: Path, large: LargePayloads
) -> None:
    gone, torn = large.put(topic, b"gone" * 50), large.put(topic, b"torn" * 50)
    good = large.put(topic, LARGE)
    Path(gone.uri.removeprefix("file://")).unlink()
    Path(torn.uri.removeprefix("file://")).write_bytes(b"TORN" * 50)
    claims: list[list[tuple[str, str | bytes | None]]] = [
        [*gone.headers()],
        [*torn.headers()],
        [*Claim(f"file:///etc/{gone.uri[-80:]}", gone.size, gone.sha256).headers()],
        [*good.headers(), *good.headers()],
        [*Claim(good.uri, 5 * 1024**3, good.sha256).headers()],
        [*good.headers()],
    ]
    producer = confluent_kafka.Producer({"bootstrap.servers": shared.bootstrap})
    for headers in claims:
        producer.produce(topic, b"", headers=headers)
    producer.flush()
    records = read(client, topic)
    for record, error in zip(
        records, (ClaimMissing, ClaimCorrupt, ClaimForged, ClaimInvalid, ClaimTooLarge), strict=False
    ):
        with pytest.raises(error, match=rf"^{topic}-0 at offset {record.offset}: "):
            _ = record.value
    assert records[-1].value == LARGE
    assert len(records) == 6


def test_store_down_at_publish_raises_and_no_record_is_sent(
    client: Client, topic: str, root: Path, tmp_path: Path
) -> None:
    root.rename(tmp_path / "unmounted")
    with pytest.raises(ClaimStoreDown, match="its record not sent"):
        client.publish(topic, LARGE)
    client.publish(topic, b"small").result()
    (tmp_path / "unmounted").rename(root)
    client.publish(topic, LARGE).result()
    assert [record.value for record in read(client, topic)] == [b"small", LARGE]


def test_batch_with_a_store_that_is_down_is_not_committed_and_comes_again(
    client: Client, topic: str, root: Path, tmp_path: Path
) -> None:
    client.publish(topic, LARGE).result()
    root.rename(tmp_path / "unmounted")

    def consume() -> list[bytes | None]:
        with client.consume(topic, group=f"{topic}-again", idle_timeout_s=0.1) as batches:
            return [record.value for batch in batches for record in batch]

    with pytest.raises(ClaimStoreDown, match="try again later"):
        consume()
    (tmp_path / "unmounted").rename(root)
    assert consume() == [LARGE]
    assert consume() == []


def test_payloads_beyond_the_prefetch_are_read_when_they_are_used(
    shared: InProcessBroker, topic: str, root: Path
) -> None:
    lazy = LargePayloads(str(root), threshold_bytes=100, prefetch_bytes=0)
    one = LargePayloads(str(root), threshold_bytes=100, prefetch_bytes=len(LARGE))
    with Client(shared.bootstrap, large_payloads=lazy) as client:
        client.publish_many(topic, [LARGE, b"2" + LARGE])
        lazily = read(client, topic, "lazy")
        assert [record.value for record in lazily] == [LARGE, b"2" + LARGE]
    with Client(shared.bootstrap, large_payloads=one) as client:
        ahead = read(client, topic, "one")
    for path in root.rglob("*"):
        if path.is_file():
            path.unlink()
    assert ahead[0].value == LARGE
    for record in (*lazily, ahead[1]):
        with pytest.raises(ClaimMissing):
            _ = record.value


def test_claim_that_fails_is_retried_and_becomes_a_dead_letter_as_a_claim(
    client: Client, shared: InProcessBroker, topic: str, name: str, root: Path
) -> None:
    shared.create_topic(f"{name}-dead")
    client.publish(topic, LARGE, key="k", headers={"trace": "1"}).result()
    (path,) = [path for path in root.rglob("*") if path.is_file()]
    path.rename(root.parent / "aside")
    with client.consume(
        topic, group=name, retries=0, dead_letters=f"{name}-dead", idle_timeout_s=0.1
    ) as batches:
        for batch in batches:
            for record in batch:
                try:
                    _ = record.value
                except ClaimMissing as error:
                    batch.fail(record, error)
    (root.parent / "aside").rename(path)
    (letter,) = read(client, f"{name}-dead")
    assert (letter.key, letter.value, letter.header("trace")) == (b"k", LARGE, b"1")


def test_payload_above_the_limit_is_read_in_chunks(client: Client, topic: str) -> None:
    client.publish(topic, b"x" * 2000).result()
    (record,) = read(client, topic)
    assert isinstance(record, ClaimedRecord)
    with pytest.raises(ClaimTooLarge, match="2000 bytes, and 1000 are allowed"):
        _ = record.value
    assert b"".join(record.chunks()) == b"x" * 2000


def test_file_and_iterator_are_published_piece_by_piece_and_saved_to_a_file(
    client: Client, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "scan").write_bytes(b"f" * 3000)
    with (tmp_path / "scan").open("rb") as file:
        client.publish(topic, file, key="file").result()
    client.publish(topic, (b"i" * 1000 for _ in range(3)), key="iterator").result()
    client.publish(topic, iter([b"small"]), key="small").result()
    for record in read(client, topic):
        saved = tmp_path / f"{record.key!r}"
        assert record.save(saved) == saved.stat().st_size
    assert (tmp_path / "b'file'").read_bytes() == b"f" * 3000
    assert (tmp_path / "b'iterator'").read_bytes() == b"i" * 3000
    assert (tmp_path / "b'small'").read_bytes() == b"small"


def test_payload_with_a_wrong_hash_is_not_saved(
    client: Client, topic: str, root: Path, tmp_path: Path
) -> None:
    client.publish(topic, b"x" * 2000).result()
    (record,) = read(client, topic)
    (stored,) = (path for path in root.rglob("*") if path.is_file())
    stored.write_bytes(b"y" * 2000)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "scan").write_bytes(b"what was there")
    with pytest.raises(ClaimCorrupt):
        record.save(tmp_path / "out" / "scan")
    assert [path.read_bytes() for path in (tmp_path / "out").iterdir()] == [b"what was there"]


def test_stream_without_a_store_is_refused(shared: InProcessBroker, topic: str) -> None:
    with (
        Client(shared.bootstrap, timeout_s=20) as client,
        pytest.raises(InvalidSetting, match="read into an object store; give the client one"),
    ):
        client.publish(topic, iter([b"x"]))


async def test_async_client_publishes_a_stream_and_names_one_that_fails(
    shared: InProcessBroker, topic: str, root: Path
) -> None:
    def torn() -> Iterator[bytes]:
        yield b"x" * 200
        raise OSError("the camera is gone")

    large = LargePayloads(str(root), threshold_bytes=100)
    async with AsyncClient(shared.bootstrap, timeout_s=20, large_payloads=large) as client:
        failed = client.publish(topic, torn())
        published = client.publish(topic, iter([b"x" * 200]))
        with pytest.raises(PayloadUnreadable, match="the camera is gone"):
            await failed
        assert (await published).offset == 0


def test_claimed_record_survives_pickle_with_its_payload(client: Client, topic: str) -> None:
    client.publish(topic, LARGE, key="k").result()
    (record,) = read(client, topic)
    copy = pickle.loads(pickle.dumps(record))
    assert (copy.value, copy.key, copy.offset) == (LARGE, b"k", 0)
    assert claim_of(record).size == len(LARGE)
    assert "ClaimedRecord" in repr(record)


def test_exactly_once_results_may_be_large(
    client: Client, shared: InProcessBroker, topic: str, name: str
) -> None:
    shared.create_topic(f"{name}-out")
    client.publish(topic, LARGE).result()
    with client.consume(topic, group=name, guarantee="exactly-once", idle_timeout_s=0.1) as batches:
        for batch in batches:
            for record in batch:
                batch.publish(f"{name}-out", record.text().upper())
    assert [record.value for record in read(client, f"{name}-out")] == [LARGE.upper()]


async def test_async_client_keeps_order_and_resolves(shared: InProcessBroker, topic: str, root: Path) -> None:
    large = LargePayloads(str(root), threshold_bytes=100)
    values = [(b"%03d" % number) * (1 if number % 3 else 40) for number in range(30)]
    async with AsyncClient(
        shared.bootstrap, timeout_s=20, fetch_wait_max_ms=50, large_payloads=large
    ) as client:
        await client.publish_many(topic, values)
        async with client.consume(topic, group=topic, idle_timeout_s=0.1) as batches:
            assert [record.value async for batch in batches for record in batch] == values


async def test_async_publish_fails_when_the_store_is_down(
    shared: InProcessBroker, topic: str, tmp_path: Path
) -> None:
    async with AsyncClient(shared.bootstrap, large_payloads=str(tmp_path / "not-mounted")) as client:
        with pytest.raises(ClaimStoreDown):
            await client.publish(topic, b"x" * 600_000)
        assert (await client.publish(topic, b"small")).offset == 0


# --- queues ---


def job_of(queue: Queue) -> Job:
    found: list[Job] = []

    def has_job() -> bool:
        found.extend(job for job in [queue.get(0.5)] if job is not None)
        return bool(found)

    eventually(has_job, "a job")
    return found[0]


def test_job_has_the_payload_of_its_claim(client: Client, topic: str) -> None:
    client.publish(topic, LARGE, headers={"trace": "1"}).result()
    with client.queue(topic, group=f"{topic}-workers") as queue:
        job = job_of(queue)
        assert (job.value, job.text(), job.record.headers) == (LARGE, LARGE.decode(), (("trace", b"1"),))
        job.done()


def test_job_that_fails_stays_a_claim_in_its_dead_letter(
    client: Client, shared: InProcessBroker, topic: str, root: Path
) -> None:
    dead = f"{topic[:200]}-dlq"
    client.create_topic(dead)
    client.publish(topic, LARGE).result()
    with client.queue(topic, group=f"{topic}-workers", dead_letters=dead) as queue:
        job_of(queue).fail("no")
    (letter,) = raw(shared, dead)
    assert claim_of(letter).size == len(LARGE)
    (resolved,) = read(client, dead)
    assert resolved.value == LARGE
    # It was not stored a second time.
    assert len([path for path in root.rglob("*") if path.is_file()]) == 1


def test_job_whose_payload_is_missing_raises_where_its_value_is_used(
    client: Client, topic: str, root: Path
) -> None:
    client.publish(topic, LARGE).result()
    for path in root.rglob("*"):
        if path.is_file():
            path.unlink()
    with client.queue(topic, group=f"{topic}-workers") as queue:
        job = job_of(queue)
        with pytest.raises(ClaimMissing):
            job.text()
        job.fail("the payload is missing")


async def test_async_job_has_the_payload_of_its_claim(
    shared: InProcessBroker, large: LargePayloads, topic: str
) -> None:
    async with AsyncClient(shared.bootstrap, timeout_s=20, large_payloads=large) as client:
        await client.publish(topic, LARGE)
        async with client.queue(topic, group=f"{topic}-workers") as queue:
            async for job in queue:
                assert job.value == LARGE
                await job.done()
                break
