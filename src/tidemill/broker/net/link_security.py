"""Secures this node's links to other nodes: the TLS of each listener, and the login of nodes.

`Authentication` is the exchange of one link. It sends its requests through the channel, which sends nothing else until it is
done. The arithmetic of SCRAM takes milliseconds, so it runs in a thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from tidemill.config import BrokerConfig, ListenerSecurity, Login
from tidemill.errors import ConfigError, ErrorCode, TidemillError
from tidemill.protocol.api.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from tidemill.protocol.schema import Request, Response
from tidemill.security.conversations import SaslFailure
from tidemill.security.sasl import ClientLogin, SaslClient
from tidemill.tls.contexts import TlsContexts

# Part of a session after which it is renewed, as Kafka's clients do.
_RENEW_SHARE = 0.85


class LoginFailed(TidemillError):
    """The other node refuses this one's login, or is not one that knows the password."""


class RunBlocking(Protocol):
    def __call__(self, function: Callable[[], Any], /) -> Awaitable[Any]: ...


class Exchange(Protocol):
    """Sends one request of the login to the peer and returns its answer."""

    def __call__(self, request: Request, version: int, answer: type[Response], /) -> Awaitable[Any]: ...


@dataclass(frozen=True, slots=True)
class LinkSecurity:
    run_blocking: RunBlocking
    new_nonce: Callable[[], str]
    tls: TlsContexts | None = None
    login: Login | None = None

    async def authenticate(self, exchange: Exchange) -> float | None:
        """Log in. The seconds after which to do so again, or None. Raises LoginFailed."""
        assert self.login is not None
        handshake = await exchange(
            SaslHandshakeRequest(mechanism=self.login.mechanism), 1, SaslHandshakeResponse
        )
        if handshake.error_code:
            raise LoginFailed(
                f"the other node does not take {self.login.mechanism} ({ErrorCode(handshake.error_code).name}); it has "
                f"{', '.join(handshake.mechanisms) or 'none'}"
            )
        lifetime_ms = 0
        try:
            client = SaslClient(await self._client_login(self.login), nonce=self.new_nonce())
            token: bytes | None = client.initial_token()
            while token is not None:
                answer = await exchange(
                    SaslAuthenticateRequest(auth_bytes=token), 1, SaslAuthenticateResponse
                )
                if answer.error_code:
                    raise LoginFailed(answer.error_message or ErrorCode(answer.error_code).name)
                lifetime_ms = answer.session_lifetime_ms
                challenge = bytes(answer.auth_bytes)
                token = await self.run_blocking(partial(client.evaluate, challenge))
        except SaslFailure as failure:
            raise LoginFailed(str(failure)) from None
        return _RENEW_SHARE * lifetime_ms / 1000 if lifetime_ms > 0 else None

    async def _client_login(self, login: Login) -> ClientLogin:
        token = ""
        if login.token_file is not None:
            path = Path(login.token_file)
            try:
                token = (await self.run_blocking(path.read_text)).strip()
            except OSError as error:
                raise LoginFailed(f"{path} cannot be read: {error.strerror or error}") from None
        return ClientLogin(login.mechanism, login.username, login.password.value, token)


def tls_contexts(config: BrokerConfig) -> dict[str, TlsContexts]:
    """By the name of the listener. Raises ConfigError, with the listener's name, when a store cannot be used."""
    network = config.network
    bound = {each.name for each in (*network.listeners, *network.controller_listeners)}
    dialled = {network.inter_broker_listener_name, *network.controller_listener_names}
    contexts = {}
    for name, security in config.security.listeners.items():
        if security.tls is not None:
            try:
                contexts[name] = TlsContexts(security.tls, serves=name in bound, dials=name in dialled)
            except ConfigError as error:
                raise ConfigError(f"listener {name}: {error}") from None
    return contexts


def link_security(
    name: str,
    listeners: Mapping[str, ListenerSecurity],
    contexts: Mapping[str, TlsContexts],
    run_blocking: RunBlocking,
    new_nonce: Callable[[], str],
) -> LinkSecurity | None:
    """Returns the security of links to that listener of other nodes; None where nothing is secured."""
    security = listeners.get(name)
    if security is None or (security.tls is None and security.login is None):
        return None
    return LinkSecurity(run_blocking, new_nonce, contexts.get(name), security.login)
