"""The check that a transaction coordinator's state equals its log.

The partition is replayed into a second machine and compared with the one that serves. Once a world is quiet they must
be equal, so that a new coordinator finds every decision.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.broker.coordinators.transactions import TransactionCoordinators
from tidemill.protocol.records import iterate_records
from tidemill.sim.cluster import Machine


def differences(machine: Machine) -> Iterator[str]:
    hosts: TransactionCoordinators | None = machine.node.broker.transactions if machine.node else None
    if hosts is None:
        return
    for index, hosted in hosts._shards.items():
        log = hosted._partition.log
        if log is None or not hosted.is_active:
            continue
        rebuilt = hosts._machine(index, hosted.leader_epoch)
        for segment in log.segments:
            for _, header, batch in segment.batches():
                for raw in iterate_records(batch, header):
                    record = rebuilt.decode(raw.key or b"", raw.value)
                    if record is not None:
                        rebuilt.replay(record)
        rebuilt.check_invariants()
        live, found = hosted.machine.transactions, rebuilt.transactions
        for transactional_id in sorted({*live, *found}):
            if live.get(transactional_id) != found.get(transactional_id):
                yield (
                    f"{machine.host} knows {live.get(transactional_id)} of {transactional_id}, its log says "
                    f"{found.get(transactional_id)}"
                )
