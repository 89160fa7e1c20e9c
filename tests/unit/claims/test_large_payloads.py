"""Payloads go to a store and come back verified; everything that is wrong with a claim has a name."""

from __future__ import annotations

import hashlib
import io
import tracemalloc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tidemill.claims.claim import Claim, Place
from tidemill.claims.errors import (
    ClaimCorrupt,
    ClaimError,
    ClaimForged,
    ClaimMissing,
    ClaimStoreDown,
    ClaimTooLarge,
    PayloadUnreadable,
)
from tidemill.claims.large_payloads import LargePayloads
from tidemill.errors import ConfigError
from tidemill.objects.folder import FolderStore
from tidemill.objects.store import ObjectInfo, OpenObject

PLACE = Place("orders", 3, 17)
NOON_MS = 1_700_006_400_000 - 12 * 3_600_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    root.mkdir()
    return root


@pytest.fixture
def large(root: Path) -> LargePayloads:
    return LargePayloads(str(root), threshold_bytes=10, limit_bytes=1000, wall_ms=lambda: NOON_MS)


def file_of(root: Path, claim: Claim) -> Path:
    return Path(claim.uri.removeprefix("file://"))


def test_payload_comes_back_from_its_claim(large: LargePayloads, root: Path) -> None:
    payload = bytes(range(256)) * 3
    claim = large.put("orders", payload)
    sha256 = hashlib.sha256(payload).hexdigest()
    assert claim == Claim(f"file://{root}/orders/2023-11-14/{sha256}", 768, sha256)
    assert large.read(claim, PLACE) == payload
    assert b"".join(large.chunks(claim, PLACE)) == payload
    large.check_exists(claim, PLACE)


def test_same_payload_of_the_same_day_is_stored_once(large: LargePayloads, root: Path) -> None:
    assert large.put("orders", b"x" * 20) == large.put("orders", b"x" * 20)
    assert len(list(large.store.list())) == 1


def test_payload_whose_object_was_cut_off_is_not_claimed_again(large: LargePayloads, root: Path) -> None:
    """A record that refers to such an object would lose its payload, which the producer still has."""
    file_of(root, large.put("orders", b"x" * 20)).write_bytes(b"x" * 19)
    for payload in (b"x" * 20, io.BytesIO(b"x" * 20)):
        with pytest.raises(ClaimCorrupt, match="with 19 bytes instead of 20, and the record was not sent"):
            large.put("orders", payload) if isinstance(payload, bytes) else large.put_stream(
                "orders", payload
            )
    assert large.counts.failed == 2


def test_values_above_the_threshold_are_large_and_others_are_not(large: LargePayloads) -> None:
    assert [large.is_large(value) for value in (None, b"", b"x" * 10, b"x" * 11)] == [
        False,
        False,
        False,
        True,
    ]


def test_missing_object_names_the_record_and_the_retention_of_the_store(
    large: LargePayloads, root: Path
) -> None:
    claim = large.put("orders", b"x" * 20)
    file_of(root, claim).unlink()
    for call in (large.read, large.check_exists):
        with pytest.raises(
            ClaimMissing, match=r"orders-3 at offset 17: .*is gone.*keep objects for as long"
        ) as caught:
            call(claim, PLACE)
        assert not caught.value.is_retriable


def test_object_with_other_content_of_the_same_size_is_corrupt(large: LargePayloads, root: Path) -> None:
    claim = large.put("orders", b"x" * 20)
    file_of(root, claim).write_bytes(b"y" * 20)
    with pytest.raises(ClaimCorrupt, match=r"orders-3 at offset 17: .*SHA-256"):
        large.read(claim, PLACE)


@pytest.mark.parametrize("size", [0, 19, 21, 100_000])
def test_object_of_another_size_is_corrupt(large: LargePayloads, root: Path, size: int) -> None:
    claim = large.put("orders", b"x" * 20)
    file_of(root, claim).write_bytes(b"x" * size)
    for call in (large.read, large.check_exists):
        with pytest.raises(ClaimCorrupt, match=f"has {size} bytes, and the claim says 20"):
            call(claim, PLACE)


