"""SCRAM by the vectors of its RFCs, and against what a hostile peer may send."""

from __future__ import annotations

import base64

import pytest

from tidemill.security.conversations import Identity, SaslFailure
from tidemill.security.scram import (
    ITERATIONS_MIN,
    SALT_BYTES,
    ScramClient,
    ScramCredential,
    ScramMechanism,
    ScramServer,
    credential,
    decoy_salt,
    salted_password,
)

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512
# RFC 7677, section 3.
USER, PASSWORD = "user", "pencil"
CLIENT_NONCE, SERVER_NONCE = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")


def kept(mechanism: ScramMechanism = SHA_256, password: str = PASSWORD) -> ScramCredential:
    return credential(
        mechanism, salted_password(mechanism, password, SALT, ITERATIONS_MIN), SALT, ITERATIONS_MIN
    )


KNOWN = {USER: kept()}


def server(users: dict[str, ScramCredential] = KNOWN, nonce: str = SERVER_NONCE) -> ScramServer:
    return ScramServer(SHA_256, users.get, nonce=nonce, decoy_key=b"decoy")


def test_both_sides_speak_the_exchange_of_rfc_7677() -> None:
    client, answering = ScramClient(SHA_256, USER, PASSWORD, nonce=CLIENT_NONCE), server()
    assert client.first() == CLIENT_FIRST
    assert answering.respond(CLIENT_FIRST, 0) == SERVER_FIRST
    assert client.answer(SERVER_FIRST) == CLIENT_FINAL
    assert answering.respond(CLIENT_FINAL, 0) == SERVER_FINAL
    assert client.answer(SERVER_FINAL) is None
    assert answering.identity == Identity("user")


@pytest.mark.parametrize("name", ["a,b=c", "=2C", "=3D2C", 'quo"te', "new\nline", "naïve Ω", " "])
def test_any_name_is_proven_as_it_is_written_with_sha_512(name: str) -> None:
    users = {name: kept(SHA_512)}
    client = ScramClient(SHA_512, name, PASSWORD, nonce="c")
    answering = ScramServer(SHA_512, users.get, nonce="s", decoy_key=b"k")
    final = client.answer(answering.respond(client.first(), 0))
    assert final is not None
    assert client.answer(answering.respond(final, 0)) is None
    assert answering.identity == Identity(name)


def test_wrong_password_fails_without_details_for_the_client() -> None:
    client, answering = ScramClient(SHA_256, USER, "pen", nonce="c"), server()
    final = client.answer(answering.respond(client.first(), 0))
    assert final is not None
    with pytest.raises(SaslFailure) as failure:
        answering.respond(final, 0)
    assert failure.value.public is None
    assert answering.identity is None


def test_unknown_user_gets_a_stable_salt_and_fails_like_a_wrong_password() -> None:
    def attempt(user: str) -> tuple[bytes, str | None]:
        client, answering = ScramClient(SHA_256, user, "pen", nonce="c"), server()
        challenge = answering.respond(client.first(), 0)
        final = client.answer(challenge)
        assert final is not None
        with pytest.raises(SaslFailure) as failure:
            answering.respond(final, 0)
        return challenge, failure.value.public

    first, public = attempt("nobody")
    assert attempt("nobody") == (first, public)
    assert attempt("other")[0] != first
    assert attempt(USER)[1] == public
    assert first.endswith(b",i=4096")


def salt_in(first: bytes) -> bytes:
    return base64.b64decode(first.split(b",s=")[1].split(b",i=")[0])


def test_salt_of_an_unknown_user_depends_on_the_secret_and_looks_like_any_other() -> None:
    first = ScramClient(SHA_256, "nobody", PASSWORD, nonce="c").first()
    salts = {
        key: salt_in(ScramServer(SHA_256, lambda _user: None, nonce="s", decoy_key=key).respond(first, 0))
        for key in (b"one", b"two")
    }
    assert salts[b"one"] != salts[b"two"]
    assert {len(salt) for salt in salts.values()} == {SALT_BYTES}
    assert salts[b"one"] == decoy_salt(b"one", "nobody")


def test_credential_with_too_few_iterations_proves_nothing() -> None:
    weak = credential(SHA_256, salted_password(SHA_256, PASSWORD, SALT, 100), SALT, 100)
    assert server({USER: weak}).respond(CLIENT_FIRST, 0).endswith(b",i=4096")


def test_recorded_login_cannot_be_replayed() -> None:
    answering = server(nonce="another")
    answering.respond(CLIENT_FIRST, 0)
    with pytest.raises(SaslFailure, match="nonce"):
        answering.respond(CLIENT_FINAL, 0)
    # With the nonce put right the proof is wrong: it signs the nonce.
    answering = server(nonce="another")
    answering.respond(CLIENT_FIRST, 0)
    with pytest.raises(SaslFailure, match="wrong password"):
        answering.respond(CLIENT_FINAL.replace(SERVER_NONCE.encode(), b"another"), 0)


