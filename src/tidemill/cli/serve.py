"""`tidemill serve`: run a broker until it is told to stop.

Settings come from a `server.properties` file, then `--set`, then the two shorthands `--data-dir` and `--listen`. They are
checked before the data directory is touched. Standard output gets the address, once it can be dialled; the log goes to
standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import resource
import signal
import sys
import time

import uvloop

from tidemill import __version__
from tidemill.broker.node import Node
from tidemill.broker.status import StatusServer
from tidemill.client.connection import Address
from tidemill.config import BrokerConfig, Listener, load_broker_config, parse_properties
from tidemill.config.listeners import parse_listeners
from tidemill.errors import ConfigError

logger = logging.getLogger("tidemill")

_DEFAULT_LISTENER = "127.0.0.1:9092"
# Of this process and not of the broker's configuration: no client is told.
_STATUS_KEY = "tidemill.status.listener"
# Few long-lived cycles are made while serving: looking for them often only adds latency.
_GC_THRESHOLDS = (50_000, 20, 100)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="a server.properties file with Kafka's own keys")
    parser.add_argument("--data-dir", metavar="DIR", help="where the data is kept (log.dirs; default ./data)")
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help=f"address to listen on; port 0 lets the kernel choose (default {_DEFAULT_LISTENER})",
    )
    parser.add_argument(
        "--status",
        metavar="HOST:PORT",
        help=f"serve /metrics, /healthz, /readyz and /rebalances over HTTP here (or {_STATUS_KEY}=HOST:PORT in the file)",
    )
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="set one configuration key; repeatable",
    )
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    parser.add_argument("--log-format", default="text", choices=("text", "json"))


def run(arguments: argparse.Namespace) -> int:
    properties = _properties(arguments)
    status = arguments.status or properties.pop(_STATUS_KEY, None)
    status_address = _status_address(status) if status else None
    config, warnings = load_broker_config(properties)
    _configure_logging(arguments.log_level, arguments.log_format)
    for warning in warnings:
        logger.warning("%s", warning)
    _raise_file_limit()
    return uvloop.run(_serve(config, status_address))


async def _serve(config: BrokerConfig, status_address: Address | None) -> int:
    node = Node(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, node.request_stop)
    await node.start()
    status = None
    if status_address is not None:
        try:
            status = StatusServer(node.broker, lambda: not node.is_stopping)
            status_address = status_address._replace(port=await status.start(*status_address))
        except ConfigError:
            await node.stop()
            raise
    if not node.is_stopping:
        _announce(config, node.addresses, status_address)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    await node.wait_until_stopped()
    logger.info("shutting down")
    await node.stop()
    if status is not None:
        await status.stop()
    return 0 if node.failure is None else 1


def _announce(
    config: BrokerConfig, addresses: list[tuple[Listener, int]], status_address: Address | None
) -> None:
    """Where clients, and then other controllers, can dial; standard output is read by those who start nodes."""
    controllers = {listener.name for listener in config.network.controller_listeners}
    shown = sorted(addresses, key=lambda address: address[0].name in controllers)
    texts = [f"{_host_text(listener.host)}:{port}" for listener, port in shown]
    lines = []
    for (listener, _), text in zip(shown, texts, strict=True):
        note = " (controller)" if listener.name in controllers else ""
        lines.append(f"Tidemill {__version__} listens on {text}{note}\n")
    if status_address is not None:
        lines.append(f"Metrics at http://{status_address}/metrics\n")
    if config.is_broker:
        lines.append(
            f"Try:  tidemill topics create orders      (or any Kafka client at {texts[0]}; Ctrl-C stops the broker)\n"
        )
    # At once: who waits for the first line finds the others.
    sys.stdout.write("".join(lines))
    sys.stdout.flush()


def _status_address(text: str) -> Address:
    (listener,) = parse_listeners(_STATUS_KEY, (f"HTTP://{text}",), {"HTTP": "PLAINTEXT"})
    return Address(listener.host, listener.port)


def _host_text(host: str) -> str:
    return f"[{host}]" if ":" in host else host or "localhost"


def _properties(arguments: argparse.Namespace) -> dict[str, str]:
    properties: dict[str, str] = {}
    if arguments.config:
        try:
            with open(arguments.config, encoding="utf-8") as file:
                properties.update(parse_properties(file.read()))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read {arguments.config}: {error}") from error
    for setting in arguments.set:
        key, separator, value = setting.partition("=")
        if not separator or not key.strip():
            raise ConfigError(f"--set takes KEY=VALUE, not {setting!r}")
        properties[key.strip()] = value.strip()
    if arguments.data_dir:
        properties["log.dirs"] = arguments.data_dir
    elif "log.dirs" not in properties and "log.dir" not in properties:
        properties["log.dirs"] = "data"
    if arguments.listen or "listeners" not in properties:
        properties["listeners"] = f"PLAINTEXT://{arguments.listen or _DEFAULT_LISTENER}"
    return properties


def _raise_file_limit() -> None:
    """Segments and connections are files: take what the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _configure_logging(level: str, style: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if style == "json" else _TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class _TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
        self.converter = time.gmtime
        self.default_time_format = "%Y-%m-%dT%H:%M:%S"
        self.default_msec_format = "%s.%03dZ"


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time_ms": int(record.created * 1000),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)
