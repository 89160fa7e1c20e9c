"""Every snippet of docs/gateway-v2.md runs, against the gateway that the page itself starts."""

from __future__ import annotations

from pathlib import Path

from tests.snippets import ROOT, Page, Reader
from tidemill.testing import InProcessBroker
from tidemill.testing.ports import HOST, HeldPort


def test_every_snippet_of_the_page_runs(tmp_path: Path) -> None:
    ports = {number: HeldPort() for number in (8080,)}
    with InProcessBroker() as broker:
        replaced = {f"{HOST}:{number}": f"{HOST}:{port.number}" for number, port in ports.items()}
        replaced[f"{HOST}:9092"] = broker.bootstrap
        with Reader(tmp_path, replaced) as reader:
            reader.run_page(Page(ROOT / "docs/gateway-v2.md"))
    for port in ports.values():
        port.release()
