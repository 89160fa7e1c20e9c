"""Serves ACLs, client quotas and SCRAM credentials.

Describe requests read the metadata image; the controller decides about changes. Without an authorizer the APIs of ACLs
return SECURITY_DISABLED, as in Kafka.

Versions, and what each one changed:

    DescribeAcls (29), from 1 (KIP-290)
       2  flexible (KIP-482)
       3  resources of type user (KIP-373)
    CreateAcls (30), from 1 (KIP-290)
       2  flexible (KIP-482)
       3  resources of type user (KIP-373)
    DeleteAcls (31), from 1 (KIP-290)
       2  flexible (KIP-482)
       3  resources of type user (KIP-373)
    DescribeClientQuotas (48), from 0 (KIP-546)
       1  flexible (KIP-482)
    AlterClientQuotas (49), from 0 (KIP-546)
       1  flexible (KIP-482)
    DescribeUserScramCredentials (50), from 0 (KIP-554)
    AlterUserScramCredentials (51), from 0 (KIP-554)
"""

from __future__ import annotations

from collections import Counter

from tidemill.broker.requests.api_table import Scope, serves
from tidemill.broker.requests.calls import Call
from tidemill.broker.requests.context import Broker
from tidemill.broker.requests.handlers.controller import ask_controller
from tidemill.broker.requests.pieces import Entries
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol import api as apis
from tidemill.protocol.api.admin import (
    AlterClientQuotasRequest,
    DescribeClientQuotasEntryData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    ValueData,
)
from tidemill.protocol.api.security import (
    AclDescription,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CreateAclsRequest,
    CredentialInfo,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from tidemill.protocol.error_responses import error_response
from tidemill.protocol.schema import Request, Response
from tidemill.security.acls import AclFilter, check_filter
from tidemill.security.quotas import QuotaEntity
from tidemill.security.scram import MECHANISMS

_USER, _CLIENT_ID, _IP = "user", "client-id", "ip"
_EXACT, _DEFAULT, _SPECIFIED = 0, 1, 2


@serves(DescribeAclsRequest, scope=Scope.BOTH)
def describe_acls(broker: Broker, call: Call, request: DescribeAclsRequest) -> DescribeAclsResponse:
    _check_authorizer(broker)
    wanted = AclFilter(
        request.resource_type_filter,
        request.resource_name_filter,
        request.pattern_type_filter,
        request.principal_filter,
        request.host_filter,
        request.operation,
        request.permission_type,
    )
    check_filter(wanted)
    resources: dict[tuple[int, str, int], DescribeAclsResource] = {}
    for binding in broker.image.security.acls.values():
        if wanted.matches(binding):
            key = (binding.resource_type, binding.resource_name, binding.pattern_type)
            resource = resources.setdefault(
                key, DescribeAclsResource(resource_type=key[0], resource_name=key[1], pattern_type=key[2])
            )
            resource.acls.append(
                AclDescription(
                    principal=binding.principal,
                    host=binding.host,
                    operation=binding.operation,
                    permission_type=binding.permission,
                )
            )
    return DescribeAclsResponse(resources=list(resources.values()))


@serves(CreateAclsRequest, scope=Scope.BOTH)
@serves(DeleteAclsRequest, scope=Scope.BOTH)
async def alter_acls(broker: Broker, call: Call, request: Request) -> Response:
    try:
        _check_authorizer(broker)
    except ApiError as error:
        refused = error_response(request, call.version, error.code, error.message)
        # A request that names nothing gets an answer about nothing.
        return refused if refused is not None else apis.RESPONSES[request.api_key]()
    return await ask_controller(broker, call, request)


def _check_authorizer(broker: Broker) -> None:
    """Rules that nothing enforces are not kept: an answer would read as if they were in force."""
    if broker.authorizer is None:
        raise ApiError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")


@serves(AlterUserScramCredentialsRequest, scope=Scope.BOTH)
async def alter_user_scram_credentials(
    broker: Broker, call: Call, request: AlterUserScramCredentialsRequest
) -> Response:
    response = await ask_controller(broker, call, request)
    assert isinstance(response, AlterUserScramCredentialsResponse)
    overridden = _own_users(broker) & {each.name for each in request.upsertions}
    for result in response.results:
        if not result.error_code and result.user in overridden:
            result.error_message = (
                f"node {broker.config.node_id} has a login of this name in its own sasl.jaas.config, which counts before "
                "the credential that was stored"
            )
    return response


def _own_users(broker: Broker) -> set[str]:
    """SCRAM users that this node knows from its own configuration."""
    return {
        login.username
        for listener in broker.config.security.listeners.values()
        if listener.sasl is not None
        for mechanism, login in listener.sasl.own_logins.items()
        if mechanism in MECHANISMS
    }


@serves(
    AlterClientQuotasRequest,
    scope=Scope.BOTH,
    entries=Entries(
        "entries",
        "entries",
        key=lambda each: tuple((part.entity_type, part.entity_name) for part in each.entity),
        piece_size=128,
    ),
)
async def alter(broker: Broker, call: Call, request: Request) -> Response:
    return await ask_controller(broker, call, request)


@serves(DescribeClientQuotasRequest)
def describe_client_quotas(
    broker: Broker, call: Call, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    try:
        check_quota_filter(request)
    except ApiError as error:
        return DescribeClientQuotasResponse(error_code=error.code, error_message=error.message, entries=None)
    return DescribeClientQuotasResponse(
        error_message="",  # not null, as Kafka
        entries=[
            DescribeClientQuotasEntryData(
                entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity.parts],
                values=[ValueData(key=key, value=value) for key, value in values.items()],
            )
            for entity, values in broker.image.security.client_quotas.items()
            if _is_wanted(request, entity)
        ],
    )


def _is_wanted(request: DescribeClientQuotasRequest, entity: QuotaEntity) -> bool:
    """Every component has to match; a strict request wants no other types in the entity."""
    parts = dict(entity.parts)
    if request.strict and len(parts) != len(request.components):
        return False
    for component in request.components:
        if component.entity_type not in parts:
            return False
        name = parts[component.entity_type]
        if component.match_type != _SPECIFIED and name != component.match:
            return False
    return True


def check_quota_filter(request: DescribeClientQuotasRequest) -> None:
    seen: set[str] = set()
    for component in request.components:
        kind = component.entity_type
        if kind in seen:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Duplicate filter component entity type: {kind}")
        if not kind:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Unexpected empty filter component entity type")
        if kind not in (_USER, _CLIENT_ID, _IP):
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"Custom entity type '{kind}' not supported")
        if component.match_type not in (_EXACT, _DEFAULT, _SPECIFIED):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unexpected match type {component.match_type}")
        has_match = component.match is not None
        if has_match != (component.match_type == _EXACT):
            problem = "is needed for an exact match" if not has_match else "has no meaning here"
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Request: the match of entity type {kind} {problem}")
        seen.add(kind)
    if _IP in seen and len(seen) > 1:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "Invalid entity filter component combination: ip stands alone, without user or client-id",
        )


