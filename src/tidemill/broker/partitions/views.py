"""A view as the broker serves it: a topic that shows the records of its source that match a filter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Self

from tidemill.broker.metrics.registry import TopicCounts
from tidemill.config import VIEW_FILTER, VIEW_SOURCE
from tidemill.controller.image import TopicImage
from tidemill.filters.language import parse
from tidemill.filters.matching import compile_filter
from tidemill.log.filtered_read import Select
from tidemill.log.segments.dictionaries import Probe
from tidemill.protocol.record_walk import select
from tidemill.types import TopicId


@dataclass(frozen=True, slots=True)
class View:
    name: str
    topic_id: TopicId
    source: str
    select: Select
    # Finds the records in sealed segments by their index.
    probe: Probe
    counts: TopicCounts

    @classmethod
    def configured(cls, topic: TopicImage, config: Mapping[str, str], counts: TopicCounts) -> Self:
        parsed = parse(config.get(VIEW_FILTER, ""))
        shown = partial(select, matcher=compile_filter(parsed))
        return cls(topic.name, topic.id, config[VIEW_SOURCE], shown, Probe(parsed), counts)
