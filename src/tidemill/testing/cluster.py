"""A cluster of three brokers for tests, in this process: `InProcessCluster`.

Every node is broker and controller, with its own thread and event loop. They communicate over TCP as usual, and share
one clock and one set of faults.

Time moves for all of them at once and in jumps, so no node may fence another because of it: those timeouts
(`DEFAULTS`) are out of reach. Instead the cluster announces a crash on behalf of the dead broker, with the requests of
a clean shutdown. It asks the controller to fence the broker and, if it led the quorum, sends EndQuorumEpoch to the
other voters. So a failover takes milliseconds and looks the same to clients.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tidemill.broker.node import Node
from tidemill.client.admin.cluster import ClusterAdmin, ElectionType, raise_first_refusal
from tidemill.config import load_broker_config
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api.brokers import BrokerHeartbeatRequest
from tidemill.raft import messages
from tidemill.testing import broker as single
from tidemill.testing.client_operations import ClientOperations
from tidemill.testing.network import CLIENT_LISTENER
from tidemill.testing.node_thread import NodeThread
from tidemill.testing.ports import HOST, HeldPort
from tidemill.testing.records import properties_text
from tidemill.testing.security import Security
from tidemill.types import TopicPartition

_NEVER_MS = str(2**31 - 1)
_BROKER_LISTENER, _CONTROLLER_LISTENER = "INTERNAL", "CONTROLLER"
_FAILOVER_S_MAX = 30.0

DEFAULTS: Mapping[str, str] = {
    **single.DEFAULTS,
    # Replication, as in production.
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    # No node is fenced by the clock; see above.
    "controller.quorum.fetch.timeout.ms": _NEVER_MS,
    "controller.quorum.request.timeout.ms": _NEVER_MS,
    "replica.socket.timeout.ms": _NEVER_MS,
    # Voters in one process respond at once.
    "controller.quorum.election.timeout.ms": "200",
    "controller.quorum.election.backoff.max.ms": "100",
}


class ClusterBroker:
    """One broker of a cluster."""

    def __init__(self, cluster: InProcessCluster, broker_id: int, folder: Path) -> None:
        self._cluster = cluster
        self.id = broker_id
        self.data_dir = folder
        self.client_port, self.broker_port, self.controller_port = HeldPort(), HeldPort(), HeldPort()
        self.thread: NodeThread | None = None

    def __repr__(self) -> str:
        return f"<broker {self.id} at {self.bootstrap}, {'running' if self.is_running else 'down'}>"

    @property
    def bootstrap(self) -> str:
        """The address of this broker alone."""
        return f"{HOST}:{self.client_port.number}"

    @property
    def is_running(self) -> bool:
        return self.thread is not None and self.thread.is_alive

    def start(self) -> None:
        """Start the broker. Returns when it serves clients."""
        if not self.is_running:
            self.begin()
            self.await_started()

    def begin(self) -> None:
        config, _ = load_broker_config(self._cluster.properties_of(self))
        self.thread = NodeThread(config, self._cluster.clock, self._cluster.faults)
        self.thread.begin()

    def await_started(self) -> None:
        assert self.thread is not None
        self.thread.await_started()

    def stop(self) -> None:
        """Shut down cleanly: other brokers lead its partitions when this returns."""
        thread, self.thread = self.thread, None
        self._cluster.let_go()
        if thread is not None:
            thread.stop()

    def crash(self) -> None:
        """Stop as `kill -9` does. Returns when the others continue without it, as far as they can."""
        thread, self.thread = self.thread, None
        if thread is not None:
            thread.crash()
        self._cluster.let_go()
        self._cluster.announce_crash(self.id)

    def restart(self) -> None:
        self.stop()
        self.start()

    def release(self) -> None:
        for port in (self.client_port, self.broker_port, self.controller_port):
            port.release()


class InProcessCluster(ClientOperations):
    """The brokers 1 to `size`. Starts with `start` or the `with` block."""

    def __init__(
        self,
        size: int = 3,
        settings: Mapping[str, object] | None = None,
        *,
        security: Security | str | None = None,
    ) -> None:
        super().__init__(security, [HOST])
        self._settings = properties_text(settings or {})
        self._folder = Path(tempfile.mkdtemp(prefix="tidemill-"))
        self.brokers = [
            ClusterBroker(self, number, self._folder / f"broker-{number}") for number in range(1, size + 1)
        ]
        self._has_users = False
        self._voters = ",".join(f"{each.id}@{HOST}:{each.controller_port.number}" for each in self.brokers)

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers)

    def broker(self, broker_id: int) -> ClusterBroker:
        """The broker with this id, which is its index in `brokers` plus one."""
        for each in self.brokers:
            if each.id == broker_id:
                return each
        raise ValueError(f"there is no broker {broker_id}, only 1 to {len(self.brokers)}")

    # -- starting and stopping -------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all stopped brokers. Returns when each serves clients and knows the others."""
        starting = [each for each in self.brokers if not each.is_running]
        for each in starting:
            each.begin()
        for each in starting:
            each.await_started()
        self.wait_until(self._is_whole, "every broker is known to every other", _FAILOVER_S_MAX)
        if not self._has_users:
            self._add_users()
            self._has_users = True

    def _is_whole(self) -> bool:
        running = {each.id for each in self.brokers if each.is_running}
        return all(_unfenced(each.thread) >= running for each in self.brokers if each.thread is not None)

    def properties_of(self, broker: ClusterBroker) -> dict[str, str]:
        copies = str(min(3, len(self.brokers)))
        defaults = {key: copies if value == "3" else value for key, value in DEFAULTS.items()}
        if len(self.brokers) < 3:
            defaults |= {"min.insync.replicas": "1", "transaction.state.log.min.isr": "1"}
        names = (CLIENT_LISTENER, _BROKER_LISTENER, _CONTROLLER_LISTENER)
        if self._secured is None:
            secured = {"listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in names)}
        else:
            secured = self._secured.settings(names)
        return {
            **defaults,
            **secured,
            **self._settings,
            "node.id": str(broker.id),
            "process.roles": "broker,controller",
            "listeners": ",".join(
                f"{name}://{HOST}:{port.number}"
                for name, port in (
                    (CLIENT_LISTENER, broker.client_port),
                    (_BROKER_LISTENER, broker.broker_port),
                    (_CONTROLLER_LISTENER, broker.controller_port),
                )
            ),
            "inter.broker.listener.name": _BROKER_LISTENER,
            "controller.listener.names": _CONTROLLER_LISTENER,
            "controller.quorum.voters": self._voters,
            "log.dirs": str(broker.data_dir),
        }

    def close(self) -> None:
        """Stop for good and remove the data."""
        self.let_go()
        try:
            # All at once and without a handover: no broker is left to take over.
            for each in self.brokers:
                thread, each.thread = each.thread, None
                if thread is not None:
                    thread.crash()
        finally:
            for each in self.brokers:
                each.release()
            if self._secured is not None:
                self._secured.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _running_threads(self) -> list[NodeThread]:
        return [each.thread for each in self.brokers if each.thread is not None and each.is_running]

    def let_go(self) -> None:
        self._drop_connections()

    def announce_crash(self, broker_id: int) -> None:
        """Announce a crash on behalf of the dead broker, until the others know it or have lost their majority."""
        living = self._running_threads()
        if len(living) * 2 <= len(self.brokers):
            return
        for thread in living:
            thread.run(lambda node: _end_epoch_of(node, broker_id))

        def is_fenced() -> bool:
            if not all(broker_id in _unfenced(thread) for thread in living):
                return all(broker_id not in _unfenced(thread) for thread in living)
            living[0].run(lambda node: _fence(node, broker_id))
            return False

        self.wait_until(is_fenced, f"the cluster goes on without broker {broker_id}", _FAILOVER_S_MAX)

    # -- leaders ---------------------------------------------------------------------------------------------

    def leader_of(self, topic: str, partition: int = 0) -> int:
        """The id of the partition's leader; waits until there is one."""
        with self._lock:
            cluster = self._cluster
            cluster.forget()
            return cluster.retrying(lambda: next(iter(cluster.leaders([TopicPartition(topic, partition)]))))

    def isr_of(self, topic: str, partition: int = 0) -> list[int]:
        """The in-sync replicas."""
        return self._replicas(topic, partition)[1]

    def _replicas(self, topic: str, partition: int) -> tuple[list[int], list[int]]:
        with self._lock:
            self._cluster.forget()
            found = self._cluster.topic(topic).partitions
        (one,) = [each for each in found if each.partition_index == partition]
        return one.replica_nodes, one.isr_nodes

    def elect(self, topic: str, partition: int, broker: int) -> None:
        """Make that broker the leader: it becomes the preferred replica, and is elected."""
        place = TopicPartition(topic, partition)
        replicas, _ = self._replicas(topic, partition)
        if broker not in replicas:
            raise ValueError(f"broker {broker} has no replica of {place}; brokers {replicas} have")
        self.wait_until(
            lambda: broker in self.isr_of(topic, partition), f"broker {broker} is in sync with {place}"
        )
        with self._lock:
            admin = ClusterAdmin(self._cluster)
            order = [broker, *(each for each in replicas if each != broker)]
            raise_first_refusal(admin.reassign({place: order}))
        self.wait_until(
            lambda: self._is_elected(place, broker), f"broker {broker} leads {place}", _FAILOVER_S_MAX
        )

    def _is_elected(self, place: TopicPartition, broker: int) -> bool:
        if self.leader_of(*place) == broker:
            return True
        with self._lock:
            outcome = ClusterAdmin(self._cluster).elect_leaders(ElectionType.PREFERRED, [place])
        refusals = {
            each: refusal
            for each, refusal in outcome.items()
            if refusal is not None and refusal.code is not ErrorCode.ELECTION_NOT_NEEDED
        }
        raise_first_refusal(refusals)
        return False

    def elect_another_leader(self, topic: str, partition: int = 0) -> int:
        """Move the leadership to another in-sync replica. Returns its id."""
        leader = self.leader_of(topic, partition)
        others = [each for each in self.isr_of(topic, partition) if each != leader]
        if not others:
            raise ValueError(f"{topic}-{partition} has no other replica in sync that could lead it")
        self.elect(topic, partition, others[0])
        return others[0]

    def run_retention(self) -> None:
        """Delete expired segments on every broker now."""
        for thread in self._running_threads():
            thread.run_retention()


def _unfenced(thread: NodeThread) -> set[int]:
    """The brokers that are not fenced in a node's view."""
    return thread.call(
        lambda node: {each.id for each in node.broker.controller.image.brokers.values() if each.is_active}
    )


async def _end_epoch_of(node: Node, broker_id: int) -> None:
    quorum = node._quorum
    if quorum.leader_id == broker_id:
        successors = [voter.key for voter in quorum.voters if voter.key.id != broker_id]
        await quorum.answer(messages.end_request(quorum.cluster_id, broker_id, quorum.epoch, successors))


async def _fence(node: Node, broker_id: int) -> None:
    dead = node.broker.controller.image.brokers.get(broker_id)  # type: ignore[call-overload]
    if dead is None or dead.is_fenced:
        return
    request = BrokerHeartbeatRequest(broker_id=broker_id, broker_epoch=dead.epoch, want_fence=True)
    try:
        await node.broker.controller.ask(request, timeout_s=1.0)
    except ApiError as error:
        if error.code is not ErrorCode.REQUEST_TIMED_OUT:
            raise
