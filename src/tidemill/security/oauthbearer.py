"""SASL OAUTHBEARER (RFC 7628): the client presents a signed JSON Web Token (RFC 7519).

A token is believed for its signature alone. The order of the checks matters. The algorithm must be in the allow-list
before a key is looked for, and the key must be of the algorithm's kind. Claims are read only from what was verified. So
`alg=none`, an HMAC made with a public key, and a token without a signature fail before anything in them counts.

Keys come as the text of a JWKS document (RFC 7517); the caller reads it from a file or a URL. The signature is
verified by `cryptography`, the extra `[security]`, which is imported when keys are parsed.

A refused token is answered with RFC 7628's JSON error; the client acknowledges it with one byte, and only then the
login fails. That is how Kafka does it.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tidemill.errors import ConfigError
from tidemill.security.conversations import Identity, SaslFailure

MECHANISM = "OAUTHBEARER"

TOKEN_BYTES_MAX = 64 * 1024
# A token without a key id may be of any key; each try costs the event loop a verification.
_TRIED_KEYS_MAX = 64
_RSA_BITS_MIN = 2048
_SKEW_DEFAULT_MS = 30_000
_CONTROL_A = "\x01"
# After this a date is nonsense, and a product with 1,000 still fits where milliseconds are kept.
_SECONDS_MAX = 253_402_300_800
_MESSAGE = re.compile(r"n,(?:a=(?P<authzid>[^,\x01]+))?,\x01(?P<pairs>(?:[A-Za-z]+=[^\x01]*\x01)*)\x01")
# base64url with dots between the three parts.
_TOKEN = re.compile(r"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)")
_ALGORITHM_KINDS = {
    **{f"{family}{bits}": "RSA" for family in ("RS", "PS") for bits in (256, 384, 512)},
    "ES256": "P-256",
    "ES384": "P-384",
}
ALGORITHMS = frozenset(_ALGORITHM_KINDS)


class _InvalidToken(Exception):
    """A token is not accepted; the message is the reason, for the log."""


@dataclass(frozen=True, slots=True)
class TokenRules:
    """Kafka's `sasl.oauthbearer.*` settings. An empty `issuer` or `audiences` is not checked."""

    issuer: str = ""
    audiences: frozenset[str] = frozenset()
    clock_skew_ms: int = _SKEW_DEFAULT_MS
    subject_claim: str = "sub"
    scope_claim: str = "scope"
    algorithms: frozenset[str] = ALGORITHMS


@dataclass(frozen=True, slots=True)
class BearerToken:
    """The claims of a verified token."""

    principal_name: str
    expires_wall_ms: int
    scopes: frozenset[str] = frozenset()
    claims: Mapping[str, Any] = field(default_factory=dict, repr=False)


ValidateToken = Callable[[str, int], BearerToken]


class _PublicKey(Protocol):
    def verify(self, algorithm: str, signature: bytes, message: bytes) -> bool: ...


@dataclass(frozen=True, slots=True)
class JsonWebKey:
    kind: str
    key_id: str | None
    algorithm: str | None
    public_key: _PublicKey


