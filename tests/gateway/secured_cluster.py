"""A broker with SASL_SSL and an authorizer, and the operations of its admin, for tests of log-ins."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tests.certificates import Authority
from tests.gateway.conftest import Gateway, start_gateway
from tests.secured import Issuer, start_secured
from tidemill.client.admin.security import SecurityAdmin
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.client.producing.producer import Producer
from tidemill.gateway.settings import LoginLimits, Settings
from tidemill.security.acls import AclBinding, Operation, PatternType, Permission, ResourceType
from tidemill.security.scram import ScramMechanism
from tidemill.tls.settings import KeyStore, TlsSettings

PASSWORD = 'secret: with "quotes", = and ä'
_MECHANISMS = (ScramMechanism.SHA_512,)


@dataclass
class SecuredCluster:
    """Its admin comes by a plaintext listener, as the super user ANONYMOUS."""

    bootstrap: str
    admin_bootstrap: str
    authority: Path
    certificate: Path
    admin: Admin
    issuer: Issuer

    @property
    def security(self) -> SecurityAdmin:
        return SecurityAdmin(self.admin.cluster)

    def add_user(self, name: str, password: str = PASSWORD) -> None:
        self.security.set_password(name, password, _MECHANISMS)

    def remove_user(self, name: str) -> None:
        self.security.remove_user(name, _MECHANISMS)

    def allow(self, user: str, operation: Operation, kind: ResourceType, name: str) -> AclBinding:
        rule = AclBinding(kind, name, PatternType.LITERAL, f"User:{user}", "*", operation, Permission.ALLOW)
        self.security.create_acls([rule])
        return rule

    def allow_all(self, user: str, topic: str) -> list[AclBinding]:
        """Everything on one topic, and on a group of the same name."""
        return [
            self.allow(user, Operation.ALL, ResourceType.TOPIC, topic),
            self.allow(user, Operation.ALL, ResourceType.GROUP, topic),
        ]

    def create_topic(self, name: str, *values: str) -> None:
        self.admin.create_topic(name, partition_count=1)
        producer = Producer(self.admin.cluster)
        for value in values:
            producer.add(name, value.encode())
        producer.flush()

    def settings(self, login: LoginLimits | None = None, mechanism: str = "SCRAM-SHA-512") -> Settings:
        options = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
            "ssl.truststore.location": str(self.authority),
        }
        return Settings(bootstrap=self.bootstrap, client_options=options, login=login or LoginLimits())

    @contextlib.contextmanager
    def gateway(self, login: LoginLimits | None = None, *, has_tls: bool = False) -> Iterator[Gateway]:
        settings = self.settings(login)
        if has_tls:
            settings = replace(settings, tls=TlsSettings(KeyStore(str(self.certificate))))
        with start_gateway(settings, authority=self.authority if has_tls else None) as started:
            yield started


@contextlib.contextmanager
def secured_cluster(folder: Path) -> Iterator[SecuredCluster]:
    authority = Authority(folder)
    certificate = authority.issue("broker")
    issuer = Issuer(folder)
    settings = {
        "listeners": "SASL_SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{issuer.jwks}",
        "sasl.oauthbearer.expected.audience": "tidemill",
        "sasl.oauthbearer.expected.issuer": "tests",
        "ssl.keystore.location": str(certificate),
        "ssl.truststore.location": str(authority.path),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:admin",
        "offsets.topic.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
    }
    broker, addresses = start_secured(folder, settings)
    with broker, Cluster(addresses["PLAINTEXT"]) as cluster:
        yield SecuredCluster(
            addresses["SASL_SSL"], addresses["PLAINTEXT"], authority.path, certificate, Admin(cluster), issuer
        )
