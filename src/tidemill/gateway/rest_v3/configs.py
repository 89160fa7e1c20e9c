"""v3: configurations, of topics, of one broker, and of all brokers (the cluster's).

The three have the same operations on different paths; a `_Scope` is what differs. Values of sensitive settings are
null, as the broker gives them. Setting a value to null is the same as taking the setting away.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tidemill.client.admin.topics import ResourceType
from tidemill.errors import ApiError, ErrorCode
from tidemill.gateway.answers import json_answer
from tidemill.gateway.cluster.backend import Admins, unknown_topic
from tidemill.gateway.http.bodies import read_json_object
from tidemill.gateway.http.formats import invalid, member, only, optional_boolean, text
from tidemill.gateway.http.openapi import (
    BOOLEAN,
    INTEGER,
    STRING,
    TOPIC_PATTERN,
    Part,
    Schema,
    array,
    nullable,
    obj,
)
from tidemill.gateway.problems import Problem
from tidemill.gateway.rest_v3.clusters import unknown_broker
from tidemill.gateway.rest_v3.shapes import (
    ClusterLinks,
    Fields,
    cluster_of,
    collection_schema,
    path_integer,
    resource_schema,
)
from tidemill.gateway.rest_v3.topics import objects
from tidemill.protocol.api.admin import CreatableTopicResult, DescribeConfigsResourceResult

part = Part("Configurations (v3)", is_negotiated=True)

_CLUSTER_PATH = "/v3/clusters/{cluster_id}"
_SOURCES = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
    6: "DYNAMIC_BROKER_LOGGER_CONFIG",
}
_DEFAULT_SOURCE = 5
# A topic name for a dry run, which shows the settings of a new topic although the requested name exists.
_PROBE = "tidemill-gateway-default-configs-probe"

_SYNONYM = obj({"name": STRING, "source": STRING}, {"value": nullable(STRING)})
_CONFIG_FIELDS: dict[str, Schema] = {
    "name": STRING,
    "value": nullable(STRING),
    "is_default": BOOLEAN,
    "is_read_only": BOOLEAN,
    "is_sensitive": BOOLEAN,
    "source": STRING,
    "synonyms": array(_SYNONYM),
}
_NEW_VALUE = part.schema("ConfigValue", obj({}, {"value": nullable(STRING)}, is_closed=True))
_CHANGES = part.schema(
    "ConfigChanges",
    obj(
        {
            "data": array(
                obj(
                    {"name": STRING},
                    {"value": nullable(STRING), "operation": nullable({"enum": ["SET", "DELETE"]})},
                    is_closed=True,
                )
            )
        },
        {"validate_only": nullable(BOOLEAN)},
        is_closed=True,
    ),
)


@dataclass(frozen=True)
class _Scope:
    noun: str
    kind: str
    path: str
    resource: ResourceType
    # Of a request: the resource's name for Kafka, and where it is below its cluster.
    named: Callable[[Request], tuple[str, tuple[str | int, ...]]]
    fields: Callable[[str], Fields]
    schema: dict[str, Schema]
    # Whether the list has every setting there is, so that a name that is not in it does not exist.
    is_complete: bool = True


def _topic_named(request: Request) -> tuple[str, tuple[str | int, ...]]:
    name: str = request.path_params["topic_name"]
    if not re.fullmatch(TOPIC_PATTERN, name):
        raise unknown_topic(name)
    return name, ("topics", name, "configs")


def _broker_named(request: Request) -> tuple[str, tuple[str | int, ...]]:
    broker_id = path_integer(request, "broker_id")
    if broker_id < 0:
        raise unknown_broker(broker_id)
    return str(broker_id), ("brokers", broker_id, "configs")


def _cluster_named(_request: Request) -> tuple[str, tuple[str | int, ...]]:
    return "", ("broker-configs",)


_TOPIC = _Scope(
    "topic",
    "KafkaTopicConfig",
    _CLUSTER_PATH + "/topics/{topic_name}/configs",
    ResourceType.TOPIC,
    _topic_named,
    lambda name: {"topic_name": name},
    {"topic_name": STRING},
)
_BROKER = _Scope(
    "broker",
    "KafkaBrokerConfig",
    _CLUSTER_PATH + "/brokers/{broker_id}/configs",
    ResourceType.BROKER,
    _broker_named,
    lambda name: {"broker_id": int(name)},
    {"broker_id": INTEGER},
)
_CLUSTER = _Scope(
    "cluster",
    "KafkaClusterConfig",
    _CLUSTER_PATH + "/broker-configs",
    ResourceType.BROKER,
    _cluster_named,
    lambda _: {"config_type": "BROKER"},
    {"config_type": STRING},
    is_complete=False,
)


def _declare(scope: _Scope) -> None:
    schema = part.schema(
        f"{scope.noun.capitalize()}Config", resource_schema(scope.kind, {**scope.schema, **_CONFIG_FIELDS})
    )
    list_schema = part.schema(
        f"{scope.noun.capitalize()}ConfigList", collection_schema(f"{scope.kind}List", schema)
    )
    noun = "all brokers" if scope is _CLUSTER else f"a {scope.noun}"

    @part.get(
        scope.path,
        f"List the configurations of {noun}",
        answer=list_schema,
        errors=(404,),
    )
    async def list_configs(request: Request) -> Response:
        cluster = await cluster_of(request)
        resource, path = scope.named(request)
        found = await _describe(cluster, scope, resource)
        return cluster.collection(
            f"{scope.kind}List", path, (_fields(cluster, scope, resource, path, each) for each in found)
        )

    @part.get(
        scope.path + "/{name}",
        f"Get a configuration of {noun}",
        answer=schema,
        errors=(404,),
    )
    async def get_config(request: Request) -> Response:
        cluster = await cluster_of(request)
        resource, path = scope.named(request)
        name: str = request.path_params["name"]
        for each in await _describe(cluster, scope, resource):
            if each.name == name:
                return json_answer(_fields(cluster, scope, resource, path, each))
        raise _unknown_config(name)

    @part.put(
        scope.path + "/{name}",
        f"Set a configuration of {noun}",
        body=_NEW_VALUE,
        errors=(404,),
    )
    async def set_config(request: Request) -> Response:
        document = await read_json_object(request)
        only(document, {"value"})
        value = document.get("value")
        return await _change(request, scope, None if value is None else text(value, "value"))

    @part.delete(
        scope.path + "/{name}",
        f"Reset a configuration of {noun} to its default",
        errors=(400, 404),
    )
    async def reset_config(request: Request) -> Response:
        return await _change(request, scope, None)

    @part.post(
        scope.path + ":alter",
        f"Change several configurations of {noun}, all or none",
        body=_CHANGES,
        errors=(404,),
    )
    async def alter_configs(request: Request) -> Response:
        cluster = await cluster_of(request)
        resource, _ = scope.named(request)
        document = await read_json_object(request)
        only(document, {"data", "validate_only"})
        changes = _changes(document)
        await _alter(cluster, scope, resource, changes, optional_boolean(document, "validate_only"))
        return Response(status_code=204)


async def _describe(
    cluster: ClusterLinks, scope: _Scope, resource: str
) -> list[DescribeConfigsResourceResult]:
    def call(admins: Admins) -> list[DescribeConfigsResourceResult]:
        return admins.admin.describe_configs(scope.resource, resource, include_synonyms=True)

    return sorted(await cluster.backend.ask(call), key=lambda each: each.name)


async def _change(request: Request, scope: _Scope, value: str | None) -> Response:
    cluster = await cluster_of(request)
    resource, _ = scope.named(request)
    name: str = request.path_params["name"]
    if scope.is_complete and all(each.name != name for each in await _describe(cluster, scope, resource)):
        raise _unknown_config(name)
    await _alter(cluster, scope, resource, {name: value}, False)
    return Response(status_code=204)


async def _alter(
    cluster: ClusterLinks, scope: _Scope, resource: str, changes: dict[str, str | None], validate_only: bool
) -> None:
    await cluster.backend.ask(
        lambda admins: admins.admin.alter_configs(
            scope.resource, resource, changes=changes, validate_only=validate_only
        )
    )


def _changes(document: dict[str, Any]) -> dict[str, str | None]:
    changes: dict[str, str | None] = {}
    for index, each in enumerate(objects(member(document, "data", list), "data")):
        where = f"data[{index}]"
        only(each, {"name", "value", "operation"}, where)
        name = member(each, "name", str, where)
        operation = "SET" if each.get("operation") is None else each["operation"]
        if operation not in ("SET", "DELETE"):
            raise invalid(f"{where}.operation should be SET or DELETE, not {operation!r}")
        if name in changes:
            raise Problem(400, 40002, f"data names {name} twice")
        value = each.get("value")
        is_set = operation == "SET" and value is not None
        changes[name] = text(value, f"{where}.value") if is_set else None
    return changes


def _fields(
    cluster: ClusterLinks,
    scope: _Scope,
    resource: str,
    path: tuple[str | int, ...],
    config: DescribeConfigsResourceResult,
) -> Fields:
    owner = {"topic": f"/topic={resource}", "broker": f"/broker={resource}", "cluster": "/broker-config"}[
        scope.noun
    ]
    name = f"{owner}={config.name}" if scope is _CLUSTER else f"{owner}/config={config.name}"
    return cluster.resource(
        scope.kind,
        (*path, config.name),
        name,
        {
            **scope.fields(resource),
            "name": config.name,
            "value": config.value,
            "is_default": config.config_source == _DEFAULT_SOURCE,
            "is_read_only": config.read_only,
            "is_sensitive": config.is_sensitive,
            "source": _source(config.config_source),
            "synonyms": [
                {"name": each.name, "value": each.value, "source": _source(each.source)}
                for each in config.synonyms
            ],
        },
    )


def _source(number: int) -> str:
    return _SOURCES.get(number, "UNKNOWN")


def _unknown_config(name: str) -> Problem:
    return Problem(404, 404, f"there is no configuration {name} here")


for _scope in (_TOPIC, _BROKER, _CLUSTER):
    _declare(_scope)


# --- what a new topic would have ---


@part.get(
    _CLUSTER_PATH + "/topics/{topic_name}/default-configs",
    "List the configurations that the topic would have if it were created now",
    answer=collection_schema("KafkaTopicConfigList", {"$ref": "#/components/schemas/TopicConfig"}),
    errors=(400, 404),
)
async def list_default_configs(request: Request) -> Response:
    cluster = await cluster_of(request)
    name: str = request.path_params["topic_name"]

    def call(admins: Admins) -> CreatableTopicResult:
        try:
            return admins.admin.create_topic(name, validate_only=True)
        except ApiError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        return admins.admin.create_topic(_PROBE, validate_only=True)

    found = await cluster.backend.ask(call)
    path = ("topics", name, "default-configs")
    configs = [
        DescribeConfigsResourceResult(
            name=each.name,
            value=each.value,
            read_only=each.read_only,
            config_source=each.config_source,
            is_sensitive=each.is_sensitive,
        )
        for each in sorted(found.configs or [], key=lambda each: each.name)
    ]
    return cluster.collection(
        "KafkaTopicConfigList", path, (_fields(cluster, _TOPIC, name, path, each) for each in configs)
    )


routes = part.routes
