"""The gateway process of a broker: started with it, restarted when it dies, and ended with it.

The broker never depends on the gateway. It starts the gateway after it serves clients, and a failure is a log line.
The gateway's standard input is a pipe from this process and ends with it, so the gateway does not outlive a killed
broker. The pipe's first line has the gateway's properties, with secrets among them: they are in no command line and no
file. The gateway's log appears in the broker's log. A restarted gateway keeps the port that the kernel chose first.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import re
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import MappingProxyType

from tidemill.cli.serving.http_listeners import HttpListener

logger = logging.getLogger(__name__)

PACKAGES = ("confluent_kafka", "httptools", "starlette", "uvicorn")
INSTALL_HINT = "pip install 'tidemill[gateway]'"
# The line that the gateway prints once it serves, with its address.
READY_LINE = re.compile(r"Console at (?P<scheme>https?)://(?P<host>\S+):(?P<port>\d+)/")

# The option of a gateway that a parent process started: it reads a line of properties, and ends with its standard input.
FROM_PARENT = "--until-stdin-closes"

_FIRST_PAUSE_S = 0.5
_PAUSE_S_MAX = 30.0
# A gateway that lived this long has not failed at once: the restart delay is reset.
_STEADY_S = 60.0
_STOP_LIMIT_S = 5.0
_CHUNK_BYTES = 64 * 1024
_LINE_BYTES_MAX = 1 << 20
_CALM_LEVELS = ("debug", "info")
_FAILURE_PREFIX = "tidemill gateway: "


def missing_packages() -> list[str]:
    return [name for name in PACKAGES if importlib.util.find_spec(name) is None]


class GatewayChild:
    """The gateway process. `options` are those of `tidemill gateway` without --listen; `say` gets the console's
    address once. `client` are the properties of its connections to the brokers.
    """

    def __init__(
        self,
        listener: HttpListener,
        options: Sequence[str],
        say: Callable[[str], None],
        *,
        client: Mapping[str, str] = MappingProxyType({}),
        command: Sequence[str] = (sys.executable, "-m", "tidemill", "gateway"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheme = listener.scheme
        self._listen = listener.address
        self._given = (
            json.dumps({"client": dict(client), "tls": dict(listener.ssl_properties)}).encode() + b"\n"
        )
        self._options = list(options)
        self._say = say
        self._command = list(command)
        self._clock = clock
        self._is_announced = False
        self._is_stopping = False
        self._process: Process | None = None
        self._reason = ""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the gateway and return at once. It is restarted until `stop`."""
        self._task = asyncio.get_running_loop().create_task(self._supervise())
        self._task.add_done_callback(_report_crash)

    async def stop(self) -> None:
        """Terminate the gateway, and kill it when it does not end within seconds."""
        self._is_stopping = True
        if self._task is None:
            return
        if self._process is None:
            self._task.cancel()
        else:
            self._signal(signal.SIGTERM)
        done, _ = await asyncio.wait((self._task,), timeout=_STOP_LIMIT_S)
        if not done:
            self._signal(signal.SIGKILL)
            await asyncio.wait((self._task,))

    # -- the lives of the child ----------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._is_stopping:
            started_s = self._clock()
            end = await self._live()
            if self._is_stopping:
                return
            if self._clock() - started_s >= _STEADY_S:
                pause_s = _FIRST_PAUSE_S
            logger.warning(
                "the gateway ended (%s): %s; the broker continues, the gateway restarts in %g s",
                end,
                self._reason or "no reason given",
                pause_s,
            )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    async def _live(self) -> str:
        """Run one process from start to end. Returns how it ended."""
        self._reason = ""
        try:
            # In a session of its own: Ctrl-C at the terminal goes to the broker, which stops the gateway.
            process = await asyncio.create_subprocess_exec(
                *self._command,
                "--listen",
                f"{self._scheme}{self._listen}",
                *self._options,
                FROM_PARENT,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                start_new_session=True,
            )
        except OSError as error:
            self._reason = str(error.strerror or error)
            return "not started"
        self._process = process
        if self._is_stopping:
            self._signal(signal.SIGTERM)
        try:
            assert process.stdin is not None
            process.stdin.write(self._given)
            await asyncio.gather(self._relay_output(process), self._relay_log(process))
            return _end_text(await process.wait())
        finally:
            self._process = None

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    # -- what the child says -------------------------------------------------------------------------------------

    async def _relay_output(self, process: Process) -> None:
        assert process.stdout is not None
        async for line in _lines(process.stdout):
            ready = READY_LINE.search(line)
            if ready is None:
                continue
            self._listen = self._listen._replace(port=int(ready["port"]))
            if self._is_announced:
                logger.info(
                    "the gateway serves again at %s://%s:%s/", ready["scheme"], ready["host"], ready["port"]
                )
            else:
                self._is_announced = True
                self._say(line)

    async def _relay_log(self, process: Process) -> None:
        assert process.stderr is not None
        async for line in _lines(process.stderr):
            if line.startswith(_FAILURE_PREFIX):
                self._reason = line.removeprefix(_FAILURE_PREFIX)
                continue
            self._reason = _complaint(line) or self._reason
            sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def _report_crash(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.error(
            "watching the gateway failed; it is not restarted when it ends: restart the broker",
            exc_info=task.exception(),
        )


def _complaint(line: str) -> str:
    """The part of an output line that may explain why the process ended; lines of the regular log are left out."""
    if line.startswith("{"):
        try:
            entry = json.loads(line)
            return "" if entry["level"] in _CALM_LEVELS else str(entry["message"])
        except (ValueError, KeyError, TypeError):
            return line.strip()
    words = line.split(None, 2)
    return "" if len(words) > 1 and words[1].lower() in _CALM_LEVELS else line.strip()


def _end_text(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[str]:
    """Read lines of any length, the longest in pieces, so that the child never blocks on its output."""
    rest = b""
    while chunk := await reader.read(_CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")
        if len(rest) > _LINE_BYTES_MAX:
            yield rest.decode(errors="replace")
            rest = b""
    if rest:
        yield rest.decode(errors="replace")
