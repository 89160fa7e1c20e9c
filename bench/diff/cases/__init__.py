"""The scripts. Importing this package registers every one of them, in the order in which they run.

A new family of APIs (groups, transactions, quotas…) is a new module here, named below.
"""

from bench.diff.cases import (  # noqa: F401
    broker_configs,
    cluster,
    configs,
    fetch,
    groups,
    groups_configs,
    groups_consumer,
    groups_lives,
    groups_membership,
    metadata,
    offsets,
    offsets_committed,
    plain,
    produce,
    producers,
    share,
    share_groups,
    share_state,
    topics,
    transactions_adding,
    transactions_admin,
    transactions_ends,
    transactions_ids,
    transactions_lives,
    transactions_log,
    transactions_markers,
    transactions_offsets,
    transactions_two_phase,
    versions,
)
