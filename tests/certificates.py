"""Certificates made for the occasion: an authority, and whatever it signs."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID

_SIGNS_CERTIFICATES = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)
_DAY = datetime.timedelta(days=1)
NAMES = {"CN": NameOID.COMMON_NAME, "OU": NameOID.ORGANIZATIONAL_UNIT_NAME, "O": NameOID.ORGANIZATION_NAME}


class Authority:
    """Signs certificates; each is a file `NAME.pem` with its key and chain in `folder`."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Test {name}")])
        self._certificate = (
            self._builder(self._name, self._key, _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_SIGNS_CERTIFICATES, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.path = folder / f"{name}.pem"
        self.path.write_bytes(self._certificate.public_bytes(Encoding.PEM))

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, valid: datetime.timedelta
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * _DAY)
            .not_valid_after(now + valid)
            # Strict verification, Python's default from 3.13 on, asks for both.
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )

    def issue(
        self,
        name: str,
        *,
        hosts: tuple[str, ...] = ("127.0.0.1", "localhost"),
        subject: str | None = None,
        is_expired: bool = False,
        password: str | None = None,
    ) -> Path:
        """The key, the certificate and the authority's in one PEM file. `subject` is as `CN=a,OU=b`."""
        key, certificate = self._issue(hosts, subject or f"CN={name}", is_expired)
        encryption: KeySerializationEncryption = NoEncryption()
        if password is not None:
            encryption = BestAvailableEncryption(password.encode())
        path = self.folder / f"{name}.pem"
        path.write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
            + certificate.public_bytes(Encoding.PEM)
            + self._certificate.public_bytes(Encoding.PEM)
        )
        return path

    def issue_pkcs12(self, name: str, password: str) -> Path:
        key, certificate = self._issue(("127.0.0.1", "localhost"), f"CN={name}", False)
        path = self.folder / f"{name}.p12"
        encryption = BestAvailableEncryption(password.encode())
        path.write_bytes(
            pkcs12.serialize_key_and_certificates(
                name.encode(), key, certificate, [self._certificate], encryption
            )
        )
        return path

    def _issue(
        self, hosts: tuple[str, ...], subject: str, is_expired: bool
    ) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
        key = ec.generate_private_key(ec.SECP256R1())
        parts = [part.partition("=") for part in subject.split(",")]
        # RFC 2253 writes the most specific part first; a certificate has it last.
        attributes = [x509.NameAttribute(NAMES[kind], value) for kind, _, value in reversed(parts)]
        builder = self._builder(x509.Name(attributes), key, -_DAY if is_expired else _DAY)
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False
            )
        return key, builder.sign(self._key, hashes.SHA256())


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def blocks(path: Path, label: str) -> str:
    """The PEM blocks of one kind in a file: `CERTIFICATE` or `PRIVATE KEY`."""
    text = path.read_text()
    found = []
    while (start := text.find(f"-----BEGIN {label}-----")) >= 0:
        mark = f"-----END {label}-----\n"
        end = text.index(mark, start) + len(mark)
        found.append(text[start:end])
        text = text[end:]
    return "".join(found)
