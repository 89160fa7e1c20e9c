"""Authentication and authorization: SASL, ACLs, SCRAM credentials, delegation tokens."""

from __future__ import annotations

from typing import Annotated

from tidemill.protocol.schema import (
    Bytes,
    Int8,
    Int16,
    Int32,
    Int64,
    Request,
    Response,
    Since,
    String,
    Struct,
    field,
)


class SaslHandshakeRequest(Request, api_key=17, versions=(0, 1)):
    mechanism: String = ""


class SaslHandshakeResponse(Response, api_key=17, versions=(0, 1)):
    error_code: Int16 = 0
    mechanisms: list[String] = field(default_factory=list)


class SaslAuthenticateRequest(Request, api_key=36, versions=(0, 2), flexible=2):
    auth_bytes: Bytes = b""


class SaslAuthenticateResponse(Response, api_key=36, versions=(0, 2), flexible=2):
    error_code: Int16 = 0
    error_message: String | None = None
    auth_bytes: Bytes = b""
    session_lifetime_ms: Annotated[Int64, Since(1)] = 0


class DescribeAclsRequest(Request, api_key=29, versions=(1, 3), flexible=2):
    resource_type_filter: Int8 = 0
    resource_name_filter: String | None = None
    pattern_type_filter: Int8 = 3
    principal_filter: String | None = None
    host_filter: String | None = None
    operation: Int8 = 0
    permission_type: Int8 = 0


class AclDescription(Struct):
    principal: String = ""
    host: String = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class DescribeAclsResource(Struct):
    resource_type: Int8 = 0
    resource_name: String = ""
    pattern_type: Int8 = 3
    acls: list[AclDescription] = field(default_factory=list)


class DescribeAclsResponse(Response, api_key=29, versions=(1, 3), flexible=2):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    resources: list[DescribeAclsResource] = field(default_factory=list)


class AclCreation(Struct):
    resource_type: Int8 = 0
    resource_name: String = ""
    resource_pattern_type: Int8 = 3
    principal: String = ""
    host: String = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class CreateAclsRequest(Request, api_key=30, versions=(1, 3), flexible=2):
    creations: list[AclCreation] = field(default_factory=list)


class AclCreationResult(Struct):
    error_code: Int16 = 0
    error_message: String | None = None


class CreateAclsResponse(Response, api_key=30, versions=(1, 3), flexible=2):
    throttle_time_ms: Int32 = 0
    results: list[AclCreationResult] = field(default_factory=list)


class DeleteAclsFilter(Struct):
    resource_type_filter: Int8 = 0
    resource_name_filter: String | None = None
    pattern_type_filter: Int8 = 3
    principal_filter: String | None = None
    host_filter: String | None = None
    operation: Int8 = 0
    permission_type: Int8 = 0


class DeleteAclsRequest(Request, api_key=31, versions=(1, 3), flexible=2):
    filters: list[DeleteAclsFilter] = field(default_factory=list)


class DeleteAclsMatchingAcl(Struct):
    error_code: Int16 = 0
    error_message: String | None = None
    resource_type: Int8 = 0
    resource_name: String = ""
    pattern_type: Int8 = 3
    principal: String = ""
    host: String = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class DeleteAclsFilterResult(Struct):
    error_code: Int16 = 0
    error_message: String | None = None
    matching_acls: list[DeleteAclsMatchingAcl] = field(default_factory=list)


class DeleteAclsResponse(Response, api_key=31, versions=(1, 3), flexible=2):
    throttle_time_ms: Int32 = 0
    filter_results: list[DeleteAclsFilterResult] = field(default_factory=list)


class UserName(Struct):
    name: String = ""


class DescribeUserScramCredentialsRequest(Request, api_key=50, versions=(0, 0), flexible=0):
    users: list[UserName] | None = field(default_factory=list)


class CredentialInfo(Struct):
    mechanism: Int8 = 0
    iterations: Int32 = 0


class DescribeUserScramCredentialsResult(Struct):
    user: String = ""
    error_code: Int16 = 0
    error_message: String | None = None
    credential_infos: list[CredentialInfo] = field(default_factory=list)


