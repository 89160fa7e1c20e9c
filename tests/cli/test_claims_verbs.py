"""`tidemill claims`, and the options of `produce` and `consume`: payloads in a folder, and what the sweep keeps."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.brokers import eventually
from tests.cli.conftest import Run
from tidemill.claims.claim import Claim
from tidemill.claims.large_payloads import LargePayloads
from tidemill.claims.sweep import GRACE_MS
from tidemill.client.admin.claims import Sweeper
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.client.producing.producer import Producer
from tidemill.objects.folder import FolderStore
from tidemill.protocol.records import Header
from tidemill.types import TopicPartition

Objects = Callable[[], set[bytes]]

LONG_AGO_MS = 1_700_000_000_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    root.mkdir()
    return root


@pytest.fixture
def put(root: Path, topic: str) -> Callable[..., Claim]:
    """Puts a payload into the store as if that had been long ago."""

    def put(payload: bytes, wall_ms: int = LONG_AGO_MS, topic: str = topic) -> Claim:
        claim = LargePayloads(str(root), wall_ms=lambda: wall_ms).put(topic, payload)
        os.utime(claim.uri.removeprefix("file://"), (wall_ms / 1000, wall_ms / 1000))
        return claim

    return put


@pytest.fixture
def refer(cluster: Cluster) -> Callable[..., None]:
    def refer(topic: str, claim: Claim, *extra: Header) -> None:
        producer = Producer(cluster)
        producer.add(topic, b"", key=b"k", headers=[*(Header(*each) for each in claim.headers()), *extra])
        producer.flush()

    return refer


@pytest.fixture
def objects(root: Path) -> Objects:
    def objects() -> set[bytes]:
        return {path.read_bytes() for path in root.rglob("*/*") if path.is_file()}

    return objects


@pytest.fixture
def scans(cluster: Cluster, topic: str) -> str:
    admin = Admin(cluster)
    admin.create_topic(topic, configs={"min.cleanable.dirty.ratio": "0.01"})
    return topic


def swept(result: Any) -> list[str]:
    return [each["key"].rsplit("/", 1)[1] for each in result.json["objects"]]


def test_produced_value_above_the_threshold_is_consumed_from_the_store(
    cli: Run, scans: str, root: Path
) -> None:
    store = ("--large-payloads", str(root))
    cli("produce", scans, *store, "--threshold", "10", "--key", "k", "small", "a larger value").check()
    assert (
        cli("consume", scans, *store, "--format", "{key}={value} {headers}\n").ok
        == "k=small \nk=a larger value \n"
    )
    (listed,) = cli("claims", "list", scans, "--json").json
    assert (listed["topic"], listed["partition"], listed["offset"], listed["size"]) == (scans, 0, 1, 14)
    raw = cli("consume", scans, "--format", "{value}\n")
    assert raw.out == f"small\n(a claim: the payload of 14 bytes is at {listed['uri']})\n"
    assert raw.err == "payloads of this topic are in an object store; --large-payloads STORE prints them\n"
    # The JSON of a record can be produced again: it stays a claim.
    copied = json.loads(cli("consume", scans, "--json").out.splitlines()[1])
    assert (copied["value"], len(copied["headers"])) == ("", 3)
    assert cli("claims", "list", scans).ok.startswith("TOPIC")
    assert cli("claims", "verify", scans, "--store", str(root), "--full").ok == (
        f"1 claim of {scans} checked, 0 problems found\n"
    )


def test_claims_of_a_store_under_another_name_are_read_with_an_alias(
    cli: Run, scans: str, root: Path
) -> None:
    cli("produce", scans, "--large-payloads", str(root), "--threshold", "3", "payload").check()
    mounted = root.rename(root.parent / "mounted here")
    consume = ("consume", scans, "--large-payloads", str(mounted))
    assert "--store-alias" in cli(*consume).error
    alias = ("--store-alias", root.as_uri())
    assert cli(*consume, *alias).ok == "payload\n"
    verify = ("claims", "verify", scans, "--store", str(mounted))
    assert cli(*verify).code == 1
    assert cli(*verify, *alias).code == 0


def test_dead_letter_with_a_claim_says_where_its_payload_is(
    cli: Run, scans: str, put: Callable[..., Claim], refer: Callable[..., None]
) -> None:
    claim = put(b"x" * 100)
    refer(scans, claim)
    shown = cli("dead-letters", "show", scans, "--offset", "0").ok
    assert f"value: (a claim: the payload of 100 bytes is at {claim.uri})\n" in shown
    broken = Claim("s3://elsewhere", 5, "no hash")
    refer(scans, broken)
    shown = cli("dead-letters", "show", scans, "--offset", "1").ok
    assert f"value: (a claim that cannot be resolved: {scans}-0 at offset 1: " in shown


def test_verify_names_missing_torn_and_forged_claims_and_fails(
    cli: Run, scans: str, root: Path, put: Callable[..., Claim], refer: Callable[..., None]
) -> None:
    gone, torn = put(b"gone"), put(b"torn")
    for claim in (gone, torn, Claim("https://evil.example/x", 1, gone.sha256)):
        refer(scans, claim)
    Path(gone.uri.removeprefix("file://")).unlink()
    Path(torn.uri.removeprefix("file://")).write_bytes(b"TORN")
    quick = cli("claims", "verify", scans, "--store", str(root), "--json")
    assert quick.code == 1
    assert '"ClaimMissing"' in quick.out
    assert '"ClaimCorrupt"' not in quick.out
    full = cli("claims", "verify", scans, "--store", str(root), "--full")
    assert full.code == 1
    for error in ("ClaimMissing", "ClaimCorrupt", "ClaimForged"):
        assert f"{error}: {scans}-0 at offset" in full.err
    consumed = cli("consume", scans, "--large-payloads", str(root))
    assert consumed.error.startswith(f"tidemill consume: {scans}-0 at offset 0: ")
    root.rename(root.parent / "unmounted")
    down = cli("claims", "verify", scans, "--store", str(root))
    assert down.code == 1
    assert "no such folder" in down.err.splitlines()[-1]


def test_sweep_shows_what_it_would_remove_and_removes_it_with_delete(
    cli: Run,
    scans: str,
    root: Path,
    put: Callable[..., Claim],
    refer: Callable[..., None],
    objects: Objects,
) -> None:
    refer(scans, put(b"referred to"))
    unused = put(b"unused")
    put(b"of a deleted topic", topic="no-such-topic")
    LargePayloads(str(root)).put(scans, b"just now, and its record comes in a moment")
    dry = cli("claims", "sweep", "--store", str(root), "--json")
    assert swept(dry) == [unused.sha256]
    assert dry.json["kept"] == {"in grace": 1, "unknown topic": 1, "foreign": 0, "referred to": 1}
    assert len(objects()) == 4
    assert swept(cli("claims", "sweep", "--store", str(root), "--delete", "--json")) == [unused.sha256]
    assert b"unused" not in objects()
    assert len(objects()) == 3
    text = cli("claims", "sweep", "--store", str(root), "--delete", "--deleted-topics", "--yes")
    assert "1 object (18 B) removed" in text.err
    assert b"of a deleted topic" not in objects()
    assert len(objects()) == 2


def test_sweep_removes_objects_whose_records_retention_removed(
    cli: Run, cluster: Cluster, scans: str, root: Path, put: Callable[..., Claim], refer: Callable[..., None]
) -> None:
    old, new = put(b"old"), put(b"new")
    refer(scans, old)
    refer(scans, new)
    assert swept(cli("claims", "sweep", "--store", str(root), "--json")) == []
    Admin(cluster).delete_records({TopicPartition(scans, 0): 1})
    assert swept(cli("claims", "sweep", "--store", str(root), "--delete", "--json")) == [old.sha256]
    assert Path(new.uri.removeprefix("file://")).exists()


def test_sweep_keeps_objects_that_another_topic_a_delayed_record_or_an_open_transaction_refers_to(
    cli: Run,
    cluster: Cluster,
    target: Any,
    scans: str,
    root: Path,
    put: Callable[..., Claim],
    refer: Callable[..., None],
) -> None:
    import confluent_kafka

    admin = Admin(cluster)
    admin.create_topic(f"{scans}-copy")
    admin.create_topic(f"{scans}-later", configs={"tidemill.delays.enable": "true"})
    refer(f"{scans}-copy", put(b"copied"))
    refer(f"{scans}-later", put(b"hidden"), Header("tidemill-delay", b"2h"))
    producer = confluent_kafka.Producer({"bootstrap.servers": target.bootstrap, "transactional.id": scans})
    producer.init_transactions()
    for payload, is_aborted in ((b"aborted", True), (b"open", False)):
        producer.begin_transaction()
        producer.produce(scans, b"", headers=[*put(payload).headers()])
        producer.flush()
        if is_aborted:
            producer.abort_transaction()
    unused = put(b"unused")
    assert swept(cli("claims", "sweep", "--store", str(root), "--delete", "--json")) == [unused.sha256]
    producer.abort_transaction()


def test_sweep_reads_a_topic_that_was_made_anew_before_the_removal_from_its_beginning(
    cluster: Cluster, scans: str, root: Path, put: Callable[..., Claim], refer: Callable[..., None]
) -> None:
    """A confirmation may take long. Copies of the topic's records come back with the topic meanwhile."""
    kept, unused = put(b"kept"), put(b"unused")
    for _ in range(3):
        refer(scans, put(b"other"))
    sweeper = Sweeper(cluster, FolderStore(root), int(time.time() * 1000), GRACE_MS, deleted_topics=False)
    assert len(sweeper.examine().removable) == 2
    admin = Admin(cluster)
    admin.delete_topic(scans)
    eventually(lambda: scans not in [each.name for each in admin.topics()], "the end of the topic")
    admin.create_topic(scans)
    refer(scans, kept)
    for _ in range(3):
        refer(scans, put(b"other"))
    assert [each.key.rpartition("/")[2] for each in sweeper.remove()] == [unused.sha256]


def test_sweep_reads_sources_of_views_and_not_the_views(
    cli: Run, scans: str, root: Path, put: Callable[..., Claim], refer: Callable[..., None]
) -> None:
    cli("views", "create", f"{scans}-view", "--from", scans, "--where", "region = 'eu'").check()
    refer(scans, put(b"not in the view"))
    assert swept(cli("claims", "sweep", "--store", str(root), "--delete", "--json")) == []


def test_sweep_of_a_store_that_another_cluster_sweeps_is_refused(
    cli: Run, scans: str, root: Path, put: Callable[..., Claim], objects: Objects
) -> None:
    put(b"theirs")
    (root / "tidemill-cluster-id").write_text("another cluster")
    assert (
        "is swept by the cluster another cluster"
        in cli("claims", "sweep", "--store", str(root), "--delete").error
    )
    assert b"theirs" in objects()


def test_sweep_without_its_store_or_with_a_strange_grace_says_so(cli: Run, tmp_path: Path) -> None:
    assert "no such folder" in cli("claims", "sweep", "--store", str(tmp_path / "down")).error
    assert cli("claims", "sweep", "--store", str(tmp_path), "--grace", "soon").code == 2