def test_token_after_the_last_one_is_refused() -> None:
    answering = server()
    answering.respond(CLIENT_FIRST, 0)
    answering.respond(CLIENT_FINAL, 0)
    with pytest.raises(SaslFailure, match="after the last"):
        answering.respond(CLIENT_FINAL, 0)


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n",
        b"n,,",
        b"n,,n=user",
        b"n,,n=,r=abc",
        b"n,,n=user,r=",
        b"n,,n=us=er,r=abc",
        b"n,,n=us\0er,r=abc",
        b"n,,n=user,r=a c",
        b"n,,r=abc,n=user",
        b"n,b=x,n=user,r=abc",
        b"p=tls-unique,,n=user,r=abc",
        b"n,,m=must,n=user,r=abc",
        b"n,,n=user,r=abc,x",
        b"\xff\xfe",
        b"A" * 1_000_000,
        b"n,,n=" + b"," * 1_000_000,
    ],
)
def test_first_message_that_is_not_one_is_refused(first: bytes) -> None:
    with pytest.raises(SaslFailure):
        server().respond(first, 0)


NONCES = (CLIENT_NONCE + SERVER_NONCE).encode()


@pytest.mark.parametrize(
    "final",
    [
        b"",
        CLIENT_FINAL[:-1],
        CLIENT_FINAL[:40],
        CLIENT_FINAL.replace(b"c=biws", b"c=eSws"),
        CLIENT_FINAL.replace(b"c=biws,", b""),
        CLIENT_FINAL.replace(b",p=", b",x,p="),
        b"c=biws,r=" + NONCES + b",p=",
        b"c=biws,r=" + NONCES + b",p=AAAA",
        b"c=biws,r=" + NONCES + b",p=" + base64.b64encode(bytes(32)),
        b"c=biws,r=" + NONCES + b",p=" + base64.b64encode(bytes(1_000_000)),
        b"c=biws,r=" + CLIENT_NONCE.encode() + b",p=" + base64.b64encode(bytes(32)),
        b"\xff",
    ],
)
def test_final_message_that_proves_nothing_is_refused(final: bytes) -> None:
    answering = server()
    answering.respond(CLIENT_FIRST, 0)
    with pytest.raises(SaslFailure):
        answering.respond(final, 0)
    assert answering.identity is None


def test_client_may_not_act_for_another_user() -> None:
    class Impostor(ScramClient):
        def first(self) -> bytes:
            return super().first().replace(b"n,,", b"n,a=admin,")

        def answer(self, challenge: bytes) -> bytes | None:
            final = super().answer(challenge)
            assert final is not None
            return final

    answering = server()
    client = Impostor(SHA_256, USER, PASSWORD, nonce="c")
    challenge = answering.respond(client.first(), 0)
    final = client.answer(challenge)
    assert final is not None
    # The binding names the header that was sent; a proof over another one is wrong.
    with pytest.raises(SaslFailure, match="binds another"):
        answering.respond(final, 0)
    assert answering.identity is None


def test_delegation_token_login_fails_like_an_unknown_user() -> None:
    answering = server()
    assert answering.respond(CLIENT_FIRST + b",tokenauth=true", 0) != SERVER_FIRST


@pytest.mark.parametrize(
    ("challenge", "problem"),
    [
        (b"e=invalid-proof", "invalid-proof"),
        (b"r=other,s=AAAA,i=4096", "does not continue ours"),
        (b"r=c,s=AAAA,i=4096", "does not continue ours"),
        (b"r=cs,s=AAAA,i=4095", "iterations"),
        (b"r=cs,s=AAAA,i=1000001", "iterations"),
        (b"r=cs,s=AAAA,i=" + b"9" * 5000, "iterations"),
        (b"r=cs,s=AAAA,i=-4096", "iterations"),
        (b"r=cs,s=A,i=4096", "salt"),
        (b"r=cs,i=4096,s=AAAA", "not one of SCRAM"),
        (b"", "not one of SCRAM"),
        (b"\xff", "UTF-8"),
    ],
)
def test_client_refuses_a_server_that_is_not_one(challenge: bytes, problem: str) -> None:
    client = ScramClient(SHA_256, USER, PASSWORD, nonce="c")
    with pytest.raises(SaslFailure, match=problem):
        client.answer(challenge)


@pytest.mark.parametrize("final", [b"v=AAAA", b"v=", b"", b"r=cs", b"e=other-error"])
def test_client_refuses_a_server_that_does_not_know_the_password(final: bytes) -> None:
    client = ScramClient(SHA_256, USER, PASSWORD, nonce=CLIENT_NONCE)
    client.answer(SERVER_FIRST)
    with pytest.raises(SaslFailure):
        client.answer(final)


def test_keys_are_not_shown() -> None:
    assert "stored_key" not in repr(kept())
