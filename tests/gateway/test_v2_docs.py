"""Every snippet of docs/gateway-v2.md runs, against the gateway that the page itself starts."""

from __future__ import annotations

from pathlib import Path

from tests.snippets import ROOT, Page, Reader, free_ports
from tidemill.testing import InProcessBroker
from tidemill.testing.ports import HOST


def test_every_snippet_of_the_page_runs(tmp_path: Path) -> None:
    with InProcessBroker() as broker, free_ports(8080) as replaced:
        replaced[f"{HOST}:9092"] = broker.bootstrap
        with Reader(tmp_path, replaced) as reader:
            reader.run_page(Page(ROOT / "docs/gateway-v2.md"))