@serves(DescribeUserScramCredentialsRequest)
def describe_user_scram_credentials(
    broker: Broker, call: Call, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    """Without names, all users are asked for. Salts and keys are never shown."""
    infos: dict[str, list[CredentialInfo]] = {}
    for (user, mechanism), kept in sorted(broker.image.security.scram_credentials.items()):
        infos.setdefault(user, []).append(CredentialInfo(mechanism=mechanism, iterations=kept.iterations))
    counts = Counter(user.name for user in request.users or ()) or dict.fromkeys(infos, 1)
    response = DescribeUserScramCredentialsResponse(error_message="")  # not null, as Kafka
    for name, count in counts.items():
        result = DescribeUserScramCredentialsResult(user=name)
        if count > 1:
            refused = ApiError(
                ErrorCode.DUPLICATE_RESOURCE,
                f"Cannot describe SCRAM credentials for the same user twice: {name}",
            )
            result.error_code, result.error_message = refused.code, refused.message
        elif name not in infos:
            refused = ApiError(
                ErrorCode.RESOURCE_NOT_FOUND,
                f"Attempt to describe a user credential that does not exist: {name}",
            )
            result.error_code, result.error_message = refused.code, refused.message
        else:
            result.credential_infos = infos[name]
        response.results.append(result)
    return response