class TokenValidator:
    """Checks tokens against the keys and rules that it was made with."""

    def __init__(self, jwks: str, rules: TokenRules) -> None:
        """`ConfigError` when the document has no usable key, or `cryptography` is not installed."""
        unknown = rules.algorithms - ALGORITHMS
        if unknown:
            raise ConfigError(f"{', '.join(sorted(unknown))} is not an algorithm that verifies tokens")
        self._keys = parse_jwks(jwks)
        self._rules = rules

    def __call__(self, token: str, wall_ms: int) -> BearerToken:
        """Raises `SaslFailure` with the reason for the log; the client learns `invalid_token` alone."""
        try:
            claims = self._verified_claims(token)
            return self._accepted(claims, wall_ms)
        except _InvalidToken as error:
            raise SaslFailure(f"the bearer token is refused: {error}", public="invalid_token") from None

    def _verified_claims(self, token: str) -> dict[str, Any]:
        parts = _TOKEN.fullmatch(token)
        if len(token) > TOKEN_BYTES_MAX or parts is None:
            raise _InvalidToken("it is not a signed JSON Web Token in compact form")
        header = _json_object(_base64url(parts[1]), "header")
        algorithm = header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in self._rules.algorithms:
            raise _InvalidToken(f"its algorithm {str(algorithm)[:20]!r} is not allowed")
        if "crit" in header:
            raise _InvalidToken("it has critical headers, none of which is known")
        message, signature = token[: parts.end(2)].encode(), _base64url(parts[3])
        key_id = header.get("kid")
        candidates = [
            key
            for key in self._keys
            if key.kind == _ALGORITHM_KINDS[algorithm]
            and key.algorithm in (None, algorithm)
            and (key_id is None or key.key_id in (None, key_id))
        ]
        if not candidates:
            raise _InvalidToken("no key fits its key id and algorithm")
        if key_id is not None:
            # Keys without an id come last.
            candidates.sort(key=lambda key: key.key_id is None)
        tried = candidates[:_TRIED_KEYS_MAX]
        if not any(key.public_key.verify(algorithm, signature, message) for key in tried):
            raise _InvalidToken("its signature is wrong")
        return _json_object(_base64url(parts[2]), "payload")

    def _accepted(self, claims: dict[str, Any], wall_ms: int) -> BearerToken:
        rules = self._rules
        expires_ms = _time_ms(claims, "exp")
        issued_ms = _time_ms(claims, "iat")
        if expires_ms is None:
            raise _InvalidToken("it has no expiry (exp)")
        if issued_ms is None:
            raise _InvalidToken("it does not say when it was issued (iat)")
        if wall_ms >= expires_ms + rules.clock_skew_ms:
            raise _InvalidToken("it has expired")
        not_before_ms = _time_ms(claims, "nbf")
        if not_before_ms is not None and wall_ms + rules.clock_skew_ms < not_before_ms:
            raise _InvalidToken("it is not valid yet")
        if rules.issuer and claims.get("iss") != rules.issuer:
            raise _InvalidToken("it is of another issuer")
        if rules.audiences and not rules.audiences & _texts(claims, "aud"):
            raise _InvalidToken("it is for another audience")
        subject = claims.get(rules.subject_claim)
        if not isinstance(subject, str) or not subject.strip():
            raise _InvalidToken(f"it names no subject ({rules.subject_claim})")
        if any("\ud800" <= char <= "\udfff" for char in subject):
            raise _InvalidToken(f"its subject ({rules.subject_claim}) is no text")
        scopes = _texts(claims, rules.scope_claim)
        return BearerToken(
            principal_name=subject,
            expires_wall_ms=expires_ms,
            scopes=frozenset(scope for text in scopes for scope in text.split()),
            claims=claims,
        )


class OAuthBearerServer:
    def __init__(self, validate: ValidateToken) -> None:
        self._validate = validate
        self._failure: SaslFailure | None = None
        self.identity: Identity | None = None

    def respond(self, token: bytes, wall_ms: int) -> bytes:
        if self._failure is not None:
            # The client has taken note of the error; its byte carries nothing else.
            raise self._failure
        if self.identity is not None:
            raise SaslFailure("an OAUTHBEARER token came after the last one")
        authorization_id, bearer = _parse_client_message(token)
        try:
            accepted = self._validate(bearer, wall_ms)
        except SaslFailure as failure:
            challenge = json.dumps({"status": failure.public or "invalid_token"}, separators=(",", ":"))
            self._failure = SaslFailure(str(failure), public=challenge)
            return challenge.encode()
        if authorization_id not in ("", accepted.principal_name):
            message = (
                "Authentication failed: Client requested an authorization id that is different from the token's "
                "principal name"
            )
            raise SaslFailure(message, public=message)
        self.identity = Identity(accepted.principal_name, accepted.expires_wall_ms)
        return b""


