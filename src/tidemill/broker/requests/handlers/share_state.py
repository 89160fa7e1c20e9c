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

from tidemill.broker.requests.api_table import serves
from tidemill.broker.requests.calls import Call
from tidemill.broker.requests.context import Broker
from tidemill.protocol.api.share_state import (
    DeleteShareGroupStateRequest,
    InitializeShareGroupStateRequest,
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    WriteShareGroupStateRequest,
)
from tidemill.protocol.schema import Request, Response


@serves(InitializeShareGroupStateRequest, independent_since=0)
@serves(ReadShareGroupStateRequest, independent_since=0)
@serves(WriteShareGroupStateRequest, independent_since=0)
@serves(DeleteShareGroupStateRequest, independent_since=0)
@serves(ReadShareGroupStateSummaryRequest, independent_since=0)
async def serve_share_group_state(broker: Broker, _call: Call, request: Request) -> Response:
    return await broker.share_coordinators.serve(request)
