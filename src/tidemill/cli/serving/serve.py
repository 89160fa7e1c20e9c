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
import shlex
import signal
import sys
from pathlib import Path
from typing import NamedTuple

import uvloop

from tidemill import __version__
from tidemill.broker.node import Node
from tidemill.broker.status.server import StatusServer
from tidemill.cli.options import add_examples, default_bootstrap, properties_file
from tidemill.cli.serving.addresses import check_free
from tidemill.cli.serving.gateway_access import gateway_access, has_login, reached
from tidemill.cli.serving.gateway_child import INSTALL_HINT, GatewayChild, missing_packages
from tidemill.cli.serving.http_listeners import (
    CLIENT_CONFIG_KEY,
    GATEWAY_KEY,
    GATEWAY_OPTIONS,
    GATEWAY_PREFIX,
    INSECURE_KEY,
    LARGE_PAYLOADS_KEY,
    STATUS_KEY,
    STATUS_PREFIX,
    HttpListener,
    check_exposure,
    http_listener,
    refuse_unknown_keys,
)
from tidemill.cli.serving.http_listeners import KEYS as HTTP_KEYS
from tidemill.cli.serving.process import add_log_arguments, configure_logging, raise_file_limit
from tidemill.client.connections.connection import Address
from tidemill.config import BrokerConfig, Listener, load_broker_config, parse_properties
from tidemill.errors import ConfigError
from tidemill.objects.opening import open_store

logger = logging.getLogger("tidemill")