class DescribeUserScramCredentialsResponse(Response, api_key=50, versions=(0, 0), flexible=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    results: list[DescribeUserScramCredentialsResult] = field(default_factory=list)


class ScramCredentialDeletion(Struct):
    name: String = ""
    mechanism: Int8 = 0


class ScramCredentialUpsertion(Struct):
    name: String = ""
    mechanism: Int8 = 0
    iterations: Int32 = 0
    salt: Bytes = b""
    salted_password: Bytes = b""


class AlterUserScramCredentialsRequest(Request, api_key=51, versions=(0, 0), flexible=0):
    deletions: list[ScramCredentialDeletion] = field(default_factory=list)
    upsertions: list[ScramCredentialUpsertion] = field(default_factory=list)


class AlterUserScramCredentialsResult(Struct):
    user: String = ""
    error_code: Int16 = 0
    error_message: String | None = None


class AlterUserScramCredentialsResponse(Response, api_key=51, versions=(0, 0), flexible=0):
    throttle_time_ms: Int32 = 0
    results: list[AlterUserScramCredentialsResult] = field(default_factory=list)


class CreatableRenewers(Struct):
    principal_type: String = ""
    principal_name: String = ""


class CreateDelegationTokenRequest(Request, api_key=38, versions=(1, 3), flexible=2):
    owner_principal_type: Annotated[String | None, Since(3)] = None
    owner_principal_name: Annotated[String | None, Since(3)] = None
    renewers: list[CreatableRenewers] = field(default_factory=list)
    max_lifetime_ms: Int64 = 0


class CreateDelegationTokenResponse(Response, api_key=38, versions=(1, 3), flexible=2):
    error_code: Int16 = 0
    principal_type: String = ""
    principal_name: String = ""
    token_requester_principal_type: Annotated[String, Since(3)] = ""
    token_requester_principal_name: Annotated[String, Since(3)] = ""
    issue_timestamp_ms: Int64 = 0
    expiry_timestamp_ms: Int64 = 0
    max_timestamp_ms: Int64 = 0
    token_id: String = ""
    hmac: Bytes = b""
    throttle_time_ms: Int32 = 0


class RenewDelegationTokenRequest(Request, api_key=39, versions=(1, 2), flexible=2):
    hmac: Bytes = b""
    renew_period_ms: Int64 = 0


class RenewDelegationTokenResponse(Response, api_key=39, versions=(1, 2), flexible=2):
    error_code: Int16 = 0
    expiry_timestamp_ms: Int64 = 0
    throttle_time_ms: Int32 = 0


class ExpireDelegationTokenRequest(Request, api_key=40, versions=(1, 2), flexible=2):
    hmac: Bytes = b""
    expiry_time_period_ms: Int64 = 0


class ExpireDelegationTokenResponse(Response, api_key=40, versions=(1, 2), flexible=2):
    error_code: Int16 = 0
    expiry_timestamp_ms: Int64 = 0
    throttle_time_ms: Int32 = 0


class DescribeDelegationTokenOwner(Struct):
    principal_type: String = ""
    principal_name: String = ""


class DescribeDelegationTokenRequest(Request, api_key=41, versions=(1, 3), flexible=2):
    owners: list[DescribeDelegationTokenOwner] | None = field(default_factory=list)


class DescribedDelegationTokenRenewer(Struct):
    principal_type: String = ""
    principal_name: String = ""


class DescribedDelegationToken(Struct):
    principal_type: String = ""
    principal_name: String = ""
    token_requester_principal_type: Annotated[String, Since(3)] = ""
    token_requester_principal_name: Annotated[String, Since(3)] = ""
    issue_timestamp: Int64 = 0
    expiry_timestamp: Int64 = 0
    max_timestamp: Int64 = 0
    token_id: String = ""
    hmac: Bytes = b""
    renewers: list[DescribedDelegationTokenRenewer] = field(default_factory=list)


class DescribeDelegationTokenResponse(Response, api_key=41, versions=(1, 3), flexible=2):
    error_code: Int16 = 0
    tokens: list[DescribedDelegationToken] = field(default_factory=list)
    throttle_time_ms: Int32 = 0
