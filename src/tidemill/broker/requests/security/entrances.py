"""The entrance of each listener: its TLS, its gate for logins, and the mapping of certificates to principals."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable, Mapping

from tidemill.broker.net.network import Dispatch, Entrance
from tidemill.broker.platform import Platform
from tidemill.broker.requests.security.bearer_keys import BearerKeys
from tidemill.broker.requests.security.plain_users import KnownPlainUsers
from tidemill.broker.requests.security.sasl import FindScram, SaslGate, server_settings
from tidemill.config import BrokerConfig
from tidemill.security.principals import PrincipalMapping
from tidemill.tls.contexts import TlsContexts


class Entrances:
    def __init__(
        self,
        config: BrokerConfig,
        platform: Platform,
        loop: AbstractEventLoop,
        contexts: Mapping[str, TlsContexts],
        dispatch: Dispatch,
        new_nonce: Callable[[], str],
        find_scram: FindScram,
        decoy_key: bytes,
    ) -> None:
        """Raises ConfigError when a listener's settings cannot be used."""
        self._reloading: list[BearerKeys | KnownPlainUsers] = []
        self._entrances: dict[str, Entrance] = {}
        for name, security in config.security.listeners.items():
            login_bytes_max, gate = None, None
            if security.sasl is not None:
                plain, keys = None, None
                if "PLAIN" in security.sasl.mechanisms:
                    plain = KnownPlainUsers(security.sasl, name, platform.run_blocking)
                    self._reloading.append(plain)
                if security.sasl.oauth is not None:
                    keys = BearerKeys(security.sasl.oauth, platform.run_blocking)
                    self._reloading.append(keys)
                gate = SaslGate(
                    server_settings(security.sasl, find_scram, plain, keys, decoy_key),
                    dispatch,
                    loop,
                    platform.clock,
                    new_nonce,
                    config.security.failed_authentication_delay_ms,
                )
                login_bytes_max = security.sasl.receive_bytes_max
            has_certificates = security.protocol == "SSL"
            self._entrances[name] = Entrance(
                tls=contexts.get(name),
                login_bytes_max=login_bytes_max,
                dispatch=gate.dispatch if gate is not None else None,
                principal_of=PrincipalMapping(security.principal_mapping_rules).principal
                if has_certificates
                else None,
            )

    def of(self, listener_name: str) -> Entrance:
        return self._entrances[listener_name]

    def start(self) -> None:
        for each in self._reloading:
            each.start()

    def close(self) -> None:
        for each in self._reloading:
            each.close()