class OAuthBearerClient:
    """Sends a token that it was given, and reads nothing in it."""

    def __init__(self, token: str) -> None:
        if not token or not token.isascii() or not token.isprintable():
            raise SaslFailure("the bearer token is empty or has characters that no token has")
        self._token = token

    def first(self) -> bytes:
        return f"n,,{_CONTROL_A}auth=Bearer {self._token}{_CONTROL_A}{_CONTROL_A}".encode()

    def answer(self, challenge: bytes) -> bytes | None:
        if not challenge:
            return None
        # RFC 7628: an error is acknowledged, then the server ends the exchange.
        return _CONTROL_A.encode()


def _parse_client_message(message: bytes) -> tuple[str, str]:
    """The authorization id and the token."""
    try:
        parsed = _MESSAGE.fullmatch(message.decode())
    except UnicodeDecodeError:
        parsed = None
    if parsed is None:
        raise SaslFailure("the OAUTHBEARER message is not one")
    pairs = [pair.partition("=") for pair in parsed["pairs"].split(_CONTROL_A)[:-1]]
    credentials = [value for name, _, value in pairs if name == "auth"]
    scheme, _, token = (credentials[0] if len(credentials) == 1 else "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise SaslFailure("the OAUTHBEARER message has no bearer token")
    authorization_id = (parsed["authzid"] or "").replace("=2C", ",").replace("=3D", "=")
    return authorization_id, token.strip()


# --- JSON Web Keys ---


def parse_jwks(text: str) -> tuple[JsonWebKey, ...]:
    """The keys that can verify signatures; others in the document are passed over."""
    try:
        from tidemill.security import signatures
    except ImportError:
        raise ConfigError(
            "OAUTHBEARER needs the package cryptography: pip install 'tidemill[security]'"
        ) from None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list) or not all(isinstance(key, dict) for key in listed):
        raise ConfigError('the key set is not a JWKS document: {"keys": [...]}')
    keys = [key for each in listed if (key := _parse_key(each, signatures)) is not None]
    if not keys:
        raise ConfigError("the key set has no RSA, P-256 or P-384 key that verifies signatures")
    return tuple(keys)


def _parse_key(key: dict[str, Any], signatures: Any) -> JsonWebKey | None:
    # Some issuers write null for what they do not say.
    use, operations = key.get("use"), key.get("key_ops")
    if use not in (None, "sig"):
        return None
    if operations is not None and not (isinstance(operations, list) and "verify" in operations):
        return None
    kind = key.get("crv") if key.get("kty") == "EC" else key.get("kty")
    names = ("n", "e") if kind == "RSA" else ("x", "y")
    if kind not in ("RSA", "P-256", "P-384") or not all(isinstance(key.get(name), str) for name in names):
        return None
    try:
        first, second = (int.from_bytes(_base64url(key[name])) for name in names)
        public_key = (
            signatures.rsa_key(first, second, _RSA_BITS_MIN)
            if kind == "RSA"
            else signatures.elliptic_key(kind, first, second)
        )
    except (_InvalidToken, ValueError):
        return None
    key_id, algorithm = key.get("kid"), key.get("alg")
    return JsonWebKey(
        kind,
        key_id if isinstance(key_id, str) else None,
        algorithm if isinstance(algorithm, str) else None,
        public_key,
    )


# --- JSON ---


def _base64url(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        raise _InvalidToken("it is not base64url") from None


def _json_object(raw: bytes, what: str) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise _InvalidToken(f"its {what} is not a JSON object")
    return value


def _time_ms(claims: dict[str, Any], name: str) -> int | None:
    """A NumericDate; `exp: true` and `exp: 1e400` are none."""
    value = claims.get(name)
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= _SECONDS_MAX:
        raise _InvalidToken(f"its {name} is not a time")
    return int(value * 1000)


def _texts(claims: dict[str, Any], name: str) -> frozenset[str]:
    """A text, or a list of texts."""
    value = claims.get(name)
    listed = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return frozenset(each for each in listed if isinstance(each, str))
