"""The broker's settings of transactions."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.config.values import Values


@dataclass(frozen=True, slots=True)
class TransactionsConfig:
    """Kafka's broker settings under their own names. `__transaction_state` is created with
    `transaction_state_log_*`."""

    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 7 * 24 * 3600 * 1000
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    transaction_two_phase_commit_enable: bool = True
    transaction_partition_verification_enable: bool = True
    add_partitions_to_txn_retry_backoff_ms: int = 20
    add_partitions_to_txn_retry_backoff_max_ms: int = 100
    transaction_state_log_num_partitions: int = 50
    transaction_state_log_replication_factor: int = 3
    transaction_state_log_min_isr: int = 2
    transaction_state_log_segment_bytes: int = 104_857_600


def load_transactions(values: Values) -> TransactionsConfig:
    number = values.number
    return TransactionsConfig(
        transaction_max_timeout_ms=number("transaction.max.timeout.ms"),
        transactional_id_expiration_ms=number("transactional.id.expiration.ms"),
        transaction_abort_timed_out_transaction_cleanup_interval_ms=number(
            "transaction.abort.timed.out.transaction.cleanup.interval.ms"
        ),
        transaction_remove_expired_transaction_cleanup_interval_ms=number(
            "transaction.remove.expired.transaction.cleanup.interval.ms"
        ),
        transaction_two_phase_commit_enable=values.flag("transaction.two.phase.commit.enable"),
        transaction_partition_verification_enable=values.flag("transaction.partition.verification.enable"),
        add_partitions_to_txn_retry_backoff_ms=number("add.partitions.to.txn.retry.backoff.ms"),
        add_partitions_to_txn_retry_backoff_max_ms=number("add.partitions.to.txn.retry.backoff.max.ms"),
        transaction_state_log_num_partitions=number("transaction.state.log.num.partitions"),
        transaction_state_log_replication_factor=number("transaction.state.log.replication.factor"),
        transaction_state_log_min_isr=number("transaction.state.log.min.isr"),
        transaction_state_log_segment_bytes=number("transaction.state.log.segment.bytes"),
    )
