"""The check that the state of the transaction and share coordinators equals their logs.

The partition is replayed into a second machine and compared with the one that serves. Once a world is quiet they must
be equal, so that a new coordinator finds every decision.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.broker.coordinators.transactions import TransactionCoordinators
from tidemill.coordinator.share_state.machine import PartitionState
from tidemill.protocol.records import iterate_records
from tidemill.sim.cluster import Machine


def differences(machine: Machine) -> Iterator[str]:
    yield from _transaction_differences(machine)
    yield from _share_differences(machine)


def _share_differences(machine: Machine) -> Iterator[str]:
    """Compares what a new leader of a share partition would read; the log may have been pruned."""
    hosts = machine.node.broker.share_coordinators if machine.node else None
    for index, hosted in hosts.runtime._shards.items() if hosts is not None else ():
        log = hosted._partition.log
        if hosts is None or log is None or not hosted.is_active:
            continue
        rebuilt = hosts.make_machine(index, hosted.leader_epoch)
        for segment in log.segments:
            for _, header, batch in segment.batches():
                for raw in iterate_records(batch, header):
                    record = rebuilt.decode(raw.key or b"", raw.value)
                    if record is not None and raw.offset >= log.log_start_offset:
                        rebuilt.replay(record, None, raw.offset)
        live, found = hosted.machine.states, rebuilt.states
        for key in sorted({*live, *found}):
            known, replayed = live.get(key), found.get(key)
            if known is None or replayed is None or _readable(known) != _readable(replayed):
                yield f"{machine.host} knows {known} of {key}, its log says {replayed}"


def _readable(state: PartitionState) -> tuple[object, ...]:
    return state.state_epoch, state.leader_epoch, state.start_offset, state.batches


def _transaction_differences(machine: Machine) -> Iterator[str]:
    hosts: TransactionCoordinators | None = machine.node.broker.transactions if machine.node else None
    if hosts is None:
        return
    for index, hosted in hosts.runtime._shards.items():
        log = hosted._partition.log
        if log is None or not hosted.is_active:
            continue
        rebuilt = hosts.make_machine(index, hosted.leader_epoch)
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
