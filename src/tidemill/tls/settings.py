"""The settings of TLS as plain values: no file is read here.

A store is a PEM file, PEM text or a PKCS12 file, as in Kafka's `ssl.keystore.*` and `ssl.truststore.*`. Secrets are
`Password` values, which no `repr`, log line or traceback shows.
"""

from __future__ import annotations

from dataclasses import dataclass

HIDDEN = "[hidden]"
TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")


@dataclass(frozen=True, slots=True, repr=False)
class Password:
    """A secret. Only `value` gives it away."""

    value: str

    def __repr__(self) -> str:
        return HIDDEN


@dataclass(frozen=True, slots=True)
class KeyStore:
    """A certificate chain with its private key: a file that has both, two files, or two texts."""

    location: str | None = None
    key_location: str | None = None
    certificate_chain: Password | None = None
    key: Password | None = None
    # Of the store, which only PKCS12 has, and of the key.
    password: Password | None = None
    key_password: Password | None = None
    type: str | None = None

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(each for each in (self.location, self.key_location) if each is not None)


@dataclass(frozen=True, slots=True)
class TrustStore:
    """The certificates of the authorities that are trusted: a file, a folder of files, or a text."""

    location: str | None = None
    certificates: Password | None = None
    password: Password | None = None
    type: str | None = None

    @property
    def files(self) -> tuple[str, ...]:
        return () if self.location is None else (self.location,)


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """One side's TLS. Without a trust store a client trusts what the operating system trusts."""

    key_store: KeyStore | None = None
    trust_store: TrustStore | None = None
    versions: tuple[str, ...] = TLS_VERSIONS
    # By the names of Kafka and the RFCs; empty allows every suite of OpenSSL's default.
    cipher_suites: tuple[str, ...] = ()
    # Of a listener: none, requested or required.
    client_auth: str = "none"
    # Of a client: whether the certificate has to name the host that was dialled.
    checks_hostname: bool = True

    @property
    def files(self) -> tuple[str, ...]:
        """The files that have to be read again when one changes."""
        stores = (self.key_store, self.trust_store)
        return tuple(file for store in stores if store is not None for file in store.files)
