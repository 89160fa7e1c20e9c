"""`sasl.jaas.config`: `MODULE required name="value" …;`, as Java's login configuration writes it.

Errors do not show the text: it holds passwords.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tidemill.errors import ConfigError

_PREFIX = "org.apache.kafka.common.security."
# The login modules that are known, and the mechanisms that each is for.
LOGIN_MODULES = {
    f"{_PREFIX}plain.PlainLoginModule": ("PLAIN",),
    f"{_PREFIX}scram.ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
    f"{_PREFIX}oauthbearer.OAuthBearerLoginModule": ("OAUTHBEARER",),
}
_ENTRY = re.compile(
    r"\s*(?P<module>[\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(?P<options>.*);\s*", re.DOTALL
)
_OPTION = re.compile(r"\s*(?P<name>[\w.-]+)\s*=\s*(?:\"(?P<quoted>(?:[^\"\\]|\\.)*)\"|(?P<plain>[^\s\";]+))")
_USER = "user_"


class JaasEntry(NamedTuple):
    """The name and the options of one login module. Its options hold secrets."""

    module: str
    options: dict[str, str]

    def __repr__(self) -> str:
        return f"JaasEntry({self.module}, [hidden])"

    @property
    def users(self) -> dict[str, str]:
        """PlainLoginModule: `user_NAME="PASSWORD"`."""
        return {
            name.removeprefix(_USER): value for name, value in self.options.items() if name.startswith(_USER)
        }


def parse_jaas(text: str, mechanism: str, key: str = "sasl.jaas.config") -> JaasEntry:
    """Raises ConfigError when it cannot be read, or names a module that is not the mechanism's."""
    entry = _ENTRY.fullmatch(text)
    if entry is None:
        raise ConfigError(
            f'{key} cannot be read; it should be: MODULE required username="USER" password="PASSWORD";'
        )
    module = entry["module"]
    if mechanism not in LOGIN_MODULES.get(module, ()):
        fitting = next((name for name, fits in LOGIN_MODULES.items() if mechanism in fits), "not known")
        raise ConfigError(f"{key} names {module}; for sasl.mechanism={mechanism} it is {fitting}")
    found: dict[str, str] = {}
    position, rest = 0, entry["options"].rstrip()
    while position < len(rest):
        option = _OPTION.match(rest, position)
        if option is None:
            raise ConfigError(f'{key} cannot be read: its options should be NAME="VALUE"')
        quoted = option["quoted"]
        found[option["name"]] = option["plain"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        position = option.end()
    return JaasEntry(module, found)
