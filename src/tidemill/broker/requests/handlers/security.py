"""Answers ACL, quota and SCRAM requests as a Kafka without an authorizer, quotas and SCRAM users does.

Setting quotas and SCRAM users is not served.

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
    DescribeUserScramCredentials (50), from 0 (KIP-554)
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tidemill.broker.requests.dispatch import Call, Scope, serves
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol import api as apis
from tidemill.protocol.api.admin import DescribeClientQuotasRequest, DescribeClientQuotasResponse
from tidemill.protocol.api.security import (
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from tidemill.protocol.error_responses import error_response
from tidemill.protocol.schema import Request, Response

if TYPE_CHECKING:
    from tidemill.broker.requests.context import Broker

_USER, _CLIENT_ID, _IP = "user", "client-id", "ip"
_EXACT, _DEFAULT, _SPECIFIED = 0, 1, 2


@serves(DescribeAclsRequest, scope=Scope.BOTH)
@serves(CreateAclsRequest, scope=Scope.BOTH, gaps=["There is no authorizer: SECURITY_DISABLED."])
@serves(DeleteAclsRequest, scope=Scope.BOTH, gaps=["There is no authorizer: SECURITY_DISABLED."])
def acls(broker: Broker, call: Call, request: Request) -> Response:
    """Each entry is refused: an answer without entries would read as if a rule were in force."""
    code = ErrorCode.SECURITY_DISABLED
    refused = error_response(request, call.version, code, "No Authorizer is configured.")
    # A request that names nothing gets an answer about nothing.
    return refused if refused is not None else apis.RESPONSES[request.api_key]()


@serves(DescribeClientQuotasRequest)
def describe_client_quotas(
    broker: Broker, call: Call, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    try:
        check_quota_filter(request)
    except ApiError as error:
        return DescribeClientQuotasResponse(error_code=error.code, error_message=error.message, entries=None)
    return DescribeClientQuotasResponse(error_message="")  # not null, as Kafka


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
    """No user has credentials; without names, all users are asked for."""
    counts = Counter(user.name for user in request.users or ())
    response = DescribeUserScramCredentialsResponse(error_message="")  # not null, as Kafka
    for name, count in counts.items():
        code = ErrorCode.RESOURCE_NOT_FOUND if count == 1 else ErrorCode.DUPLICATE_RESOURCE
        told = (
            f"Attempt to describe a user credential that does not exist: {name}"
            if count == 1
            else f"Cannot describe SCRAM credentials for the same user twice: {name}"
        )
        response.results.append(
            DescribeUserScramCredentialsResult(user=name, error_code=code, error_message=told)
        )
    return response
