"""Clients of a world with authentication: an administrator of users and rules, and visitors with and without rights.

Visitors ask every broker for a topic's metadata, read it and write to it. A visitor that is not logged in, or has no
rights, must never be served. The rights of others change meanwhile: an answer must be what the broker's own metadata say,
as far as they did not change while the request was under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

from tidemill.broker.net.network import Address
from tidemill.errors import ErrorCode
from tidemill.protocol.acls import creation_of, deletion_of
from tidemill.protocol.api.cluster import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tidemill.protocol.api.data import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidemill.protocol.api.security import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    ScramCredentialUpsertion,
)
from tidemill.protocol.records import Record, build_batch
from tidemill.security.acls import AclBinding, Operation, PatternType, Permission, ResourceType
from tidemill.security.scram import ScramMechanism
from tidemill.sim.clients.base import Client
from tidemill.sim.guarding import ITERATIONS, VAULT, Guards, credential_of, takes_password

Answer = Literal["served", "denied", "nothing", "other"]
_PAUSE_S_MAX = 3.0
_PARTITION = 0


def rule(user: str, permission: Permission) -> AclBinding:
    """About everything in the vault."""
    kind, pattern = ResourceType.TOPIC, PatternType.LITERAL
    return AclBinding(kind, VAULT, pattern, f"User:{user}", "*", Operation.ALL, permission)


class Warden:
    """Adds users and changes rights, one change after the other, each until it is acknowledged."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def set_password(self, user: str, password: str) -> None:
        salt, salted = credential_of(self._client.rng, password)
        upsertion = ScramCredentialUpsertion(
            name=user,
            mechanism=ScramMechanism.SHA_256,
            iterations=ITERATIONS,
            salt=salt,
            salted_password=salted,
        )
        request = AlterUserScramCredentialsRequest(upsertions=[upsertion])
        while True:
            answer = await self._client.ask_any(request, AlterUserScramCredentialsResponse)
            if answer.results and not any(each.error_code for each in answer.results):
                return
            await self._client.back_off()

    async def create(self, binding: AclBinding) -> None:
        request = CreateAclsRequest(creations=[creation_of(binding)])
        while True:
            answer = await self._client.ask_any(request, CreateAclsResponse)
            if answer.results and not answer.results[0].error_code:
                return
            await self._client.back_off()

    async def delete(self, binding: AclBinding) -> None:
        request = DeleteAclsRequest(filters=[deletion_of(binding)])
        while True:
            answer = await self._client.ask_any(request, DeleteAclsResponse)
            if answer.filter_results and not answer.filter_results[0].error_code:
                return
            await self._client.back_off()


class Visitor:
    """One attempt after the other to get at the vault, each on connections of its own."""

    def __init__(
        self,
        new_client: Callable[[], Client],
        guards: Guards,
        addresses: list[Address],
        topic_id: Callable[[], bytes],
    ) -> None:
        self._new_client = new_client
        self._guards = guards
        self._addresses = addresses
        self._topic_id = topic_id
        self.served = 0
        self.denied = 0
        self.is_done = False

    async def run(self) -> None:
        client = self._new_client()
        while not client.record.is_ending:
            await asyncio.sleep(client.rng.uniform(0.2, _PAUSE_S_MAX))
            address = client.rng.choice(self._addresses)
            await self._visit(client, address)
            client.close()
            client = self._new_client()
        client.close()
        self.is_done = True

    async def _visit(self, client: Client, address: Address) -> None:
        """Never let in: every answer that serves is a violation."""
        answer = await ask(client, address, self._topic_id())
        self._count(answer)
        if answer == "served":
            client.record.accuse(f"{address.host} served {client.name}, which has no right to anything")

    def _count(self, answer: Answer) -> None:
        self.served += answer == "served"
        self.denied += answer == "denied"


class Stranger(Visitor):
    """Does not log in, or with a wrong password: even a refusal of a request is too much of an answer."""

    async def _visit(self, client: Client, address: Address) -> None:
        answer = await ask(client, address, self._topic_id())
        if answer == "nothing":
            self.denied += 1
            return
        client.record.accuse(f"{address.host} answered {client.name}, which has not logged in")


class Guest(Visitor):
    """Has rights at times, and a password that changes."""

    def __init__(
        self,
        new_client: Callable[[], Client],
        guards: Guards,
        addresses: list[Address],
        topic_id: Callable[[], bytes],
        login: Callable[[], tuple[str, str]],
    ) -> None:
        """`login` is what the newest of its clients logs in with."""
        super().__init__(new_client, guards, addresses, topic_id)
        self._login = login

    async def _visit(self, client: Client, address: Address) -> None:
        guards, host = self._guards, address.host
        user, password = self._login()
        before = guards.sight(host)
        node = guards.node(host)
        is_known = node is not None and takes_password(node, user, password)
        may_read = guards.may_read(host, user)
        answer = await ask(client, address, self._topic_id())
        if before is None or not before.is_still(guards.sight(host)):
            return
        self._count(answer)
        if answer != "nothing" and not is_known:
            client.record.accuse(f"{host} answered {user} with a password that it does not have")
        if (answer == "served" and not may_read) or (answer == "denied" and may_read and is_known):
            client.record.accuse(f"{host}: {user} is {answer}, and the metadata say may_read={may_read}")


async def ask(client: Client, address: Address, topic_id: bytes) -> Answer:
    """One of the ways to get at the vault."""
    return await client.rng.choice((_describe, _read, _write))(client, address, topic_id)


async def _describe(client: Client, address: Address, _topic_id: bytes) -> Answer:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=VAULT)], allow_auto_topic_creation=False)
    answer = await client.ask(address, request, MetadataResponse)
    return "nothing" if answer is None else _judged(answer.topics[0].error_code)


async def _read(client: Client, address: Address, topic_id: bytes) -> Answer:
    partition = FetchPartition(partition=_PARTITION, fetch_offset=0, partition_max_bytes=4096)
    topic = FetchTopic(topic=VAULT, topic_id=topic_id, partitions=[partition])
    answer = await client.ask(address, FetchRequest(max_bytes=4096, topics=[topic]), FetchResponse)
    if answer is None:
        return "nothing"
    code = answer.error_code or answer.responses[0].partitions[0].error_code
    return _judged(code)


async def _write(client: Client, address: Address, topic_id: bytes) -> Answer:
    data = build_batch([Record(0, client.record.wall_ms(), None, client.name.encode())])
    topic = TopicProduceData(
        name=VAULT,
        topic_id=topic_id,
        partition_data=[PartitionProduceData(index=_PARTITION, records=memoryview(data))],
    )
    answer = await client.ask(
        address, ProduceRequest(acks=-1, timeout_ms=2_000, topic_data=[topic]), ProduceResponse
    )
    return "nothing" if answer is None else _judged(answer.responses[0].partition_responses[0].error_code)


def _judged(code: int) -> Answer:
    if code == ErrorCode.NONE:
        return "served"
    return "denied" if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED else "other"
