"""The checks of a data directory on this machine: its owner, whether it is usable, and its free space.

They write nothing and take no lock, so a broker may run or start meanwhile.
"""

from __future__ import annotations

import os
import pwd
from collections import Counter
from pathlib import Path

from tidemill.cli.checks.finding import Finding, Verdict, ok, problem, warning
from tidemill.cli.checks.machine import FILES_REMEDY, file_limit
from tidemill.cli.table import plural, size_text
from tidemill.internal_topics import METADATA_TOPIC

_FREE_BYTES_MIN = 1 << 30
_FREE_SHARE_MIN = 0.10
_INODES_MIN = 10_000
# Descriptors for sockets and the broker's own files.
_FILES_RESERVED = 1000
_VOLATILE = ("tmpfs", "ramfs")
_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "9p")


def data_dir(path: Path) -> list[Finding]:
    if not path.exists():
        return [_missing(path)]
    if not path.is_dir():
        return [problem("access", "it is not a directory", "name another one with --data-dir (log.dirs)")]
    access = _access(path)
    findings = [access]
    if access.verdict is not Verdict.PROBLEM:
        findings += [_identity(path), _running(path), _content(path)]
    return [*findings, _space(path), _inodes(path), _file_system(path)]


def cluster_id_of(path: Path) -> str | None:
    return _meta(path).get("cluster.id")


def _missing(path: Path) -> Finding:
    parent = next(each for each in path.absolute().parents if each.exists())
    if os.access(parent, os.W_OK | os.X_OK):
        return ok("access", "it does not exist yet: a broker makes it at its first start")
    return problem(
        "access",
        f"it does not exist, and {parent} does not let {_user(os.geteuid())} make it",
        f"mkdir -p {path} && chown {_user(os.geteuid())} {path}, as root",
    )


def _access(path: Path) -> Finding:
    owner = _user(path.stat().st_uid)
    if os.access(path, os.R_OK | os.W_OK | os.X_OK):
        foreign = [each.name for each in path.iterdir() if each.stat().st_uid != path.stat().st_uid]
        if foreign:
            return warning(
                "access",
                f"{len(foreign)} of its entries, such as {foreign[0]}, are not {owner}'s",
                f"chown -R {owner} {path}, as root: a broker was started as another user once",
            )
        return ok("access", f"readable and writable, owner {owner}")
    return problem(
        "access",
        f"{_user(os.geteuid())} may not use it, its owner is {owner}",
        f"run the broker as {owner}, or chown -R {_user(os.geteuid())} {path}",
    )


def _identity(path: Path) -> Finding:
    if not (path / "meta.properties").exists():
        if any((each / "partition.metadata").exists() for each in path.iterdir()):
            return problem(
                "identity",
                "it holds partitions, but no meta.properties: their owner is unknown",
                "restore meta.properties from a backup, or move the partitions away",
            )
        return ok("identity", "new: it has no owner yet")
    meta = _meta(path)
    if not meta.get("node.id", "").isdecimal() or not meta.get("directory.id"):
        return problem(
            "identity",
            "meta.properties is damaged: node.id or directory.id is missing",
            "restore it from a backup; without it the broker does not start",
        )
    return ok(
        "identity", f"belongs to node {meta['node.id']} of cluster {meta.get('cluster.id', '(none yet)')}"
    )


def _meta(path: Path) -> dict[str, str]:
    try:
        lines = (path / "meta.properties").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def _running(path: Path) -> Finding:
    """The pid of the broker that uses the directory: it writes its pid into the lock file."""
    try:
        words = (path / ".lock").read_text(errors="replace").split()
    except OSError:
        words = []
    pid = int(words[1]) if len(words) == 2 and words[1].isdecimal() else None
    if pid is not None and _is_locked(path / ".lock", pid):
        return ok("lock", f"in use by the broker with pid {pid}")
    if pid is None or (path / ".kafka_cleanshutdown").exists():
        return ok("lock", "no broker uses it; the last one, if any, stopped cleanly")
    return warning(
        "lock",
        "no broker uses it, and the last one was not stopped cleanly",
        "nothing to do: the next start checks the ends of the logs, which takes longer; stop brokers with SIGTERM",
    )


def _is_locked(path: Path, pid: int) -> bool:
    """Whether the lock is held: from the kernel's list of locks on Linux, elsewhere from whether the process lives."""
    inode = str(path.stat().st_ino)
    try:
        locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True
    return any(inode == word.rpartition(":")[2] for lock in locks for word in lock if word.count(":") == 2)


def _content(path: Path) -> Finding:
    suffixes: Counter[str] = Counter()
    partitions = 0
    for folder in path.iterdir():
        if (folder / "partition.metadata").exists() or folder.name.startswith(METADATA_TOPIC):
            partitions += 1
            suffixes.update(each.suffix for each in folder.iterdir())
    segments = suffixes[".log"]
    files = segments + suffixes[".index"] + suffixes[".timeindex"] + suffixes[".txnindex"] + _FILES_RESERVED
    text = f"{plural(partitions, 'partition')}, {plural(segments, 'segment')}"
    if files > file_limit():
        return problem(
            "content",
            f"{text}: up to {files:,} files, and a process may open {file_limit():,}",
            FILES_REMEDY,
        )
    return ok("content", text)


def _space(path: Path) -> Finding:
    disk = os.statvfs(path)
    total, free = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
    return disk_space("space", total, free)


def disk_space(check: str, total: int, free: int) -> Finding:
    text = f"{size_text(free)} of {size_text(total)} free"
    remedy = (
        "make room: lower retention.ms or retention.bytes of large topics, delete topics, or grow the disk"
    )
    if free < _FREE_BYTES_MIN:
        return problem(check, text, remedy)
    if free < _FREE_SHARE_MIN * total:
        return warning(check, text, remedy)
    return ok(check, text)


def _inodes(path: Path) -> Finding:
    disk = os.statvfs(path)
    if not disk.f_files:
        return ok("inodes", "its file system has no fixed number of inodes")
    text = f"{disk.f_favail:,} of {disk.f_files:,} inodes free"
    if disk.f_favail < _INODES_MIN:
        remedy = "delete files, or make the file system anew with more inodes: every segment takes up to four"
        return problem("inodes", text, remedy)
    return ok("inodes", text)


def _file_system(path: Path) -> Finding:
    kind = _file_system_kind(path)
    if kind in _VOLATILE:
        return warning("file system", f"it is on {kind}: what is there is gone after a restart", "use a disk")
    if kind in _REMOTE:
        return warning(
            "file system",
            f"it is on {kind}, whose locks and syncs are not those of a local disk",
            "use a local disk, or a network block device",
        )
    return ok("file system", f"file system {kind or 'unknown'}")


def _file_system_kind(path: Path) -> str | None:
    """The kind of file system: that of the longest mount point above the path."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return None
    resolved = path.resolve()
    fitting = [
        (len(mount[1]), mount[2])
        for mount in mounts
        if resolved.is_relative_to(mount[1].encode().decode("unicode_escape"))
    ]
    # Of two mounts on the same path, the later one hides the earlier.
    return max(reversed(fitting), key=lambda each: each[0])[1] if fitting else None


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
