"""A folder as an object store."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemill.errors import ConfigError
from tidemill.objects.folder import FolderStore
from tidemill.objects.opening import open_store
from tidemill.objects.store import (
    ObjectNotFound,
    ObjectRefused,
    StoreUnavailable,
)

KEY = "orders/2026-11-17/" + "ab" * 32
OTHER_KEY = "orders/2026-11-17/" + "cd" * 32


def content(store: FolderStore, key: str = KEY) -> bytes:
    with store.open(key) as found:
        data = b"".join(found.chunks)
        assert found.size == len(data)
        return data


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    (tmp_path / "store").mkdir()
    return FolderStore(tmp_path / "store")


def test_put_object_is_read_listed_and_deleted(store: FolderStore) -> None:
    assert store.put_if_absent(KEY, [b"one", b"two"])
    assert content(store) == b"onetwo"
    assert store.size(KEY) == 6
    assert [(each.key, each.size) for each in store.list()] == [(KEY, 6)]
    assert [each.key for each in store.list("orders/2026-11-17")] == [KEY]
    assert list(store.list("others")) == []
    store.delete(KEY)
    store.delete(KEY)
    assert list(store.list()) == []
    with pytest.raises(ObjectNotFound), store.open(KEY):
        pass


def test_second_put_leaves_the_first_object(store: FolderStore) -> None:
    assert store.put_if_absent(KEY, [b"first"])
    assert not store.put_if_absent(KEY, [b"second"])
    assert content(store) == b"first"


def test_object_that_another_writer_has_put_is_durable_when_put_returns(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other writer may not have synced the folder yet, and its machine may fail before that."""
    store.put_if_absent(KEY, [b"one"])
    synced: list[bool] = []
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: synced.append(stat.S_ISDIR(os.fstat(descriptor).st_mode))
    )

    def overtaken() -> Iterator[bytes]:
        store.put_if_absent(OTHER_KEY, [b"two"])
        synced.clear()
        yield b"two"

    assert not store.put_if_absent(KEY, [b"one"])
    assert synced == [True]
    assert not store.put_if_absent(OTHER_KEY, overtaken())
    assert synced == [False, True]


def test_put_that_another_writer_overtakes_leaves_the_first_object(store: FolderStore) -> None:
    def slow() -> Iterator[bytes]:
        assert store.put_if_absent(KEY, [b"first"])
        yield b"second"

    assert not store.put_if_absent(KEY, slow())
    assert content(store) == b"first"


def test_put_that_fails_half_way_leaves_no_object_and_no_file(store: FolderStore, tmp_path: Path) -> None:
    def torn() -> Iterator[bytes]:
        yield b"half"
        raise RuntimeError("the producer is gone")

    with pytest.raises(RuntimeError):
        store.put_if_absent(KEY, torn())
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_delete_of_the_last_object_removes_its_folders_and_keeps_the_root(
    store: FolderStore, tmp_path: Path
) -> None:
    store.put_if_absent(KEY, [b"x"])
    store.delete(KEY)
    assert list((tmp_path / "store").iterdir()) == []


@pytest.mark.parametrize(
    "key", ["../outside", "/etc/passwd", "a/../../outside", "", "a//b", "./a", "a\\b", "a\0b"]
)
def test_key_that_leads_outside_is_refused_in_every_call(
    store: FolderStore, tmp_path: Path, key: str
) -> None:
    (tmp_path / "outside").write_text("secret")
    with pytest.raises(ObjectRefused), store.open(key):
        pass
    with pytest.raises(ObjectRefused):
        store.put_if_absent(key, [b"x"])
    with pytest.raises(ObjectRefused):
        store.delete(key)
    assert (tmp_path / "outside").read_text() == "secret"


def test_symbolic_link_to_a_file_or_in_place_of_a_folder_is_never_followed(
    store: FolderStore, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / KEY.rsplit("/", 1)[1]).write_text("secret")
    date = tmp_path / "store" / "orders" / "2026-11-17"
    date.mkdir(parents=True)
    (date / KEY.rsplit("/", 1)[1]).symlink_to(secret / KEY.rsplit("/", 1)[1])
    with pytest.raises(ObjectRefused), store.open(KEY):
        pass
    assert list(store.list()) == []
    for path in date.iterdir():
        path.unlink()
    date.rmdir()
    date.symlink_to(secret)
    with pytest.raises(ObjectRefused), store.open(KEY):
        pass
    with pytest.raises(ObjectRefused):
        store.put_if_absent(KEY.replace("ab", "cd"), [b"x"])
    assert list(store.list()) == []
    assert len(list(secret.iterdir())) == 1


def test_pipe_in_place_of_an_object_is_refused_without_waiting_for_its_writer(
    store: FolderStore, tmp_path: Path
) -> None:
    (tmp_path / "store" / "orders").mkdir()
    os.mkfifo(tmp_path / "store" / "orders" / "pipe")
    with pytest.raises(ObjectRefused), store.open("orders/pipe"):
        pass


def test_missing_folder_is_a_store_that_is_down_and_is_not_created(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "not-mounted")
    for call in (
        lambda: store.put_if_absent(KEY, [b"x"]),
        lambda: list(store.list()),
        lambda: store.delete(KEY),
        lambda: store.size(KEY),
    ):
        with pytest.raises(StoreUnavailable, match="no such folder"):
            call()
    assert not (tmp_path / "not-mounted").exists()


def test_location_may_be_a_path_or_a_file_url(tmp_path: Path) -> None:
    assert open_store(str(tmp_path)).uri == f"file://{tmp_path}"
    assert open_store(f"file://{tmp_path}/").uri == f"file://{tmp_path}"


@pytest.mark.parametrize("name", ["a b", "100%", "a%20b", "ü"])
def test_uri_of_a_folder_opens_the_same_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    store = FolderStore(tmp_path / name)
    assert store.put_if_absent(KEY, [b"x"])
    assert open_store(store.uri).uri == store.uri
    assert open_store(store.uri).size(KEY) == 1


@pytest.mark.parametrize("location", ["ftp://host/path", "https://host/path", "javascript://x"])
def test_location_of_an_unknown_kind_is_refused(location: str) -> None:
    with pytest.raises(ConfigError, match="a path, or a URL"):
        open_store(location)


def test_options_of_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no options"):
        open_store(str(tmp_path), region="eu")
