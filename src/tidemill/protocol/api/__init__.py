"""Every API of the protocol by its key, and the modules that declare their messages.

The table is all that is loaded at first. `REQUESTS` and `RESPONSES` import a module when one of its
messages is asked for, so a broker loads what its clients use.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeVar

from tidemill.protocol.schema import Message, Request, Response

MessageT = TypeVar("MessageT", bound=Message)


class Api(NamedTuple):
    name: str
    module: str
    # The first version with flexible headers and bodies, so that a header parses without the module.
    flexible_since: int | None


APIS: dict[int, Api] = {
    0: Api("Produce", "data", 9),
    1: Api("Fetch", "data", 12),
    2: Api("ListOffsets", "data", 6),
    3: Api("Metadata", "cluster", 9),
    8: Api("OffsetCommit", "offsets", 8),
    9: Api("OffsetFetch", "offsets", 6),
    10: Api("FindCoordinator", "cluster", 3),
    11: Api("JoinGroup", "groups", 6),
    12: Api("Heartbeat", "groups", 4),
    13: Api("LeaveGroup", "groups", 4),
    14: Api("SyncGroup", "groups", 4),
    15: Api("DescribeGroups", "groups", 5),
    16: Api("ListGroups", "groups", 3),
    17: Api("SaslHandshake", "security", None),
    18: Api("ApiVersions", "cluster", 3),
    19: Api("CreateTopics", "admin", 5),
    20: Api("DeleteTopics", "admin", 4),
    21: Api("DeleteRecords", "data", 2),
    22: Api("InitProducerId", "transactions", 2),
    23: Api("OffsetForLeaderEpoch", "data", 4),
    24: Api("AddPartitionsToTxn", "transactions", 3),
    25: Api("AddOffsetsToTxn", "transactions", 3),
    26: Api("EndTxn", "transactions", 3),
    27: Api("WriteTxnMarkers", "transactions", 1),
    28: Api("TxnOffsetCommit", "transactions", 3),
    29: Api("DescribeAcls", "security", 2),
    30: Api("CreateAcls", "security", 2),
    31: Api("DeleteAcls", "security", 2),
    32: Api("DescribeConfigs", "admin", 4),
    33: Api("AlterConfigs", "admin", 2),
    34: Api("AlterReplicaLogDirs", "replicas", 2),
    35: Api("DescribeLogDirs", "replicas", 2),
    36: Api("SaslAuthenticate", "security", 2),
    37: Api("CreatePartitions", "admin", 2),
    38: Api("CreateDelegationToken", "security", 2),
    39: Api("RenewDelegationToken", "security", 2),
    40: Api("ExpireDelegationToken", "security", 2),
    41: Api("DescribeDelegationToken", "security", 2),
    42: Api("DeleteGroups", "groups", 2),
    43: Api("ElectLeaders", "replicas", 2),
    44: Api("IncrementalAlterConfigs", "admin", 1),
    45: Api("AlterPartitionReassignments", "replicas", 0),
    46: Api("ListPartitionReassignments", "replicas", 0),
    47: Api("OffsetDelete", "offsets", None),
    48: Api("DescribeClientQuotas", "admin", 1),
    49: Api("AlterClientQuotas", "admin", 1),
    50: Api("DescribeUserScramCredentials", "security", 0),
    51: Api("AlterUserScramCredentials", "security", 0),
    52: Api("Vote", "quorum", 0),
    53: Api("BeginQuorumEpoch", "quorum", 1),
    54: Api("EndQuorumEpoch", "quorum", 1),
    55: Api("DescribeQuorum", "quorum", 0),
    56: Api("AlterPartition", "brokers", 0),
    57: Api("UpdateFeatures", "admin", 0),
    58: Api("Envelope", "brokers", 0),
    59: Api("FetchSnapshot", "quorum", 0),
    60: Api("DescribeCluster", "cluster", 0),
    61: Api("DescribeProducers", "transactions", 0),
    62: Api("BrokerRegistration", "brokers", 0),
    63: Api("BrokerHeartbeat", "brokers", 0),
    64: Api("UnregisterBroker", "replicas", 0),
    65: Api("DescribeTransactions", "transactions", 0),
    66: Api("ListTransactions", "transactions", 0),
    67: Api("AllocateProducerIds", "brokers", 0),
    68: Api("ConsumerGroupHeartbeat", "groups", 0),
    69: Api("ConsumerGroupDescribe", "groups", 0),
    70: Api("ControllerRegistration", "brokers", 0),
    71: Api("GetTelemetrySubscriptions", "telemetry", 0),
    72: Api("PushTelemetry", "telemetry", 0),
    73: Api("AssignReplicasToDirs", "brokers", 0),
    74: Api("ListConfigResources", "admin", 0),
    75: Api("DescribeTopicPartitions", "cluster", 0),
    76: Api("ShareGroupHeartbeat", "share", 0),
    77: Api("ShareGroupDescribe", "share", 0),
    78: Api("ShareFetch", "share", 0),
    79: Api("ShareAcknowledge", "share", 0),
    80: Api("AddRaftVoter", "quorum", 0),
    81: Api("RemoveRaftVoter", "quorum", 0),
    82: Api("UpdateRaftVoter", "quorum", 0),
    83: Api("InitializeShareGroupState", "share_state", 0),
    84: Api("ReadShareGroupState", "share_state", 0),
    85: Api("WriteShareGroupState", "share_state", 0),
    86: Api("DeleteShareGroupState", "share_state", 0),
    87: Api("ReadShareGroupStateSummary", "share_state", 0),
    88: Api("StreamsGroupHeartbeat", "streams", 0),
    89: Api("StreamsGroupDescribe", "streams", 0),
    90: Api("DescribeShareGroupOffsets", "share", 0),
    91: Api("AlterShareGroupOffsets", "share", 0),
    92: Api("DeleteShareGroupOffsets", "share", 0),
    93: Api("StreamsGroupTopologyDescriptionUpdate", "streams", 0),
    94: Api("UnregisterController", "brokers", 0),
}

API_NAMES: dict[int, str] = {key: api.name for key, api in APIS.items()}


class _LazyMessages(Mapping[int, type[MessageT]]):
    """API key → message class, importing on first use."""

    def __init__(self, suffix: str) -> None:
        self._suffix = suffix
        self._loaded: dict[int, type[MessageT]] = {}

    def __getitem__(self, api_key: int) -> type[MessageT]:
        loaded = self._loaded.get(api_key)
        if loaded is None:
            api = APIS[api_key]
            module = importlib.import_module(f"{__name__}.{api.module}")
            loaded = self._loaded[api_key] = getattr(module, api.name + self._suffix)
        return loaded

    def __contains__(self, api_key: object) -> bool:
        return api_key in APIS

    def __iter__(self) -> Iterator[int]:
        return iter(APIS)

    def __len__(self) -> int:
        return len(APIS)


REQUESTS: Mapping[int, type[Request]] = _LazyMessages[Request]("Request")
RESPONSES: Mapping[int, type[Response]] = _LazyMessages[Response]("Response")
