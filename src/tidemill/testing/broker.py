"""A broker for tests, in this process: `InProcessBroker`.

    with InProcessBroker() as broker:
        broker.create_topic("orders")
        code_under_test(bootstrap_servers=broker.bootstrap)
        assert [record.value for record in broker.records("orders")] == [b"..."]

It is the production node, so settings are Kafka's broker configuration. A few differ from Kafka's defaults, so that a
test neither waits nor is disturbed when time moves. `DEFAULTS` has them, and whatever a test sets comes first.

The data is in a folder of its own, removed at the end. The port is kept over `stop`, `crash` and `restart`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tidemill.config import load_broker_config
from tidemill.testing.client_operations import ClientOperations
from tidemill.testing.network import CLIENT_LISTENER
from tidemill.testing.node_thread import NodeThread
from tidemill.testing.ports import HOST, HeldPort
from tidemill.testing.records import properties_text
from tidemill.testing.security import Security

# The largest values of these keys: about 24 days, and for ever.
_INT_MAX_MS, _LONG_MAX_MS = str(2**31 - 1), str(2**63 - 1)

DEFAULTS: Mapping[str, str] = {
    # No delay, as in Kafka's own quick start.
    "group.initial.rebalance.delay.ms": "0",
    # Fifty partitions take time to create, and one is enough for a test's groups.
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    # A moved clock must neither close client connections nor fence the broker.
    "connections.max.idle.ms": _LONG_MAX_MS,
    "broker.session.timeout.ms": _INT_MAX_MS,
}


class InProcessBroker(ClientOperations):
    """One broker that is its own controller. Starts with `start` or the `with` block."""

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        *,
        data_dir: str | Path | None = None,
        security: Security | str | None = None,
    ) -> None:
        """`settings` are broker configurations. With `data_dir` the data stays there when the broker is closed.

        `security` is a `Security`, or the name of a protocol with its defaults.
        """
        super().__init__(security, [HOST])
        self._settings = properties_text(settings or {})
        self._port = HeldPort()
        self._owns_data = data_dir is None
        self.data_dir = Path(data_dir) if data_dir else Path(tempfile.mkdtemp(prefix="tidemill-"))
        self._thread: NodeThread | None = None
        self._has_users = False

    @property
    def host(self) -> str:
        return HOST

    @property
    def port(self) -> int:
        return self._port.number

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self._port.number}"

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive

    def start(self) -> None:
        """Start the broker. Returns when it serves clients; does nothing when it runs already."""
        if self.is_running:
            return
        config, _ = load_broker_config(self._properties())
        thread = NodeThread(config, self.clock, self.faults)
        thread.begin()
        thread.await_started()
        self._thread = thread
        if not self._has_users:
            self._add_users()
            self._has_users = True

    def _properties(self) -> dict[str, str]:
        secured = {} if self._secured is None else self._secured.settings([CLIENT_LISTENER])
        return {
            **DEFAULTS,
            "listener.security.protocol.map": f"{CLIENT_LISTENER}:PLAINTEXT",
            "inter.broker.listener.name": CLIENT_LISTENER,
            **secured,
            **self._settings,
            "listeners": f"{CLIENT_LISTENER}://{self.bootstrap}",
            "log.dirs": str(self.data_dir),
        }

    def stop(self) -> None:
        """Shut down cleanly. The data stays for `start`."""
        self._drop_connections()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()

    def crash(self) -> None:
        """Stop as `kill -9` does, without responses or shutdown. Acknowledged records are there after `start`."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.crash()
        self._drop_connections()

    def restart(self, settings: Mapping[str, object] | None = None) -> None:
        """Stop and start on the same port and data, with changed `settings`."""
        self.stop()
        self._settings.update(properties_text(settings or {}))
        self.start()

    def close(self) -> None:
        """Stop for good. The folder is removed, unless the caller gave it."""
        try:
            self.stop()
        finally:
            self._port.release()
            if self._secured is not None:
                self._secured.close()
            if self._owns_data:
                shutil.rmtree(self.data_dir, ignore_errors=True)

    def _running_threads(self) -> list[NodeThread]:
        return [self._thread] if self._thread is not None else []

    def run_retention(self) -> None:
        """Delete expired segments now, without waiting for log.retention.check.interval.ms."""
        assert self._thread is not None, "the broker does not run"
        self._thread.run_retention()
