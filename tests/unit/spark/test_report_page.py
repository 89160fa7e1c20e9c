"""The page: well-formed, nothing from outside gets out of its place, and the tables have the numbers."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from tidemill.spark.pipelines.topic_report.findings import (
    Findings,
    KeyUse,
    Lag,
    TopicUse,
    Written,
    key_text,
    parse_duration_ms,
    parse_size,
    partition_uses,
    retention_text,
    slices,
)
from tidemill.spark.pipelines.topic_report.forecast import DAY_MS, HOUR_MS, Disk, Rate, TopicGrowth, forecast
from tidemill.spark.pipelines.topic_report.page import page

EVIL = "<script>alert(1)</script>\"'&<img src=x onerror=alert(1)>"
_VOID = {"meta", "br"}
# What the page is made of; anything else came from outside.
_KNOWN = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "h1",
        "h2",
        "p",
        "ul",
        "li",
        "section",
        "svg",
        "desc",
        "rect",
    ),
    *(
        "text",
        "line",
        "polygon",
        "polyline",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "div",
        "details",
        "summary",
    ),
}


class Reader(HTMLParser):
    """Fails on tags that do not close in order; collects the cells of the tables and the texts of the plots."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.rows: list[list[str]] = []
        self.plots: list[set[str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in _VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag == "svg":
            self.plots.append(set())
        elif "svg" in self.open[:-1]:
            self.plots[-1].add(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


@pytest.fixture
def findings() -> Findings:
    rate = Rate(1000.0, 500.0, 2000.0, 10, DAY_MS, 1)
    counts = {0: (900, 9000), 1: (100, 1000)}
    return Findings(
        cluster_id=EVIL,
        made_at_ms=1_700_000_000_000,
        scope="All records, counted one by one.",
        sample_percent=100,
        topics=[TopicUse(EVIL, 2, 3, 1000, 10_000, 31_234, 17, "delete", "7 d", rate)],
        partitions=partition_uses(EVIL, counts, 2, {0: 28_000, 1: 3_234}),
        keys_by_records=[KeyUse(EVIL, key_text(EVIL.encode()), 777, 7_770, 0.777)],
        keys_by_bytes=[KeyUse(EVIL, key_text(b"\xff\x00"), 5, 50, 0.005)],
        lags=[Lag(EVIL, EVIL, 0, 4_321, 5_000, 679, "Stable"), Lag("g", EVIL, 1, None, 9, None, "Empty")],
        written=[Written(hour * HOUR_MS, 10 + hour, 1_001 * hour) for hour in range(5)],
        bucket_ms=HOUR_MS,
        forecasts=[forecast(Disk(EVIL, 90_000.0, [TopicGrowth(EVIL, 31_234.0, rate)]))],
        remarks=[EVIL],
    )


def test_names_stay_names(findings: Findings) -> None:
    text = page(findings)
    reader = read(text)
    assert set(reader.tags) <= _KNOWN
    assert not any(name.startswith("on") or name in ("src", "href") for name, _ in reader.attributes)
    assert "<script" not in text
    assert EVIL in [cell for row in reader.rows for cell in row]


def test_the_page_needs_nothing_else(findings: Findings) -> None:
    text = page(findings)
    assert "default-src 'none'" in text
    assert "prefers-color-scheme: dark" in text
    assert "http://" not in text
    assert "https://" not in text
    assert "url(" not in text
    assert page(findings) == text


def test_every_plot_has_a_title_and_a_description(findings: Findings) -> None:
    reader = read(page(findings))
    # Topics, partitions of the hot topic, two of keys, lag, growth, forecast.
    assert len(reader.plots) == 7
    assert all({"title", "desc"} <= plot for plot in reader.plots)
    ids = [value for name, value in reader.attributes if name == "id"]
    assert len(ids) == len(set(ids)) == 14


def test_the_tables_have_the_numbers(findings: Findings) -> None:
    rows = read(page(findings)).rows
    assert [EVIL, "2", "3", "1,000", "10,000", "31,234", "17", "delete", "7 d"] in rows
    assert [EVIL, "0", "900", "9,000", "28,000", "90.0%", "50.0%", "hot"] in rows
    assert [EVIL, "1", "100", "1,000", "3,234", "10.0%", "50.0%", ""] in rows
    assert [EVIL, "Stable", EVIL, "0", "4,321", "5,000", "679"] in rows
    assert ["g", "Empty", EVIL, "1", "–", "9", "–"] in rows
    assert ["1970-01-01 03:00", "13", "3,003"] in rows


def test_a_page_of_nothing_is_a_page() -> None:
    text = page(Findings("c", 0, "All records.", 5.0, forecast_refusal="Too little data for a forecast."))
    assert "Too little data for a forecast." in text
    assert read(text).plots == []


def test_page_marks_a_sample(findings: Findings) -> None:
    findings.sample_percent = 2.5
    text = page(findings)
    assert "Approximate: counted in 2.5 % of the records" in text
    assert "scaled up from 2.5 %" in text


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (b"order-1", "order-1"),
        ("Grüße".encode(), "Grüße"),
        (b"\x00\x01", "0x0001"),
        (b"", "(empty)"),
        ("a\u202eb".encode(), "0x61e280ae62"),
        (b"k" * 100, "k" * 63 + "…"),
    ],
)
def test_keys_are_shown_as_text_or_hexadecimal(key: bytes, text: str) -> None:
    assert key_text(key) == text


def test_an_even_topic_has_no_hot_partition_and_a_few_records_prove_nothing() -> None:
    even = partition_uses("t", {0: (500, 500), 1: (500, 500)}, 2, None)
    assert [each.is_hot for each in even] == [False, False]
    uneven = partition_uses("t", {0: (600, 600), 1: (400, 400)}, 2, None)
    assert [each.is_hot for each in uneven] == [False, False]
    few = partition_uses("t", {0: (9, 9)}, 2, None)
    assert [each.is_hot for each in few] == [False, False]
    hot = partition_uses("t", {0: (600, 600), 3: (400, 400)}, 4, None)
    assert [each.is_hot for each in hot] == [True, False, False, True]


@pytest.mark.parametrize(
    ("percent", "length"), [(10, 10_000), (1, 999), (33.3, 12_345), (100, 77), (0.001, 500)]
)
def test_slices_are_spread_and_make_up_the_share(percent: float, length: int) -> None:
    pieces = slices(1_000, 1_000 + length, percent, 8)
    offsets = [offset for start, end in pieces for offset in range(start, end)]
    assert len(offsets) == len(set(offsets))
    assert all(1_000 <= offset < 1_000 + length for offset in offsets)
    assert abs(len(offsets) - length * percent / 100) <= 8
    assert len(pieces) == (1 if percent == 100 else 8)
    assert slices(5, 5, percent, 8) == []


def test_sizes_and_times_as_people_write_them() -> None:
    assert parse_size("500GB") == 500 * 10**9
    assert parse_size("1.5 TiB") == 3 * 2**39
    assert parse_size("1234") == 1234
    assert parse_duration_ms("24h") == DAY_MS
    assert parse_duration_ms("1.5h") == 90 * 60_000
    for text in ("", "GB", "x5GB", "0GB", "-1GB", "5XB", "nan"):
        with pytest.raises(ValueError):
            parse_size(text)
    for text in ("", "24", "h", "-1h", "0d"):
        with pytest.raises(ValueError):
            parse_duration_ms(text)


def test_retention_is_shown_with_both_limits() -> None:
    assert retention_text(7 * DAY_MS, None) == "7 d"
    assert retention_text(None, 2**30) == "1.0 GiB a partition"
    assert retention_text(90_000, 1024) == "90 s or 1.0 KiB a partition"
    assert retention_text(None, None) == "for ever"
