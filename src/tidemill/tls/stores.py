"""Key stores and trust stores as OpenSSL takes them: PEM.

The first bytes of a file tell its format, since Kafka's default type (JKS) says nothing about what people have. PEM text
may stand in one line, as property files have it. PKCS12 needs the package `cryptography`; Java's own format is refused with
the command that converts it. No error shows a key or a password.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tidemill.errors import ConfigError
from tidemill.tls.settings import Password

_PEM_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_PEM_MARK = b"-----BEGIN"
_JKS_MAGIC = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_PKCS12_FIRST = b"\x30"


class FileStamp(NamedTuple):
    """Differs when the file has been replaced or written."""

    inode: int
    modified_ns: int
    size: int


def file_stamp(path: str) -> FileStamp | None:
    """None when the file cannot be seen."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return FileStamp(status.st_ino, status.st_mtime_ns, status.st_size)


def read_store(location: str, store_type: str | None, password: Password | None, what: str) -> str:
    """The PEM text of a store's file. `what` names the setting in errors."""
    try:
        data = Path(location).read_bytes()
    except OSError as error:
        reason = (error.strerror or "it cannot be read").lower()
        raise ConfigError(f"{what}={location} cannot be used as a store: {reason}") from None
    wanted = (store_type or "").upper()
    if _PEM_MARK in data:
        if wanted == "PKCS12":
            raise ConfigError(f"{what}={location} is PEM, not PKCS12: set {_type_key(what)}=PEM")
        return pem_lines(data.decode(errors="replace"))
    if data.startswith(_JKS_MAGIC):
        raise ConfigError(
            f"{what}={location} is a Java key store (JKS), which only Java reads; convert it with `keytool -importkeystore "
            f"-srckeystore {location} -destkeystore {location}.p12 -deststoretype PKCS12` and name the new file"
        )
    if data.startswith(_PKCS12_FIRST) and wanted != "PEM":
        return _pem_of_pkcs12(data, password, f"{what}={location}")
    raise ConfigError(f"{what}={location} cannot be used: it is neither PEM nor PKCS12")


def _type_key(what: str) -> str:
    return what.removesuffix("location") + "type"


def _pem_of_pkcs12(data: bytes, password: Password | None, what: str) -> str:
    try:
        from cryptography.hazmat.primitives.serialization import (
            Encoding,
            NoEncryption,
            PrivateFormat,
            pkcs12,
        )
    except ImportError:
        raise ConfigError(
            f"{what} is PKCS12, which needs the package cryptography: pip install 'tidemill[security]', or convert it "
            "with `openssl pkcs12 -in FILE -nodes -out FILE.pem`"
        ) from None
    try:
        store = pkcs12.load_pkcs12(data, password.value.encode() if password is not None else None)
    except ValueError:
        raise ConfigError(f"{what} cannot be opened: is its password right?") from None
    blocks = []
    if store.key is not None:
        blocks.append(store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    certificates = [store.cert, *store.additional_certs]
    blocks += [each.certificate.public_bytes(Encoding.PEM) for each in certificates if each is not None]
    return b"".join(blocks).decode()


def pem_lines(text: str) -> str:
    """PEM as OpenSSL reads it; a property file may have it all in one line."""
    if "\n" in text.strip():
        return text
    blocks = []
    for label, body in _PEM_BLOCK.findall(text):
        content = "".join(body.split())
        lines = [content[start : start + 64] for start in range(0, len(content), 64)]
        blocks.append("\n".join((f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", "")))
    return "".join(blocks)


@contextlib.contextmanager
def as_file(pem: str) -> Iterator[str]:
    """A path under which OpenSSL, which reads keys from files only, finds the text. It is gone afterwards.

    Where the system has files in memory, the key is never on a disk.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("pem")
        path = f"/proc/self/fd/{descriptor}"
        with os.fdopen(descriptor, "wb") as file:
            file.write(pem.encode())
            file.flush()
            yield path
        return
    descriptor, path = tempfile.mkstemp(suffix=".pem")  # readable by its owner alone
    try:
        with os.fdopen(descriptor, "w") as text_file:
            text_file.write(pem)
        yield path
    finally:
        os.unlink(path)
