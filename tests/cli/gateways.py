"""Brokers that run a gateway beside them, and what one sees of it from outside."""

from __future__ import annotations

import http.client
import os
import re
import time
from pathlib import Path

from tests.brokers import Broker, eventually, readable, start_broker
from tests.processes import is_alive, living_processes

_CONSOLE = re.compile(rb"Console at https?://(\S+)/")
_LIMIT_S = 60.0


def start_with_gateway(data_dir: Path, listen: str = "127.0.0.1:0", **settings: str) -> Broker:
    return start_broker(data_dir, settings={"tidemill.gateway.listener": listen, **settings})


def console_address(broker: Broker) -> str:
    """HOST:PORT, once the broker has said it."""
    assert broker.process.stdout is not None
    descriptor = broker.process.stdout.fileno()
    printed = broker.printed.encode()
    deadline = time.monotonic() + _LIMIT_S
    while not (found := _CONSOLE.search(printed)):
        if not readable([descriptor], deadline - time.monotonic()):
            raise AssertionError(f"the console was not announced\n{broker.log()}")
        chunk = os.read(descriptor, 65536)
        assert chunk, broker.log()
        printed += chunk
    return found[1].decode()


def gateway_pids(broker: Broker) -> list[int]:
    """Gateways that the broker started and that live."""
    return [
        process.pid
        for process in living_processes()
        if process.parent_pid == broker.pid and " gateway " in process.arguments
    ]


def wait_for_end(pid: int) -> None:
    eventually(lambda: not is_alive(pid), f"process {pid} ends", _LIMIT_S)


def answers(address: str, path: str = "/openapi.json") -> bool:
    connection = http.client.HTTPConnection(address, timeout=20)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
