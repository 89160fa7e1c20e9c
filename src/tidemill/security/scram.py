"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677) with Kafka's rules, for both sides.

    client  n,,n=user,r=NONCE
    server  r=NONCE+NONCE',s=SALT,i=ITERATIONS
    client  c=biws,r=NONCE+NONCE',p=PROOF
    server  v=SIGNATURE

The server keeps a salt, a stored key and a server key; the proof cannot be computed from them. Each side signs
everything that was said, both nonces included, so a recorded login cannot be repeated.

A user that does not exist gets a salt too, made from its name and `decoy_key`, and fails at the proof. Its answers cost
the same and read the same as those for a wrong password. The key is secret, or the salts could be recognised. All nodes
need the same one, or the salts would differ from node to node.

As in Kafka, names and passwords are used as they are written, in UTF-8, without SASLprep; in names `,` is `=2C` and
`=` is `=3D`. Channel binding is not supported.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum

from tidemill.security.conversations import Identity, SaslFailure

ITERATIONS_MIN = 4_096
ITERATIONS_MAX = 16_384
# A server cannot keep a client busy for long.
_CLIENT_ITERATIONS_MAX = 1_000_000
# As many as `tidemill users add` makes: unknown users must look the same.
SALT_BYTES = 24
# A printable nonce of the RFC: ASCII without the comma.
_NONCE = re.compile(r"[\x21-\x2b\x2d-\x7e]+")
_EXTENSION = re.compile(r"[A-Za-z]+=[^\0,]+")


class ScramMechanism(IntEnum):
    """The numbers are those of the wire and of the metadata log."""

    SHA_256 = 1
    SHA_512 = 2

    @property
    def mechanism_name(self) -> str:
        return "SCRAM-SHA-256" if self is ScramMechanism.SHA_256 else "SCRAM-SHA-512"

    @property
    def hash_name(self) -> str:
        return "sha256" if self is ScramMechanism.SHA_256 else "sha512"


MECHANISMS = {each.mechanism_name: each for each in ScramMechanism}


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """The data that a server keeps of a password."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int = ITERATIONS_MIN


def decoy_salt(decoy_key: bytes, user: str) -> bytes:
    """The salt of a user that does not exist, and of users that a node knows without metadata."""
    return hmac.digest(decoy_key, user.encode(), "sha512")[:SALT_BYTES]


def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """PBKDF2; several milliseconds of processor time."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


