"""The authentication of one connection, from the handshake to the next one."""

from __future__ import annotations

import pytest

from tidemill.errors import ErrorCode
from tidemill.security import oauthbearer
from tidemill.security.conversations import SaslFailure
from tidemill.security.plain import PlainServer, PlainUsers
from tidemill.security.principals import Principal
from tidemill.security.sasl import (
    ClientLogin,
    SaslClient,
    SaslServer,
    SaslServerSettings,
    SaslState,
)
from tidemill.security.scram import ITERATIONS_MIN, ScramMechanism, ScramServer, credential, salted_password

USERS = PlainUsers({"alice": "secret", "bob": "pass"})
FETCH_KEY, HANDSHAKE_KEY, API_VERSIONS_KEY, AUTHENTICATE_KEY = 1, 17, 18, 36


def bearer(token: str, wall_ms: int) -> oauthbearer.BearerToken:
    """A token here is a name and when it expires."""
    name, _, expires = token.partition(".")
    if int(expires) <= wall_ms:
        raise SaslFailure("expired", public="invalid_token")
    return oauthbearer.BearerToken(name, int(expires))


def scram(nonce: str) -> ScramServer:
    salted = salted_password(ScramMechanism.SHA_256, "secret", b"salt", ITERATIONS_MIN)
    known = {"alice": credential(ScramMechanism.SHA_256, salted, b"salt", ITERATIONS_MIN)}
    return ScramServer(ScramMechanism.SHA_256, known.get, nonce=nonce, decoy_key=b"k")


def make_server(**max_reauth_ms: int) -> SaslServer:
    return SaslServer(
        SaslServerSettings(
            {
                "PLAIN": lambda _: PlainServer(USERS),
                "SCRAM-SHA-256": scram,
                "OAUTHBEARER": lambda _: oauthbearer.OAuthBearerServer(bearer),
            },
            max_reauth_ms,
        )
    )


def plain_token(user: str = "alice", password: str = "secret") -> bytes:
    return f"\0{user}\0{password}".encode()


def log_in(
    server: SaslServer, login: ClientLogin, *, steady_ms: int = 0, wall_ms: int = 0
) -> tuple[ErrorCode, str | None, int]:
    """Runs a whole exchange; the code, message and session lifetime of the last reply."""
    handshake = server.handshake(login.mechanism, 1, nonce="server", steady_ms=steady_ms)
    if handshake.error_code:
        return handshake.error_code, None, 0
    client = SaslClient(login, nonce="client")
    token: bytes | None = client.initial_token()
    while token is not None:
        reply = server.authenticate(token, wall_ms=wall_ms, steady_ms=steady_ms)
        if reply.error_code:
            return reply.error_code, reply.error_message, 0
        token = client.evaluate(reply.token)
    assert client.is_complete
    return ErrorCode.NONE, None, reply.session_lifetime_ms


ALICE = ClientLogin("PLAIN", "alice", "secret")
ALICE_BY_SCRAM = ClientLogin("SCRAM-SHA-256", "alice", "secret")


@pytest.mark.parametrize("login", [ALICE, ALICE_BY_SCRAM, ClientLogin("OAUTHBEARER", token="alice.1000")])
def test_each_mechanism_proves_a_user(login: ClientLogin) -> None:
    server = make_server()
    assert log_in(server, login)[0] is ErrorCode.NONE
    assert server.principal == Principal("User", "alice")
    assert server.state is SaslState.AUTHENTICATED
    assert "secret" not in repr(login)


def test_before_the_login_only_its_requests_are_served() -> None:
    server = make_server()
    served = [key for key in range(100) if server.may_serve(key)]
    assert served == [HANDSHAKE_KEY, API_VERSIONS_KEY]
    server.handshake("PLAIN", 1, nonce="n", steady_ms=0)
    assert [key for key in range(100) if server.may_serve(key)] == [AUTHENTICATE_KEY]
    server.authenticate(plain_token(), wall_ms=0, steady_ms=0)
    assert server.may_serve(FETCH_KEY)
    assert server.may_serve(HANDSHAKE_KEY)


