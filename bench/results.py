"""The results of one case on one target, round by round."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from bench.processes import Metrics


@dataclass
class Result:
    family: str
    case: str
    target: str
    rounds: list[Metrics] = field(default_factory=list)
    error: str | None = None

    @property
    def median(self) -> Metrics:
        names = self.rounds[0] if self.rounds else {}
        return {name: statistics.median(each[name] for each in self.rounds) for name in names}
