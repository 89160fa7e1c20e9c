"""PLAIN users in a file: how it is read, what is refused, and that its changes take effect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tidemill.broker.requests.security import plain_users
from tidemill.broker.requests.security.plain_users import KnownPlainUsers
from tidemill.config import SaslSettings
from tidemill.errors import ConfigError
from tidemill.tls.settings import Password

LIMIT_S = 30.0


def settings(path: Path | None, **configured: str) -> SaslSettings:
    users = {user: Password(password) for user, password in configured.items()}
    return SaslSettings(("PLAIN",), users, str(path) if path else None, {}, {}, 1000, None)


def in_thread(function: Callable[[], Any]) -> Awaitable[Any]:
    return asyncio.get_running_loop().run_in_executor(None, function)


def known(path: Path | None, **configured: str) -> KnownPlainUsers:
    return KnownPlainUsers(settings(path, **configured), "EXTERNAL", in_thread)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "users.properties"


def test_users_come_from_the_settings_and_from_the_file(path: Path) -> None:
    path.write_text("# people\nbob=builder\ncarol@example.com: \\u00e9t\\u00e9 = hot\n", encoding="utf-8")
    users = known(path, alice="secret").users
    assert users.accepts("alice", "secret")
    assert users.accepts("bob", "builder")
    assert users.accepts("carol@example.com", "été = hot")
    assert not users.accepts("bob", "secret")


def test_user_of_the_settings_counts_before_one_of_the_file(path: Path) -> None:
    path.write_text("alice=other\n")
    users = known(path, alice="secret").users
    assert users.accepts("alice", "secret")
    assert not users.accepts("alice", "other")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "no such file"),
        (b"", "it has no user"),
        (b"# only a comment\n", "it has no user"),
        (b"alice\n", "the user 'alice' has no password"),
        (b"alice=hunter2\n=hunter3\n", "a user has no name"),
        (b"alice=hunter\xff\n", "it is not UTF-8"),
        (b"alice=hunter\\user\n", "Malformed"),
        (b"alice=hunter\\ud800\n", "the user 'alice' is no text"),
    ],
)
def test_file_that_cannot_be_used_stops_the_start_and_shows_no_password(
    path: Path, content: bytes | None, reason: str
) -> None:
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        known(path)
    assert str(refused.value).startswith(f"tidemill.plain.users.file={path} cannot be used: ")
    assert reason in str(refused.value)
    assert "hunter" not in str(refused.value)


def test_changes_of_the_file_take_effect_and_a_broken_one_does_not(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(plain_users, "_RELOAD_S", 0.01)

    def is_told(what: str) -> bool:
        return any(what in each for each in caplog.messages)

    write, remove = path.write_text, path.unlink

    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not condition():  # noqa: ASYNC110 - a file tells nothing
                await asyncio.sleep(0.01)

    async def case() -> None:
        write("alice=old\nbob=builder\n")
        listener = known(path, admin="always")
        listener.start()
        try:
            write("alice=hunter2\n")
            await until(lambda: listener.users.accepts("alice", "hunter2"))
            assert not listener.users.accepts("alice", "old")
            assert not listener.users.accepts("bob", "builder")
            assert listener.users.accepts("admin", "always")
            write("alice\n")
            await until(lambda: is_told("listener EXTERNAL keeps its old PLAIN users"))
            assert listener.users.accepts("alice", "hunter2")
            remove()
            await until(lambda: is_told("no such file"))
            assert listener.users.accepts("alice", "hunter2")
            write("dave=new\n")
            await until(lambda: listener.users.accepts("dave", "new"))
            assert not listener.users.accepts("alice", "hunter2")
        finally:
            listener.close()

    with caplog.at_level("INFO"):
        asyncio.run(case())
    assert "hunter" not in caplog.text
