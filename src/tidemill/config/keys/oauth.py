"""Broker keys of SASL/OAUTHBEARER. DescribeConfigs lists those that are set."""

from __future__ import annotations

from tidemill.config.definitions import ConfigKey, ConfigType, at_least


def _key(name: str, type_: ConfigType, default: str, documentation: str) -> ConfigKey:
    check = at_least(0) if type_ in (ConfigType.INT, ConfigType.LONG) else None
    return ConfigKey(f"sasl.oauthbearer.{name}", type_, default, documentation, check, is_internal=True)


OAUTH_KEYS: tuple[ConfigKey, ...] = (
    _key("clock.skew.seconds", ConfigType.INT, "30", "Difference of clocks that a token may have."),
    _key("expected.audience", ConfigType.LIST, "", "Audiences whose tokens are accepted; empty for any."),
    _key("expected.issuer", ConfigType.STRING, "", "Issuer whose tokens are accepted; empty for any."),
    _key("jwks.endpoint.refresh.ms", ConfigType.LONG, "3600000", "Time between two reads of the keys."),
    _key("jwks.endpoint.url", ConfigType.STRING, "", "Keys that sign tokens: file://, https:// or http://."),
    _key("scope.claim.name", ConfigType.STRING, "scope", "Claim of a token with its scopes."),
    _key("sub.claim.name", ConfigType.STRING, "sub", "Claim of a token with the user's name."),
    _key("token.endpoint.url", ConfigType.STRING, "", "File with this node's own token: file:///PATH."),
)
