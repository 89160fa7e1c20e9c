"""Bearer tokens: what is signed by a known key for this audience is accepted, and nothing else (failure 37)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from tidemill.errors import ConfigError
from tidemill.security.conversations import Identity, SaslFailure
from tidemill.security.oauthbearer import (
    ALGORITHMS,
    OAuthBearerClient,
    OAuthBearerServer,
    TokenRules,
    TokenValidator,
)

NOW_MS = 1_700_000_000_000
NOW_S = NOW_MS // 1000
RSA_KEY = rsa.generate_private_key(65537, 2048)
OTHER_RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEYS = {
    "P-256": ec.generate_private_key(ec.SECP256R1()),
    "P-384": ec.generate_private_key(ec.SECP384R1()),
}
HASHES = {"256": hashes.SHA256(), "384": hashes.SHA384(), "512": hashes.SHA512()}
CLAIMS = {"sub": "alice", "iss": "https://id", "aud": "tidemill", "exp": NOW_S + 60, "iat": NOW_S}
RULES = TokenRules(issuer="https://id", audiences=frozenset({"tidemill"}))


def encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def number(value: int) -> str:
    return encoded(value.to_bytes((value.bit_length() + 7) // 8))


def rsa_jwk(key: rsa.RSAPrivateKey, key_id: str, **more: str) -> dict[str, str]:
    numbers = key.public_key().public_numbers()
    return {"kty": "RSA", "kid": key_id, "n": number(numbers.n), "e": number(numbers.e), **more}


def ec_jwk(curve: str) -> dict[str, str]:
    numbers = EC_KEYS[curve].public_key().public_numbers()
    return {"kty": "EC", "crv": curve, "kid": curve, "x": number(numbers.x), "y": number(numbers.y)}


JWKS = json.dumps({"keys": [rsa_jwk(RSA_KEY, "r"), ec_jwk("P-256"), ec_jwk("P-384")]})
VALIDATOR = TokenValidator(JWKS, RULES)


def sign(algorithm: str, message: bytes, key: rsa.RSAPrivateKey = RSA_KEY) -> bytes:
    hashed = HASHES[algorithm[2:]]
    if algorithm.startswith("RS"):
        return key.sign(message, padding.PKCS1v15(), hashed)
    if algorithm.startswith("PS"):
        return key.sign(message, padding.PSS(padding.MGF1(hashed), hashed.digest_size), hashed)
    curve = "P-" + algorithm[2:]
    r, s = decode_dss_signature(EC_KEYS[curve].sign(message, ec.ECDSA(hashed)))
    size = int(algorithm[2:]) // 8
    return r.to_bytes(size) + s.to_bytes(size)


def token(
    claims: dict[str, Any] | None = None,
    algorithm: str = "RS256",
    *,
    key: rsa.RSAPrivateKey = RSA_KEY,
    **header: Any,
) -> str:
    head = encoded(json.dumps({"alg": algorithm, **header}).encode())
    body = encoded(json.dumps(CLAIMS if claims is None else claims).encode())
    return f"{head}.{body}.{encoded(sign(algorithm, f'{head}.{body}'.encode(), key))}"


def is_accepted(text: str, validator: TokenValidator = VALIDATOR, wall_ms: int = NOW_MS) -> bool:
    try:
        validator(text, wall_ms)
    except SaslFailure:
        return False
    return True


def test_refusal_shows_the_token_to_neither_side() -> None:
    with pytest.raises(SaslFailure) as failure:
        VALIDATOR(token(key=OTHER_RSA_KEY), NOW_MS)
    assert failure.value.public == "invalid_token"
    assert str(failure.value) == "the bearer token is refused: its signature is wrong"


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_token_signed_by_a_known_key_is_accepted(algorithm: str) -> None:
    accepted = VALIDATOR(token(algorithm=algorithm), NOW_MS)
    assert accepted.principal_name == "alice"
    assert accepted.expires_wall_ms == NOW_MS + 60_000
    claims = {**CLAIMS, "sub": "mallory"}
    head, _, signature = token(algorithm=algorithm).split(".")
    assert not is_accepted(f"{head}.{encoded(json.dumps(claims).encode())}.{signature}")


def test_failure_37_unsigned_token_is_refused() -> None:
    body = encoded(json.dumps(CLAIMS).encode())
    for algorithm in ("none", "None", "NONE", "", None, ["RS256"]):
        head = encoded(json.dumps({"alg": algorithm}).encode())
        for signature in ("", "AA", encoded(sign("RS256", f"{head}.{body}".encode()))):
            assert not is_accepted(f"{head}.{body}.{signature}")
    head, body, _ = token().split(".")
    assert not is_accepted(f"{head}.{body}.")
    assert not is_accepted(f"{head}.{body}")


def test_failure_37_hmac_with_the_public_key_is_refused() -> None:
    public = RSA_KEY.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    head = encoded(json.dumps({"alg": "HS256"}).encode())
    body = encoded(json.dumps(CLAIMS).encode())
    signature = hmac.new(public, f"{head}.{body}".encode(), hashlib.sha256).digest()
    assert not is_accepted(f"{head}.{body}.{encoded(signature)}")
    with pytest.raises(ConfigError, match="HS256"):
        TokenValidator(JWKS, TokenRules(algorithms=frozenset({"HS256"})))


def test_failure_37_key_of_a_stranger_is_refused() -> None:
    assert not is_accepted(token(key=OTHER_RSA_KEY))
    assert not is_accepted(token(key=OTHER_RSA_KEY, kid="r"))
    assert not is_accepted(token(kid="unknown"))
    inside = rsa_jwk(OTHER_RSA_KEY, "mine")
    assert not is_accepted(token(key=OTHER_RSA_KEY, jwk=inside, kid="mine"))


@pytest.mark.parametrize(
    "change",
    [
        {"exp": NOW_S - 31},
        {"exp": None},
        {"exp": "soon"},
        {"exp": True},
        {"exp": 1e400},
        {"exp": 10**400},
        {"exp": float("nan")},
        {"exp": -1},
        {"iat": None},
        {"nbf": NOW_S + 31},
        {"iss": "https://other"},
        {"iss": None},
        {"aud": "other"},
        {"aud": ["other", 7]},
        {"aud": None},
        {"sub": None},
        {"sub": " "},
        {"sub": 7},
        # Half of a surrogate pair: no text that a metric or a response could carry.
        {"sub": "alice\ud800"},
    ],
)
def test_failure_37_claims_that_do_not_fit_are_refused(change: dict[str, Any]) -> None:
    assert is_accepted(token())
    assert not is_accepted(token({**CLAIMS, **change}))


def test_clock_skew_is_allowed_for() -> None:
    assert is_accepted(token({**CLAIMS, "exp": NOW_S - 29}))
    assert is_accepted(token({**CLAIMS, "nbf": NOW_S + 29}))
    assert not is_accepted(token(), wall_ms=NOW_MS + 90_000)


def test_scopes_and_claim_names_are_configurable() -> None:
    validator = TokenValidator(JWKS, TokenRules(subject_claim="client_id", scope_claim="scp"))
    claims = {"client_id": "svc", "exp": NOW_S + 60, "iat": NOW_S}
    assert validator(token({**claims, "scp": ["a", "b"]}), NOW_MS).scopes == {"a", "b"}
    accepted = validator(token({**claims, "scp": "a b"}), NOW_MS)
    assert accepted.principal_name == "svc"
    assert accepted.scopes == {"a", "b"}


def test_algorithm_outside_of_the_allow_list_is_refused() -> None:
    validator = TokenValidator(JWKS, TokenRules(algorithms=frozenset({"ES256"})))
    assert not is_accepted(token(), validator)
    assert is_accepted(token(algorithm="ES256"), validator)


def test_key_serves_only_what_it_is_for() -> None:
    for_encryption = json.dumps({"keys": [rsa_jwk(RSA_KEY, "r", use="enc"), ec_jwk("P-256")]})
    assert not is_accepted(token(), TokenValidator(for_encryption, RULES))
    for_another = json.dumps({"keys": [rsa_jwk(RSA_KEY, "r", alg="RS512")]})
    assert not is_accepted(token(), TokenValidator(for_another, RULES))
    assert is_accepted(token(algorithm="RS512"), TokenValidator(for_another, RULES))


@pytest.mark.parametrize(
    ("operations", "verifies"),
    [(None, True), (["verify"], True), (["encrypt"], False), (7, False), ("verify", False), ([], False)],
)
def test_key_operations_may_be_anything(operations: object, verifies: bool) -> None:
    key = {**rsa_jwk(RSA_KEY, "r"), "key_ops": operations}
    validator = TokenValidator(json.dumps({"keys": [key, ec_jwk("P-256")]}), RULES)
    assert is_accepted(token(), validator) is verifies


def test_critical_header_is_refused() -> None:
    assert not is_accepted(token(crit=["b64"], b64=False))


@pytest.mark.parametrize(
    "text", ["", "..", "a.b", "a.b.c.d", "é.b.c", "A" * 1_000_000, "W10.W10.AA", "bnVsbA.bnVsbA.AA"]
)
def test_text_that_is_no_token_is_refused(text: str) -> None:
    assert not is_accepted(text)


def test_deeply_nested_header_is_refused() -> None:
    assert not is_accepted(f"{encoded(b'[' * 20_000)}.e30.AA")


@pytest.mark.parametrize(
    "jwks",
    ["", "[]", "{}", '{"keys": 7}', '{"keys": []}', '{"keys": [{"kty": "oct", "k": "AAAA"}]}', "[" * 100_000],
)
def test_key_set_without_a_usable_key_stops_the_start(jwks: str) -> None:
    with pytest.raises(ConfigError, match="key set"):
        TokenValidator(jwks, RULES)


def test_key_is_found_by_its_id_in_a_set_of_any_size() -> None:
    stranger = rsa.generate_private_key(65537, 2048)
    others = [rsa_jwk(stranger, f"other-{number}") for number in range(1_000)]
    many = json.dumps({"keys": [*others, rsa_jwk(RSA_KEY, "last")]})
    assert is_accepted(token(kid="last"), TokenValidator(many, RULES))
    assert not is_accepted(token(kid="other-7"), TokenValidator(many, RULES))


def test_token_without_a_key_id_is_tried_with_a_limited_number_of_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many = json.dumps({"keys": [rsa_jwk(RSA_KEY, f"k-{number}") for number in range(1_000)]})
    tried: list[str] = []

    def verify(_key: object, algorithm: str, _signature: bytes, _message: bytes) -> bool:
        tried.append(algorithm)
        return False

    validator = TokenValidator(many, RULES)
    monkeypatch.setattr("tidemill.security.signatures.RsaKey.verify", verify)
    assert not is_accepted(token(), validator)
    assert 1 <= len(tried) <= 64


def test_short_rsa_key_is_not_used() -> None:
    weak = rsa.generate_private_key(65537, 1024)
    with pytest.raises(ConfigError, match="no RSA"):
        TokenValidator(json.dumps({"keys": [rsa_jwk(weak, "w")]}), RULES)


# --- the exchange ---


def test_login_with_a_token_knows_when_it_expires() -> None:
    client, server = OAuthBearerClient(token()), OAuthBearerServer(VALIDATOR)
    assert server.respond(client.first(), NOW_MS) == b""
    assert client.answer(b"") is None
    assert server.identity == Identity("alice", NOW_MS + 60_000)


def test_refused_token_is_answered_with_json_and_fails_after_the_acknowledgement() -> None:
    client, server = OAuthBearerClient("not.a.token"), OAuthBearerServer(VALIDATOR)
    challenge = server.respond(client.first(), NOW_MS)
    assert challenge == b'{"status":"invalid_token"}'
    assert client.answer(challenge) == b"\x01"
    with pytest.raises(SaslFailure) as failure:
        server.respond(b"\x01", NOW_MS)
    assert failure.value.public == '{"status":"invalid_token"}'
    # A second try with a good token does not help.
    with pytest.raises(SaslFailure):
        server.respond(OAuthBearerClient(token()).first(), NOW_MS)
    assert server.identity is None


def test_client_may_not_act_for_another_principal() -> None:
    message = OAuthBearerClient(token()).first()
    server = OAuthBearerServer(VALIDATOR)
    with pytest.raises(SaslFailure, match="authorization id"):
        server.respond(message.replace(b"n,,", b"n,a=bob,"), NOW_MS)
    assert OAuthBearerServer(VALIDATOR).respond(message.replace(b"n,,", b"n,a=alice,"), NOW_MS) == b""


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,\x01\x01",
        b"n,,\x01auth=Basic abc\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer a\x01auth=Bearer b\x01\x01",
        b"n,,\x01auth=Bearer a\x01",
        b"p,,\x01auth=Bearer a\x01\x01",
        b"\xff",
        b"n,,\x01" + b"a=b\x01" * 250_000,
    ],
)
def test_message_that_is_not_one_is_refused(message: bytes) -> None:
    with pytest.raises(SaslFailure, match="OAUTHBEARER message"):
        OAuthBearerServer(VALIDATOR).respond(message, NOW_MS)