def test_mechanism_that_is_not_enabled_fails_with_those_that_are() -> None:
    server = make_server()
    reply = server.handshake("GSSAPI", 1, nonce="n", steady_ms=0)
    assert reply.error_code is ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert reply.mechanisms == ("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER")
    assert server.state is SaslState.FAILED
    assert not any(server.may_serve(key) for key in range(100))


def test_token_before_the_handshake_fails() -> None:
    server = make_server()
    reply = server.authenticate(plain_token(), wall_ms=0, steady_ms=0)
    assert reply.error_code is ErrorCode.ILLEGAL_SASL_STATE
    assert server.state is SaslState.FAILED


def test_second_handshake_during_the_exchange_fails() -> None:
    server = make_server()
    server.handshake("PLAIN", 1, nonce="n", steady_ms=0)
    assert server.handshake("PLAIN", 1, nonce="n", steady_ms=0).error_code is ErrorCode.ILLEGAL_SASL_STATE
    assert server.state is SaslState.FAILED


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (plain_token("alice", "wrong"), "Authentication failed: Invalid username or password"),
        (plain_token("nobody", "secret"), "Authentication failed: Invalid username or password"),
        (plain_token("", "secret"), "Authentication failed: username not specified"),
        (plain_token("alice", ""), "Authentication failed: password not specified"),
        (
            b"bob" + plain_token(),
            "Authentication failed: Client requested an authorization id that is different from username",
        ),
        (b"\0alice", None),
        (b"", None),
        (b"\xff" * 1_000_000, None),
        (b"\0" * 1_000_000, None),
        (plain_token("alice\nINFO allowed", "x"), "Authentication failed: Invalid username or password"),
    ],
)
def test_wrong_plain_token_fails_once_and_for_all(token: bytes, message: str | None) -> None:
    server = make_server()
    server.handshake("PLAIN", 1, nonce="n", steady_ms=0)
    reply = server.authenticate(token, wall_ms=0, steady_ms=0)
    assert reply.error_code is ErrorCode.SASL_AUTHENTICATION_FAILED
    generic = (
        "Authentication failed during authentication due to invalid credentials with SASL mechanism PLAIN"
    )
    assert reply.error_message == (message or generic)
    assert reply.token == b""
    assert server.principal is None
    again = server.authenticate(plain_token(), wall_ms=0, steady_ms=0)
    assert again.error_code is ErrorCode.ILLEGAL_SASL_STATE
    assert server.principal is None


def test_authorization_id_equal_to_the_user_is_accepted() -> None:
    server = make_server()
    server.handshake("PLAIN", 1, nonce="n", steady_ms=0)
    assert not server.authenticate(b"alice" + plain_token(), wall_ms=0, steady_ms=0).error_code


@pytest.mark.parametrize("user", ["alice", "nobody"])
def test_scram_failure_reads_the_same_for_every_user(user: str) -> None:
    code, message, _ = log_in(make_server(), ClientLogin("SCRAM-SHA-256", user, "wrong"))
    assert code is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert message == (
        "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-256"
    )


def test_refused_bearer_token_fails_with_kafkas_json() -> None:
    code, message, _ = log_in(make_server(), ClientLogin("OAUTHBEARER", token="alice.0"))
    assert (code, message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, '{"status":"invalid_token"}')


# --- version 0: tokens without headers ---


def test_raw_tokens_follow_a_handshake_of_version_0() -> None:
    server = make_server()
    server.handshake("PLAIN", 0, nonce="n", steady_ms=0)
    assert server.expects_raw_tokens
    assert server.authenticate_raw(plain_token(), wall_ms=0, steady_ms=0) == b""
    assert server.principal == Principal.user("alice")
    assert not server.expects_raw_tokens


def test_wrong_raw_token_fails_without_an_answer() -> None:
    server = make_server()
    server.handshake("PLAIN", 0, nonce="n", steady_ms=0)
    assert server.authenticate_raw(b"x", wall_ms=0, steady_ms=0) is None
    assert server.state is SaslState.FAILED


