"""Brokers with TLS and SASL for tests: their settings, their users, tokens, and how they are started."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.brokers import LISTENS, Broker, BrokerFailedError, command, read_banner, spawn

_MODULES = "org.apache.kafka.common.security"
PLAIN_LOGIN = f"{_MODULES}.plain.PlainLoginModule required"
SCRAM_LOGIN = f"{_MODULES}.scram.ScramLoginModule required"
USER, PASSWORD = "alice", 'secret, with "quotes" and = signs'
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def credentials(user: str = USER, password: str = PASSWORD) -> str:
    return f"username={quoted(user)} password={quoted(password)}"


@dataclass
class Issuer:
    """Signs tokens with a key that brokers know by `jwks`."""

    folder: Path

    def __post_init__(self) -> None:
        self._key = rsa.generate_private_key(65537, 2048)
        numbers = self._key.public_key().public_numbers()
        key = {"kty": "RSA", "kid": "1", "n": _number(numbers.n), "e": _number(numbers.e)}
        self.jwks = self.folder / "jwks.json"
        self.jwks.write_text(json.dumps({"keys": [key]}))

    def token(self, user: str = USER, *, audience: str = "tidemill", lifetime_s: float = 600) -> str:
        now = time.time()
        claims = {"sub": user, "aud": audience, "iss": "tests", "iat": now, "exp": now + lifetime_s}
        signed = f"{_json({'alg': 'RS256', 'kid': '1'})}.{_json(claims)}"
        signature = self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{_base64url(signature)}"


def _json(value: object) -> str:
    return _base64url(json.dumps(value).encode())


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _number(value: int) -> str:
    return _base64url(value.to_bytes((value.bit_length() + 7) // 8))


def sasl_settings(issuer: Issuer, listeners: tuple[str, ...]) -> dict[str, str]:
    """Every mechanism on each of the listeners, for the one user."""
    settings = {
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{issuer.jwks}",
        "sasl.oauthbearer.expected.audience": "tidemill",
        "sasl.oauthbearer.expected.issuer": "tests",
    }
    for name in listeners:
        prefix = f"listener.name.{name.lower()}."
        users = f"user_{USER}={quoted(PASSWORD)}"
        settings[f"{prefix}plain.sasl.jaas.config"] = f"{PLAIN_LOGIN} {users};"
        for mechanism in ("scram-sha-256", "scram-sha-512"):
            settings[f"{prefix}{mechanism}.sasl.jaas.config"] = f"{SCRAM_LOGIN} {credentials()};"
    return settings


def properties_text(settings: Mapping[str, str]) -> str:
    lines = []
    for key, value in settings.items():
        escaped = value.replace("\\", "\\\\").replace("\n", "\\n")
        lines.append(f"{key}={escaped}\n")
    return "".join(lines)


def start_secured(folder: Path, settings: Mapping[str, str]) -> tuple[Broker, dict[str, str]]:
    """A broker and the address of each listener. `settings` has the listeners, at port 0."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "server.properties"
    config.write_text(properties_text(settings))
    log_path = folder / "stderr"
    arguments = [*command(), "serve", "--config", str(config), "--data-dir", str(folder / "data")]
    process = spawn(arguments, log_path)
    printed = read_banner(process)
    found = LISTENS.findall(printed)
    if not found:
        process.kill()
        process.wait()
        raise BrokerFailedError(f"the broker did not listen\n{printed}\n{log_path.read_text()}")
    host, port = found[0]
    names = [listener.partition(":")[0] for listener in settings["listeners"].split(",")]
    addresses = {name: f"{host}:{port}" for name, (host, port) in zip(names, found, strict=False)}
    return Broker(host, int(port), process, folder / "data", log_path, printed), addresses
