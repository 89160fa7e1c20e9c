"""Probes every broker, all at once, within a short time.

The controller counts on a broker until its session ends, which takes seconds after its process was killed. A probe knows at
once. It is one ApiVersions request on a connection of its own, which is kept for the next time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait

from tidemill.client.connections.connection import Address, Connection
from tidemill.errors import TidemillError
from tidemill.protocol.api.cluster import ApiVersionsRequest, ApiVersionsResponse

ANSWER_S_MAX = 2.0
_AT_ONCE_MAX = 32

# Opens a connection that waits no longer than so many seconds for anything.
Open = Callable[[Address, float], Connection]


class Probes:
    """Not for use by several threads at once."""

    def __init__(self, open_connection: Open, limit_s: float = ANSWER_S_MAX) -> None:
        self._open = open_connection
        self._limit_s = limit_s
        self._connections: dict[Address, Connection] = {}
        self._is_closed = False

    def close(self) -> None:
        """Also while brokers are asked: what is opened after this is closed at once."""
        self._is_closed = True
        for address in list(self._connections):
            self._connections.pop(address).close()

    def silent(self, brokers: Mapping[int, Address]) -> dict[int, str]:
        """Returns the brokers that do not answer, and why."""
        for address in set(self._connections) - set(brokers.values()):
            self._connections.pop(address).close()
        if not brokers:
            return {}
        pool = ThreadPoolExecutor(min(len(brokers), _AT_ONCE_MAX), "probe")
        try:
            asked = {broker_id: pool.submit(self._ask, address) for broker_id, address in brokers.items()}
            # A lookup of a host name has no limit of its own.
            wait(asked.values(), timeout=2 * self._limit_s * -(-len(brokers) // _AT_ONCE_MAX))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        silent = {}
        for broker_id, answer in asked.items():
            is_known = answer.done() and not answer.cancelled()
            reason = answer.result() if is_known else f"{brokers[broker_id]}: no answer"
            if reason is not None:
                silent[broker_id] = reason
        return silent

    def _ask(self, address: Address) -> str | None:
        """None when it answers, or why it does not."""
        kept = self._connections.pop(address, None)
        began_s = time.monotonic()
        if kept is not None and self._is_alive(kept):
            self._keep(address, kept)
            return None
        left_s = self._limit_s - (time.monotonic() - began_s)
        if left_s <= 0:
            return f"{address}: no answer within {self._limit_s:g} s"
        try:
            # Opening it is an exchange of ApiVersions.
            opened = self._open(address, left_s)
        except TidemillError as error:
            return str(error)
        self._keep(address, opened)
        return None

    def _keep(self, address: Address, connection: Connection) -> None:
        self._connections[address] = connection
        if self._is_closed and self._connections.pop(address, None) is not None:
            connection.close()

    def _is_alive(self, connection: Connection) -> bool:
        message = ApiVersionsRequest(client_software_name="tidemill", client_software_version="probe")
        try:
            connection.request(message, ApiVersionsResponse)
        except TidemillError:
            connection.close()
            return False
        return True
