"""Passes the requests of other brokers to the share coordinator. Principals need ClusterAction for them.

Versions, and what each one changed:

    InitializeShareGroupState (83), from 0 (KIP-932)
    ReadShareGroupState (84), from 0 (KIP-932)
    WriteShareGroupState (85), from 0 (KIP-932)
       1  the count of records that are complete, for the lag (KIP-1226)
    DeleteShareGroupState (86), from 0 (KIP-932)
    ReadShareGroupStateSummary (87), from 0 (KIP-932)
       1  the count of records that are complete (KIP-1226)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.broker.requests.dispatch import Call, serves
from tidemill.protocol.api.share_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
)

if TYPE_CHECKING:
    from tidemill.broker.requests.context import Broker


@serves(InitializeShareGroupStateRequest, independent_since=0)
async def initialize_share_group_state(
    broker: Broker, _call: Call, request: InitializeShareGroupStateRequest
) -> InitializeShareGroupStateResponse:
    return await broker.share_coordinators.initialize(request)


@serves(ReadShareGroupStateRequest, independent_since=0)
async def read_share_group_state(
    broker: Broker, _call: Call, request: ReadShareGroupStateRequest
) -> ReadShareGroupStateResponse:
    return await broker.share_coordinators.read(request)


@serves(WriteShareGroupStateRequest, independent_since=0)
async def write_share_group_state(
    broker: Broker, _call: Call, request: WriteShareGroupStateRequest
) -> WriteShareGroupStateResponse:
    return await broker.share_coordinators.write(request)


@serves(DeleteShareGroupStateRequest, independent_since=0)
async def delete_share_group_state(
    broker: Broker, _call: Call, request: DeleteShareGroupStateRequest
) -> DeleteShareGroupStateResponse:
    return await broker.share_coordinators.delete(request)


@serves(ReadShareGroupStateSummaryRequest, independent_since=0)
async def read_share_group_state_summary(
    broker: Broker, _call: Call, request: ReadShareGroupStateSummaryRequest
) -> ReadShareGroupStateSummaryResponse:
    return await broker.share_coordinators.read_summary(request)
