"""Both brokers with a listener that speaks TLS. They have the same key and certificate, made by `tidemill security init`."""

from __future__ import annotations

import subprocess
from pathlib import Path

from bench.apache_kafka import ApacheKafka, free_ports
from bench.brokers import Target, Tidemill
from bench.endpoints import Endpoint

HOST = "127.0.0.1"


class Certificates:
    def __init__(self, folder: Path) -> None:
        files = folder / "security"
        command = [Tidemill.command(), "security", "init", str(files), "--host", HOST]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        self.authority = str(files / "clients" / "ca.pem")
        self.settings = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(files / "node-1" / "node.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.authority,
        }


class SecuredTidemill(Tidemill):
    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        data_dir.mkdir(parents=True, exist_ok=True)
        self._certificates = Certificates(data_dir)

    @property
    def options(self) -> list[str]:
        settings = self._certificates.settings | {"listener.security.protocol.map": "PLAINTEXT:SSL"}
        return [f"--set={key}={value}" for key, value in settings.items()]

    def _endpoint(self, address: str) -> str:
        return str(Endpoint(address, self._certificates.authority))


class SecuredKafka(ApacheKafka):
    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self._certificates = Certificates(self.data_dir)
        (port,) = free_ports(1)
        self._address = f"{HOST}:{port}"
        node = self.nodes[0]
        listeners = f"PLAINTEXT://{node.address},SECURED://{self._address}"
        self.overrides = self._certificates.settings | {
            "listeners": f"{listeners},CONTROLLER://{node.host}:{node.controller_port}",
            "advertised.listeners": listeners,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURED:SSL",
            "inter.broker.listener.name": "PLAINTEXT",
        }

    @property
    def bootstrap(self) -> str:
        return str(Endpoint(self._address, self._certificates.authority))


def tidemill_secured_target() -> Target:
    return Target("tidemill", Tidemill.version(), SecuredTidemill)


def kafka_secured_target() -> Target:
    return Target("kafka", ApacheKafka.version(), SecuredKafka)