def test_object_behind_a_symbolic_link_is_forged(large: LargePayloads, root: Path, tmp_path: Path) -> None:
    claim = large.put("orders", b"x" * 20)
    place = file_of(root, claim)
    place.rename(tmp_path / "moved")
    place.symlink_to(tmp_path / "moved")
    with pytest.raises(ClaimForged, match="nothing was fetched"):
        large.read(claim, PLACE)


def test_claim_of_an_alias_is_read_from_the_store(root: Path) -> None:
    claim = LargePayloads(str(root)).put("orders", b"x" * 20)
    elsewhere = Claim(claim.uri.replace(f"file://{root}", "file:///mnt/shared"), claim.size, claim.sha256)
    with pytest.raises(ClaimForged):
        LargePayloads(str(root)).read(elsewhere, PLACE)
    assert LargePayloads(str(root), aliases=["file:///mnt/shared/"]).read(elsewhere, PLACE) == b"x" * 20


def test_store_that_is_down_is_retriable_at_put_and_at_read(
    large: LargePayloads, root: Path, tmp_path: Path
) -> None:
    claim = large.put("orders", b"x" * 20)
    root.rename(tmp_path / "unmounted")
    with pytest.raises(
        ClaimStoreDown, match=r"publish to orders: .*not stored, and its record not sent"
    ) as at_put:
        large.put("orders", b"y" * 20)
    with pytest.raises(ClaimStoreDown, match=r"orders-3 at offset 17: .*try again later") as at_read:
        large.read(claim, PLACE)
    assert at_put.value.is_retriable
    assert at_read.value.is_retriable
    (tmp_path / "unmounted").rename(root)
    assert large.read(claim, PLACE) == b"x" * 20


class CountingStore:
    """A store with one object that is as large as it says, and made while it is read."""

    uri = "test://store"

    def __init__(self, size: int, real_size: int) -> None:
        self.announced = size
        self.real_size = real_size
        self.requests = 0
        self.given = 0

    def put_if_absent(self, key: str, chunks: Iterable[bytes]) -> bool:
        raise NotImplementedError

    def size(self, key: str) -> int:
        self.requests += 1
        return self.announced

    @contextmanager
    def open(self, key: str) -> Iterator[OpenObject]:
        self.requests += 1
        yield OpenObject(self.announced, self._chunks())

    def _chunks(self) -> Iterator[bytes]:
        while self.given < self.real_size:
            self.given += 1024
            yield bytes(1024)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return iter(())

    def delete(self, key: str) -> None:
        raise NotImplementedError


def claim_in(store: CountingStore, size: int, sha256: str = "ab" * 32) -> Claim:
    return Claim(f"{store.uri}/orders/2026-11-17/{sha256}", size, sha256)


def test_claim_of_5_gb_is_refused_by_its_header_without_a_request() -> None:
    store = CountingStore(5 * 1024**3, 5 * 1024**3)
    with pytest.raises(ClaimTooLarge, match="5368709120 bytes, and 67108864 are allowed in memory"):
        LargePayloads(store).read(claim_in(store, 5 * 1024**3), PLACE)
    assert store.requests == 0


def test_object_that_goes_on_after_its_announced_size_is_cut_off_at_the_first_chunk_too_many() -> None:
    store = CountingStore(4096, 5 * 1024**3)
    with pytest.raises(ClaimCorrupt, match="has 5120 bytes, and the claim says 4096"):
        LargePayloads(store).read(claim_in(store, 4096), PLACE)
    assert store.given == 5120


def test_object_that_ends_early_is_corrupt() -> None:
    store = CountingStore(4096, 1024)
    with pytest.raises(ClaimCorrupt, match="has 1024 bytes"):
        LargePayloads(store).read(claim_in(store, 4096), PLACE)


def test_payload_above_the_limit_is_read_in_chunks_and_verified() -> None:
    sha256 = hashlib.sha256(bytes(4096)).hexdigest()
    store = CountingStore(4096, 4096)
    large = LargePayloads(store, limit_bytes=100)
    assert sum(len(chunk) for chunk in large.chunks(claim_in(store, 4096, sha256), PLACE)) == 4096


