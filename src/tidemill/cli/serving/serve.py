"""`tidemill serve`: runs a broker until a signal stops it.

Settings come from a `server.properties` file, then `--set`, then the shorthands `--data-dir` and `--listen`. They are
validated before the data directory is touched. Standard output gets the address once clients can connect; the log goes
to standard error.

When the gateway's address is in use, the broker does not start. After that, monitoring never stops the broker: a
status listener without a free address and a gateway that dies (see `gateway_child`) are errors in the log.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib.util
import logging
import signal
import sys
from typing import NamedTuple

import uvloop

from tidemill import __version__
from tidemill.broker.node import Node
from tidemill.broker.status.server import StatusServer
from tidemill.cli.checks.machine import raise_file_limit
from tidemill.cli.options import add_examples, default_bootstrap
from tidemill.cli.serving.addresses import check_free, dialled, listen_address
from tidemill.cli.serving.gateway_child import INSTALL_HINT, GatewayChild, missing_packages
from tidemill.cli.serving.logs import add_log_arguments, configure_logging
from tidemill.client.connection import Address
from tidemill.config import BrokerConfig, Listener, load_broker_config, parse_properties
from tidemill.errors import ConfigError

logger = logging.getLogger("tidemill")

_DEFAULT_LISTENER = "127.0.0.1:9092"
# A key of this process, not of the broker's configuration: clients do not see it.
_STATUS_KEY = "tidemill.status.listener"
_GATEWAY_KEY = "tidemill.gateway.listener"
# Other settings of the gateway, and the `tidemill gateway` options for them.
_GATEWAY_OPTIONS = {
    "tidemill.gateway.auth": "--auth",
    "tidemill.gateway.allow.origin": "--allow-origin",
    "tidemill.gateway.client.config": "--client-config",
}
# The status listener for the gateway, when no address is given: loopback, any port.
_PRIVATE_STATUS = Address("127.0.0.1", 0)
# Serving creates few long-lived cycles, and frequent collection only adds latency.
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
        "--gateway",
        metavar="HOST:PORT",
        help=f"run the REST gateway with the web console here, as a process of its own (or {_GATEWAY_KEY}=HOST:PORT)",
    )
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="set one configuration key; repeatable",
    )
    add_log_arguments(parser)
    add_examples(
        parser,
        "tidemill serve\n"
        "tidemill serve --data-dir /var/lib/tidemill --listen 0.0.0.0:9092 --set advertised.listeners="
        "PLAINTEXT://broker-1:9092\n"
        "tidemill serve --status 127.0.0.1:9404 --gateway 127.0.0.1:8080\n"
        "tidemill serve --config server.properties --log-format json",
    )


class _Faces(NamedTuple):
    """The status listener and the gateway of a broker."""

    status: Address | None
    gateway: Address | None
    gateway_options: list[str]


def run(arguments: argparse.Namespace) -> int:
    properties = _properties(arguments)
    faces = _faces(arguments, properties)
    config, warnings = load_broker_config(properties)
    if faces.gateway is not None and faces.gateway.port and config.is_broker:
        check_free(faces.gateway, "--gateway")
    configure_logging(arguments.log_level, arguments.log_format)
    for warning in warnings:
        logger.warning("%s", warning)
    raise_file_limit()
    return uvloop.run(_serve(config, faces))


def _faces(arguments: argparse.Namespace, properties: dict[str, str]) -> _Faces:
    """Take the keys of the status listener and the gateway out of the properties."""
    status = arguments.status or properties.pop(_STATUS_KEY, None)
    gateway = arguments.gateway or properties.pop(_GATEWAY_KEY, None)
    options = ["--log-level", arguments.log_level, "--log-format", arguments.log_format]
    for key, option in _GATEWAY_OPTIONS.items():
        if key in properties:
            options += [option, properties.pop(key)]
    if status and not _has_metrics():
        raise ConfigError("--status needs the package prometheus_client: pip install 'tidemill[metrics]'")
    return _Faces(
        listen_address(_STATUS_KEY, status) if status else None,
        listen_address(_GATEWAY_KEY, gateway) if gateway else None,
        options,
    )


async def _serve(config: BrokerConfig, faces: _Faces) -> int:
    node = Node(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, node.request_stop)
    await node.start()
    status, status_address = await _open_status(node, faces)
    gateway = None
    if not node.is_stopping:
        _announce(config, node.addresses, status_address if faces.status else None)
        gateway = _start_gateway(config, node.addresses, faces, status_address)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    await node.wait_until_stopped()
    logger.info("shutting down")
    gateway_stopped = asyncio.create_task(gateway.stop()) if gateway is not None else None
    await node.stop()
    if status is not None:
        await status.stop()
    if gateway_stopped is not None:
        await gateway_stopped
    return 0 if node.failure is None else 1


async def _open_status(node: Node, faces: _Faces) -> tuple[StatusServer | None, Address | None]:
    """Open the requested status listener, or one for the gateway alone."""
    if node.is_stopping:
        return None, None
    wanted = [faces.status] if faces.status else []
    if faces.gateway is not None and node.config.is_broker and _has_metrics():
        wanted.append(_PRIVATE_STATUS)
    for address in wanted:
        server = StatusServer(node.broker, lambda: not node.is_stopping)
        try:
            return server, address._replace(port=await server.start(*address))
        except ConfigError as error:
            logger.error("%s; the broker continues; give --status another address", error)
    return None, None


def _has_metrics() -> bool:
    return importlib.util.find_spec("prometheus_client") is not None


def _start_gateway(
    config: BrokerConfig, addresses: list[tuple[Listener, int]], faces: _Faces, status: Address | None
) -> GatewayChild | None:
    if faces.gateway is None or not config.is_broker:
        return None
    if missing := missing_packages():
        logger.error(
            "the gateway needs %s: %s; the broker serves without it", ", ".join(missing), INSTALL_HINT
        )
        return None
    controllers = {listener.name for listener in config.network.controller_listeners}
    listener, port = next(each for each in addresses if each[0].name not in controllers)
    options = ["--bootstrap", str(dialled(Address(listener.host, port))), "--until-stdin-closes"]
    if status is not None:
        options += ["--status-url", f"http://{dialled(status)}"]
    gateway = GatewayChild(faces.gateway, options + faces.gateway_options, _say)
    gateway.start()
    return gateway


def _say(line: str) -> None:
    """Print a line on standard output. A closed standard output is not an error."""
    try:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except OSError as error:
        logger.info("%s (standard output is closed: %s)", line, error.strerror)


def _announce(
    config: BrokerConfig, addresses: list[tuple[Listener, int]], status_address: Address | None
) -> None:
    """Print the addresses of the listeners. Programs that start nodes read these lines."""
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
        listener, port = shown[0]
        address = str(dialled(Address(listener.host, port)))
        option = "" if address == default_bootstrap() else f" --bootstrap {address}"
        lines.append(
            f"Try:  tidemill topics create orders{option}      (or any Kafka client at {texts[0]}; "
            "Ctrl-C stops the broker)\n"
        )
    # In one write: a reader that waits for the first line finds the others.
    sys.stdout.write("".join(lines))
    sys.stdout.flush()


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