_DEFAULT_LISTENER = "127.0.0.1:9092"
# The status listener for the gateway, when no address is given: loopback, any port.
_PRIVATE_STATUS = HttpListener(Address("127.0.0.1", 0))
# Serving creates few cycles. Collections are small rather than rare: one of a million objects holds the loop for 0.4 s.
# Only what is allocated and not freed again counts, so a request that leaves nothing behind costs no collection.
_GC_THRESHOLDS = (5_000, 10, 2_000)


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
        help=f"serve /metrics, /healthz, /readyz and /rebalances here, as HOST:PORT or https://HOST:PORT "
        f"(or {STATUS_KEY}=HOST:PORT in the file)",
    )
    parser.add_argument(
        "--gateway",
        metavar="HOST:PORT",
        help=f"run the REST gateway with the web console here, as HOST:PORT or https://HOST:PORT, as a process of its own "
        f"(or {GATEWAY_KEY}=HOST:PORT)",
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        help=f"let the gateway listen beyond this machine without a log-in or without TLS (or {INSECURE_KEY}=true)",
    )
    parser.add_argument(
        "--large-payloads",
        metavar="STORE",
        help=f"a folder, or a URL such as s3://bucket/prefix: where the gateway keeps large payloads "
        f"(or {LARGE_PAYLOADS_KEY}=STORE)",
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


class _Gateway(NamedTuple):
    """The gateway of a broker: where it listens, its options, and how it reaches the broker."""

    listener: HttpListener
    options: list[str]
    broker_listener: str
    client: dict[str, str]


class _Faces(NamedTuple):
    """The status listener and the gateway of a broker."""

    status: HttpListener | None
    gateway: _Gateway | None


def run(arguments: argparse.Namespace) -> int:
    properties = _properties(arguments)
    own = {name: properties.pop(name) for name in list(properties) if name in HTTP_KEYS}
    refuse_unknown_keys(properties)
    config, warnings = load_broker_config(properties)
    faces = _faces(arguments, {**properties, **own}, config)
    if faces.gateway is not None and faces.gateway.listener.address.port:
        check_free(faces.gateway.listener.address, "--gateway")
    configure_logging(arguments.log_level, arguments.log_format)
    for warning in warnings:
        logger.warning("%s", warning)
    raise_file_limit()
    return uvloop.run(_serve(config, faces, _client_file(arguments.config)))


def _faces(arguments: argparse.Namespace, properties: dict[str, str], config: BrokerConfig) -> _Faces:
    status = arguments.status or properties.get(STATUS_KEY)
    gateway = arguments.gateway or properties.get(GATEWAY_KEY)
    if arguments.large_payloads is not None:
        if not gateway:
            raise ConfigError("--large-payloads is the store of a gateway: give --gateway HOST:PORT too")
        properties[LARGE_PAYLOADS_KEY] = arguments.large_payloads
    if status and not _has_metrics():
        raise ConfigError("--status needs the package prometheus_client: pip install 'tidemill[metrics]'")
    return _Faces(
        http_listener(STATUS_KEY, status, properties, STATUS_PREFIX) if status else None,
        _gateway(arguments, gateway, properties, config) if gateway and config.is_broker else None,
    )


def _gateway(
    arguments: argparse.Namespace, text: str, properties: dict[str, str], config: BrokerConfig
) -> _Gateway:
    listener = http_listener(GATEWAY_KEY, text, properties, GATEWAY_PREFIX)
    options = ["--log-level", arguments.log_level, "--log-format", arguments.log_format]
    if LARGE_PAYLOADS_KEY in properties:
        # A store that cannot be is an error now, not in the gateway's log.
        open_store(properties[LARGE_PAYLOADS_KEY])
    for key, option in GATEWAY_OPTIONS.items():
        if key in properties:
            options += [option, properties[key]]
    file = properties.get(CLIENT_CONFIG_KEY)
    broker_listener, client = gateway_access(config, properties_file(Path(file)) if file else None)
    has_auth = "--auth" in options
    if arguments.insecure or properties.get(INSECURE_KEY, "").lower() == "true":
        options.append("--insecure")
    else:
        check_exposure(
            listener, option="--gateway", has_login=has_login(client) and not has_auth, has_auth=has_auth
        )
    return _Gateway(listener, options, broker_listener.name, client)


async def _serve(config: BrokerConfig, faces: _Faces, client_file: str) -> int:
    node = Node(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, node.request_stop)
    await node.start()
    status, status_url = await _open_status(node, faces)
    gateway = None
    if not node.is_stopping:
        _announce(config, node.addresses, status_url if faces.status else "", client_file)
        if faces.gateway is not None:
            gateway = _start_gateway(config, node.addresses, faces.gateway, status_url)
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


async def _open_status(node: Node, faces: _Faces) -> tuple[StatusServer | None, str]:
    """Open the requested status listener, or one for the gateway alone. Returns its URL."""
    if node.is_stopping:
        return None, ""
    wanted = [faces.status] if faces.status else []
    if faces.gateway is not None and _has_metrics():
        wanted.append(_PRIVATE_STATUS)
    for listener in wanted:
        server = StatusServer(node.broker, lambda: not node.is_stopping)
        try:
            port = await server.start(*listener.address, listener.tls)
            return server, listener.url(listener.address._replace(port=port))
        except ConfigError as error:
            logger.error("%s; the broker continues; give --status another address", error)
    return None, ""


def _has_metrics() -> bool:
    return importlib.util.find_spec("prometheus_client") is not None


def _start_gateway(
    config: BrokerConfig, addresses: list[tuple[Listener, int]], wanted: _Gateway, status_url: str
) -> GatewayChild | None:
    if missing := missing_packages():
        logger.error(
            "the gateway needs %s: %s; the broker serves without it", ", ".join(missing), INSTALL_HINT
        )
        return None
    listener, port = next(each for each in addresses if each[0].name == wanted.broker_listener)
    options = ["--bootstrap", str(reached(config, listener, port))]
    if status_url:
        options += ["--status-url", status_url]
    gateway = GatewayChild(wanted.listener, options + wanted.options, _say, client=wanted.client)
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
    config: BrokerConfig, addresses: list[tuple[Listener, int]], status_url: str, client_file: str
) -> None:
    """Print the addresses of the listeners. Programs that start nodes read these lines."""
    controllers = {listener.name for listener in config.network.controller_listeners}
    shown = sorted(addresses, key=lambda address: address[0].name in controllers)
    texts = [f"{_host_text(listener.host)}:{port}" for listener, port in shown]
    lines = []
    for (listener, _), text in zip(shown, texts, strict=True):
        note = " (controller)" if listener.name in controllers else ""
        lines.append(f"Tidemill {__version__} listens on {text}{note}\n")
    if status_url:
        lines.append(f"Metrics at {status_url}/metrics\n")
    if config.is_broker:
        listener, port = shown[0]
        address = str(reached(config, listener, port))
        option = "" if address == default_bootstrap() else f" --bootstrap {address}"
        if listener.security_protocol != "PLAINTEXT":
            option += f" --command-config {client_file}"
        lines.append(
            f"Try:  tidemill topics create orders{option}      (or any Kafka client at {texts[0]}; "
            "Ctrl-C stops the broker)\n"
        )
    # In one write: a reader that waits for the first line finds the others.
    sys.stdout.write("".join(lines))
    sys.stdout.flush()


def _client_file(config_file: str | None) -> str:
    """The admin's properties where `tidemill security init` has put them, or a name for a file like it."""
    if config_file:
        made = Path(config_file).parent.parent / "clients" / "admin.properties"
        if made.exists():
            return shlex.quote(str(made))
    return "client.properties"


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
