"""The gateway's own `/metrics`: requests, their answers and times, and what is open at the moment.

`Metering` is the outermost middleware, so refusals of the guards are counted as well. Times end where the answer begins:
a stream of records or events may be as long as it likes. Paths are those of the OpenAPI document, so callers cannot add
series: files, event streams and unknown paths are `other`. Parts of the gateway add gauges of what they keep.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidemill.gateway.http.openapi import STRING, Part

_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
_OTHER = "other"
_TEXT = "text/plain; version=0.0.4; charset=utf-8"

part = Part("Gateway")


class Meter:
    """The gateway's metrics. Belongs to one event loop."""

    def __init__(self) -> None:
        self.in_progress = 0
        self._answers: dict[tuple[str, str, int], int] = {}
        # Of each method and path: the number of answers up to each bound and above the last, and the sum of seconds.
        self._times: dict[tuple[str, str], tuple[list[int], list[float]]] = {}
        self._gauges: dict[str, tuple[str, Callable[[], int]]] = {
            "tidemill_gateway_requests_in_progress": (
                "Requests under way, streams included.",
                lambda: self.in_progress,
            )
        }

        self._counters: dict[str, tuple[str, Callable[[], int]]] = {}

    def add_gauge(self, name: str, help_text: str, read: Callable[[], int]) -> None:
        self._gauges[name] = help_text, read

    def add_counter(self, name: str, help_text: str, read: Callable[[], int]) -> None:
        self._counters[name] = help_text, read

    def answered(self, method: str, path: str, status: int, took_s: float) -> None:
        answer = method, path, status
        self._answers[answer] = self._answers.get(answer, 0) + 1
        buckets, sums = self._times.setdefault((method, path), ([0] * (len(_BOUNDS_S) + 1), [0.0]))
        buckets[bisect_left(_BOUNDS_S, took_s)] += 1
        sums[0] += took_s

    def text(self) -> str:
        return "".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield from _head("tidemill_gateway_requests_total", "counter", "Requests that were answered.")
        for (method, path, status), count in sorted(self._answers.items()):
            labels = f'method="{method}",path="{path}",status="{status}"'
            yield f"tidemill_gateway_requests_total{{{labels}}} {count}\n"
        name = "tidemill_gateway_request_duration_seconds"
        yield from _head(name, "histogram", "From the arrival of a request to the beginning of its answer.")
        for (method, path), (buckets, sums) in sorted(self._times.items()):
            labels = f'method="{method}",path="{path}"'
            below = 0
            for bound, count in zip((*map(str, _BOUNDS_S), "+Inf"), buckets, strict=True):
                below += count
                yield f'{name}_bucket{{{labels},le="{bound}"}} {below}\n'
            yield f"{name}_count{{{labels}}} {below}\n{name}_sum{{{labels}}} {sums[0]!r}\n"
        for counter, (help_text, read) in sorted(self._counters.items()):
            yield from _head(counter, "counter", help_text)
            yield f"{counter} {read()}\n"
        for gauge, (help_text, read) in sorted(self._gauges.items()):
            yield from _head(gauge, "gauge", help_text)
            yield f"{gauge} {read()}\n"


def _head(name: str, kind: str, help_text: str) -> Iterator[str]:
    yield f"# HELP {name} {help_text}\n# TYPE {name} {kind}\n"


class Metering:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        meter: Meter = scope["app"].state.meter
        begun_s = time.monotonic()

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                method = scope["method"] if scope["method"] in _METHODS else _OTHER
                path = scope.get("operation_path", _OTHER)
                meter.answered(method, path, message["status"], time.monotonic() - begun_s)
            await send(message)

        meter.in_progress += 1
        try:
            await self._app(scope, receive, noted)
        finally:
            meter.in_progress -= 1


@part.get(
    "/metrics",
    "The gateway's own metrics",
    answer={"text/plain": STRING},
    description="In Prometheus' text format. Where callers log in, this one does, too.",
)
async def metrics(request: Request) -> Response:
    meter: Meter = request.app.state.meter
    return Response(meter.text(), headers={"Content-Type": _TEXT})


routes = part.routes