def test_sasl_authenticate_after_a_handshake_of_version_0_fails() -> None:
    server = make_server()
    server.handshake("PLAIN", 0, nonce="n", steady_ms=0)
    reply = server.authenticate(plain_token(), wall_ms=0, steady_ms=0)
    assert reply.error_code is ErrorCode.ILLEGAL_SASL_STATE
    assert server.principal is None


# --- sessions ---


def test_session_without_a_limit_never_expires() -> None:
    server = make_server()
    assert log_in(server, ALICE)[2] == 0
    assert not server.is_expired(10**15)


def test_session_lasts_as_long_as_the_setting_or_the_token_allows() -> None:
    server = make_server(PLAIN=5_000, OAUTHBEARER=5_000)
    assert log_in(server, ALICE, steady_ms=100)[2] == 5_000
    assert not server.is_expired(5_100)
    assert server.is_expired(5_101)
    by_token = make_server(OAUTHBEARER=5_000)
    assert log_in(by_token, ClientLogin("OAUTHBEARER", token="alice.3000"), wall_ms=1_000)[2] == 2_000
    assert by_token.session_expires_ms == 2_000
    without_setting = make_server()
    assert log_in(without_setting, ClientLogin("OAUTHBEARER", token="alice.9000"), wall_ms=1_000)[2] == 8_000


def test_reauthentication_prolongs_the_session() -> None:
    server = make_server(PLAIN=5_000)
    log_in(server, ALICE)
    assert log_in(server, ALICE, steady_ms=4_000)[0] is ErrorCode.NONE
    assert server.session_expires_ms == 9_000


def test_expired_session_may_still_reauthenticate() -> None:
    server = make_server(PLAIN=5_000)
    log_in(server, ALICE)
    assert server.is_expired(6_000)
    assert log_in(server, ALICE, steady_ms=6_000)[0] is ErrorCode.NONE
    assert not server.is_expired(6_000)


def test_principal_may_not_change_by_reauthentication() -> None:
    server = make_server()
    log_in(server, ALICE)
    code, message, _ = log_in(server, ClientLogin("PLAIN", "bob", "pass"), steady_ms=2_000)
    assert code is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert message is not None
    assert "Cannot change principals" in message
    assert (server.state, server.principal) == (SaslState.FAILED, None)


def test_mechanism_may_not_change_by_reauthentication() -> None:
    server = make_server()
    log_in(server, ALICE)
    code, message, _ = log_in(server, ALICE_BY_SCRAM, steady_ms=2_000)
    assert code is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert message is not None
    assert "re-authentication" in message


def test_failed_reauthentication_ends_the_session() -> None:
    server = make_server()
    log_in(server, ALICE)
    log_in(server, ClientLogin("PLAIN", "alice", "wrong"), steady_ms=2_000)
    assert server.state is SaslState.FAILED
    assert not server.may_serve(FETCH_KEY)


def test_reauthentication_within_a_second_is_refused_and_changes_nothing() -> None:
    server = make_server()
    log_in(server, ALICE, steady_ms=10_000)
    reply = server.handshake("PLAIN", 1, nonce="n", steady_ms=10_999)
    assert reply.error_code is ErrorCode.ILLEGAL_SASL_STATE
    assert server.state is SaslState.AUTHENTICATED
    assert server.may_serve(FETCH_KEY)


def test_token_after_the_login_is_refused_and_changes_nothing() -> None:
    server = make_server()
    log_in(server, ALICE)
    assert server.authenticate(b"x", wall_ms=0, steady_ms=0).error_code is ErrorCode.ILLEGAL_SASL_STATE
    assert server.state is SaslState.AUTHENTICATED


def test_client_refuses_a_mechanism_it_does_not_know() -> None:
    with pytest.raises(SaslFailure, match="GSSAPI"):
        SaslClient(ClientLogin("GSSAPI"), nonce="n")


@pytest.mark.parametrize(("user", "password"), [("a\0b", "p"), ("a", "p\0q")])
def test_plain_client_refuses_what_the_token_cannot_carry(user: str, password: str) -> None:
    with pytest.raises(SaslFailure, match="NUL"):
        SaslClient(ClientLogin("PLAIN", user, password), nonce="n")