def test_forged_claim_reaches_no_store() -> None:
    store = CountingStore(5, 5)
    for uri in (f"https://evil.example/orders/2026-11-17/{'ab' * 32}", f"test://store/../{'ab' * 32}"):
        with pytest.raises(ClaimForged):
            LargePayloads(store).read(Claim(uri, 5, "ab" * 32), PLACE)
    assert store.requests == 0


def test_every_claim_error_is_an_error_of_the_sdk() -> None:
    from tidemill.sdk.errors import ClientError

    assert issubclass(ClaimError, ClientError)


def test_negative_limits_are_refused(root: Path) -> None:
    for name in ("threshold_bytes", "limit_bytes", "prefetch_bytes"):
        with pytest.raises(ConfigError):
            LargePayloads(FolderStore(root), **{name: -1})  # type: ignore[arg-type]


def pieces(count: int, size: int) -> Iterator[bytes]:
    for number in range(count):
        yield bytes([number % 251]) * size


def test_iterator_and_file_are_stored_under_the_hash_of_their_content(
    large: LargePayloads, root: Path, tmp_path: Path
) -> None:
    content = b"".join(pieces(3, 2_000_000))
    (tmp_path / "scan").write_bytes(b"head" + content)
    with (tmp_path / "scan").open("rb") as file:
        file.read(4)
        from_file = large.put_stream("orders", file)
    from_iterator = large.put_stream("orders", pieces(3, 2_000_000))
    assert isinstance(from_file, Claim)
    assert from_file == from_iterator == large.put("orders", content)
    assert large_enough(root).read(from_file, PLACE) == content


def large_enough(root: Path) -> LargePayloads:
    return LargePayloads(str(root), limit_bytes=10_000_000)


def test_stream_up_to_the_threshold_is_no_claim(large: LargePayloads, root: Path) -> None:
    assert large.put_stream("orders", iter([b"", b"small", b""])) == b"small"
    assert large.put_stream("orders", io.BytesIO(b"")) == b""
    assert list(root.iterdir()) == []


def test_stream_of_many_megabytes_takes_the_memory_of_a_few_chunks(root: Path) -> None:
    large = LargePayloads(str(root), limit_bytes=0)
    tracemalloc.start()
    try:
        claim = large.put_stream("orders", pieces(64, 1_000_000))
        assert isinstance(claim, Claim)
        assert sum(len(chunk) for chunk in large.chunks(claim, PLACE)) == claim.size == 64_000_000
        assert tracemalloc.get_traced_memory()[1] < 16_000_000
    finally:
        tracemalloc.stop()


def test_stream_that_fails_or_gives_text_stores_nothing(large: LargePayloads, root: Path) -> None:
    def torn() -> Iterator[bytes]:
        yield b"x" * 1000
        raise OSError("the camera is gone")

    with pytest.raises(
        PayloadUnreadable, match=r"publish to orders: .*no record was sent: .*the camera is gone"
    ):
        large.put_stream("orders", torn())
    with pytest.raises(PayloadUnreadable, match="it consists of str, not of bytes"):
        large.put_stream("orders", io.StringIO("x" * 1000))  # type: ignore[arg-type]
    assert [path for path in root.rglob("*") if path.is_file()] == []


class Growing(io.BytesIO):
    """A file that another process writes to: it is longer at the second reading."""

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self.write(b"more")
        return super().seek(offset, whence)


def test_file_that_changes_while_it_is_read_stores_nothing(large: LargePayloads, root: Path) -> None:
    with pytest.raises(PayloadUnreadable, match="it changed while it was read"):
        large.put_stream("orders", Growing(b"x" * 1000))
    assert [path for path in root.rglob("*") if path.is_file()] == []


def test_store_that_is_down_refuses_a_stream(large: LargePayloads, root: Path) -> None:
    root.rmdir()
    with pytest.raises(ClaimStoreDown, match="a payload of 1000 bytes was not stored"):
        large.put_stream("orders", io.BytesIO(b"x" * 1000))