def credential(mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    client_key = hmac.digest(salted, b"Client Key", mechanism.hash_name)
    stored_key = hashlib.new(mechanism.hash_name, client_key).digest()
    server_key = hmac.digest(salted, b"Server Key", mechanism.hash_name)
    return ScramCredential(salt, stored_key, server_key, iterations)


FindCredential = Callable[[str], ScramCredential | None]


class ScramServer:
    """`nonce` must be new for every conversation and not to be guessed."""

    def __init__(
        self, mechanism: ScramMechanism, find_credential: FindCredential, *, nonce: str, decoy_key: bytes
    ) -> None:
        assert _NONCE.fullmatch(nonce), "a nonce consists of printable ASCII without commas"
        self._hash_name = mechanism.hash_name
        self._find_credential = find_credential
        self._server_nonce = nonce
        self._decoy_key = decoy_key
        self._exchange: _Exchange | None = None
        self.identity: Identity | None = None

    def respond(self, token: bytes, wall_ms: int) -> bytes:
        del wall_ms  # a password does not expire
        if self.identity is not None:
            raise SaslFailure("a SCRAM token came after the last one")
        text = _text(token)
        if self._exchange is None:
            return self._respond_first(text)
        return self._respond_final(self._exchange, text)

    def _respond_first(self, text: str) -> bytes:
        header, first_bare = _split_header(text)
        user, client_nonce, is_token = _parse_first_bare(first_bare)
        # Kafka looks a delegation token up by its id; there are none.
        found = None if is_token else self._find_credential(user)
        known = found if found is not None and found.iterations >= ITERATIONS_MIN else None
        # The decoy is made for known users too: both then take the same time.
        decoy = self._decoy(user)
        used = decoy if known is None else known
        nonce = client_nonce + self._server_nonce
        salt = base64.b64encode(used.salt).decode()
        first = f"r={nonce},s={salt},i={used.iterations}"
        self._exchange = _Exchange(
            user=user,
            authorization_id=_authorization_id(header),
            channel_binding=base64.b64encode(header.encode()).decode(),
            nonce=nonce,
            signed_so_far=f"{first_bare},{first}",
            credential=used,
            is_known=known is not None,
        )
        return first.encode()

    def _respond_final(self, exchange: _Exchange, text: str) -> bytes:
        without_proof, separator, encoded_proof = text.rpartition(",p=")
        fields = without_proof.split(",")
        if not separator or fields[0] != f"c={exchange.channel_binding}":
            raise SaslFailure("the final SCRAM message is not one, or binds another channel")
        if len(fields) < 2 or fields[1] != f"r={exchange.nonce}":
            raise SaslFailure("Invalid client nonce in the final client message.")
        if not all(_EXTENSION.fullmatch(extension) for extension in fields[2:]):
            raise SaslFailure("the final SCRAM message has an extension that cannot be read")
        signed = f"{exchange.signed_so_far},{without_proof}".encode()
        is_proven = self._is_proven(exchange.credential, signed, _decode_base64(encoded_proof, "proof"))
        if not (is_proven and exchange.is_known):
            raise SaslFailure(f"wrong password, or no SCRAM user {exchange.user!r}")
        if exchange.authorization_id not in ("", exchange.user):
            message = (
                "Authentication failed: Client requested an authorization id that is different from username"
            )
            raise SaslFailure(message, public=message)
        self.identity = Identity(exchange.user)
        signature = hmac.digest(exchange.credential.server_key, signed, self._hash_name)
        return b"v=" + base64.b64encode(signature)

    def _is_proven(self, known: ScramCredential, signed: bytes, proof: bytes) -> bool:
        signature = hmac.digest(known.stored_key, signed, self._hash_name)
        if len(proof) != len(signature):
            return False
        client_key = _xor(proof, signature)
        return hmac.compare_digest(hashlib.new(self._hash_name, client_key).digest(), known.stored_key)

    def _decoy(self, user: str) -> ScramCredential:
        digest = hmac.digest(self._decoy_key, user.encode(), "sha512")
        size = hashlib.new(self._hash_name).digest_size
        return ScramCredential(
            decoy_salt(self._decoy_key, user), digest[-size:], digest[-size:], ITERATIONS_MIN
        )


@dataclass(frozen=True, slots=True)
class _Exchange:
    """What the first two messages have fixed."""

    user: str
    authorization_id: str
    channel_binding: str
    nonce: str
    signed_so_far: str
    credential: ScramCredential
    is_known: bool


class ScramClient:
    """Its proof takes milliseconds of processor time, for PBKDF2. It refuses a server that does not know the password."""

    def __init__(self, mechanism: ScramMechanism, user: str, password: str, *, nonce: str) -> None:
        assert _NONCE.fullmatch(nonce), "a nonce consists of printable ASCII without commas"
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        escaped = user.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={escaped},r={nonce}"
        # What the server has to prove in the end; None until it has sent its salt.
        self._server_signature: bytes | None = None

    def first(self) -> bytes:
        return f"n,,{self._first_bare}".encode()

    def answer(self, challenge: bytes) -> bytes | None:
        text = _text(challenge)
        if text.startswith("e="):
            raise SaslFailure(f"the server says {text[2:]}")
        if self._server_signature is None:
            return self._proof(text)
        signature = text.partition(",")[0]
        if not signature.startswith("v="):
            raise SaslFailure("the server's last message has no signature")
        if not hmac.compare_digest(_decode_base64(signature[2:], "signature"), self._server_signature):
            raise SaslFailure("the server does not know the password: it is not the one it should be")
        return None

    def _proof(self, server_first: str) -> bytes:
        nonce, salt, iterations = self._parse_server_first(server_first)
        hash_name = self._mechanism.hash_name
        salted = salted_password(self._mechanism, self._password, salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", hash_name)
        kept = credential(self._mechanism, salted, salt, iterations)
        without_proof = f"c=biws,r={nonce}"
        signed = f"{self._first_bare},{server_first},{without_proof}".encode()
        proof = _xor(client_key, hmac.digest(kept.stored_key, signed, hash_name))
        self._server_signature = hmac.digest(kept.server_key, signed, hash_name)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def _parse_server_first(self, text: str) -> tuple[str, bytes, int]:
        fields = text.split(",")
        if len(fields) < 3 or [each[:2] for each in fields[:3]] != ["r=", "s=", "i="]:
            raise SaslFailure("the server's first message is not one of SCRAM")
        nonce, salt, iterations = (each[2:] for each in fields[:3])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise SaslFailure("the server's nonce does not continue ours")
        is_number = iterations.isascii() and iterations.isdecimal() and len(iterations) < 8
        if not is_number or not ITERATIONS_MIN <= int(iterations) <= _CLIENT_ITERATIONS_MAX:
            raise SaslFailure(
                f"the server asks for {iterations[:20] or 'no'} iterations, allowed are {ITERATIONS_MIN} to "
                f"{_CLIENT_ITERATIONS_MAX}"
            )
        return nonce, _decode_base64(salt, "salt"), int(iterations)


def _text(token: bytes) -> str:
    try:
        return token.decode()
    except UnicodeDecodeError:
        raise SaslFailure("a SCRAM message is not UTF-8") from None


def _split_header(text: str) -> tuple[str, str]:
    """The GS2 header with its second comma, and the rest."""
    parts = text.split(",", 2)
    if len(parts) != 3 or parts[0] not in ("n", "y") or (parts[1] and not parts[1].startswith("a=")):
        raise SaslFailure("the first SCRAM message has no valid header, or asks for channel binding")
    return f"{parts[0]},{parts[1]},", parts[2]


def _authorization_id(header: str) -> str:
    encoded = header.split(",")[1]
    return _decode_name(encoded[2:]) if encoded else ""


def _parse_first_bare(first_bare: str) -> tuple[str, str, bool]:
    """The user, the client's nonce, and whether the user is the id of a delegation token."""
    fields = first_bare.split(",")
    if len(fields) < 2 or not fields[0].startswith("n=") or not fields[1].startswith("r="):
        # A mandatory extension (m=) stands where the name should, and is refused with this, too.
        raise SaslFailure("the first SCRAM message is not one")
    if not _NONCE.fullmatch(fields[1], 2):
        raise SaslFailure("the client's nonce is empty or not printable")
    if not all(_EXTENSION.fullmatch(extension) for extension in fields[2:]):
        raise SaslFailure("the first SCRAM message has an extension that cannot be read")
    return _decode_name(fields[0][2:]), fields[1][2:], "tokenauth=true" in fields[2:]


def _decode_name(encoded: str) -> str:
    name = encoded.replace("=2C", ",").replace("=3D", "=")
    if not encoded or "\0" in encoded or encoded.count("=") != encoded.count("=2C") + encoded.count("=3D"):
        raise SaslFailure("a name in a SCRAM message is empty or not escaped as it should be")
    return name


def _decode_base64(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raise SaslFailure(f"the {what} in a SCRAM message is not base64") from None


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
