"""What `make diff-acls` asks and compares, without any broker."""

from __future__ import annotations

import random
import uuid

from bench.diff.acls.outcome import is_refused, outcome
from bench.diff.acls.questions import FIXED, QUESTIONS, Question, random_question
from bench.diff.acls.requests.dice import TOPICS, TopicId
from bench.diff.acls.rules import random_rules
from bench.diff.compare import differences_of
from bench.diff.messages import encode, versions_known

from tidemill.broker.requests import handlers
from tidemill.broker.requests.api_table import TABLE, Scope
from tidemill.protocol.api import API_NAMES

assert handlers  # importing them fills the table
# Without a decision that depends on the principal; or, for clients' metrics, bound in time.
OPEN = {"ApiVersions", "SaslHandshake", "SaslAuthenticate", "GetTelemetrySubscriptions", "PushTelemetry"}


def test_every_api_of_clients_is_asked() -> None:
    served = {API_NAMES[key] for key, api in TABLE.items() if api.scope & Scope.BROKER} - OPEN
    asked = {"".join(part.capitalize() for part in name.split("_")) for name in (*QUESTIONS, *FIXED)}
    assert asked == served


def test_a_seed_gives_the_same_rules_and_questions_and_all_can_be_encoded() -> None:
    shared = {api: versions_known(api) for api in (*QUESTIONS, *FIXED)}
    runs = []
    for _ in range(2):
        rng = random.Random("seed")
        runs.append([(random_rules(rng), random_question(rng, shared)) for _ in range(400)])
    assert runs[0] == runs[1]
    ids = {name: uuid.uuid4() for name in TOPICS}
    for _, question in runs[0]:
        encode(question.api, question.version, question.for_broker(ids), 1, "test")


def test_topic_ids_are_those_of_the_broker_and_of_nothing_for_a_missing_topic() -> None:
    known = uuid.uuid4()
    question = Question("fetch", 13, {"topics": [{"topic_id": TopicId("a")}, {"topic_id": TopicId("c")}]})
    first, second = question.for_broker({"a": known})["topics"]
    assert first["topic_id"] == known
    assert second["topic_id"] not in (known, uuid.UUID(int=0))


def test_outcome_keeps_codes_names_and_operations_alone() -> None:
    topic_id = uuid.uuid4()
    answer = {
        "throttle_time": 7,
        "cluster_id": "x",
        "brokers": [{"node_id": 1}],
        "topics": [
            {"name": "b", "topic_id": topic_id, "error_code": "NONE(0)", "topic_authorized_operations": 8},
            {"name": "a", "error_code": "TOPIC_AUTHORIZATION_FAILED(29)", "error_message": "no"},
            {"name": "new-1", "error_code": "NONE(0)"},
        ],
    }
    reduced = outcome(answer, {topic_id: "b"})
    assert sorted(reduced["topics"], key=lambda topic: str(topic["name"])) == [
        {"name": "a", "error_code": "TOPIC_AUTHORIZATION_FAILED(29)"},
        {"name": "b", "topic_id": "b", "error_code": "NONE(0)", "topic_authorized_operations": 8},
    ]
    assert set(reduced) == {"topics"}
    assert is_refused(reduced)


def test_a_name_that_one_broker_hides_is_a_difference() -> None:
    shown = outcome({"groups": [{"group_id": "g"}, {"group_id": "h"}]}, {})
    hidden = outcome({"groups": [{"group_id": "h"}]}, {})
    assert [path for path, _, _ in differences_of(shown, hidden)] == ["groups[g]"]
    assert not list(differences_of(shown, outcome({"groups": [{"group_id": "h"}, {"group_id": "g"}]}, {})))
