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
from tidemill.protocol.record_walk import select
from tidemill.types import TopicId


@dataclass(frozen=True, slots=True)
class View:
    name: str
    topic_id: TopicId
    source: str
    select: Select
    counts: TopicCounts

    @classmethod
    def configured(cls, topic: TopicImage, config: Mapping[str, str], counts: TopicCounts) -> Self:
        matcher = compile_filter(parse(config[VIEW_FILTER]))
        return cls(topic.name, topic.id, config[VIEW_SOURCE], partial(select, matcher=matcher), counts)
