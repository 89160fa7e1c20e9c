# `make run` and `make test` set up everything they need in .venv, from PyPI alone.
PYTHON ?= python3
VENV := .venv
# Every broker, Spark worker and command of the tests is a process: without bytecode each one would compile the project
# anew (1.3 s of processor time instead of 0.4), whatever the shell that runs make says.
export PYTHONDONTWRITEBYTECODE :=
BIN := $(VENV)/bin
.DEFAULT_GOAL := help

help:  ## list the targets
	@sed -nE 's/^##@ (.*)/\n\1/p; s/^([a-z-]+):[^#]*## /  \1\t/p' $(MAKEFILE_LIST) | expand -t 24

$(VENV)/run.stamp: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Tidemill needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	@echo 'Installing Tidemill into $(VENV), once.'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[gateway,metrics]'
	@touch $@

# PySpark alone is half a gigabyte: pip shows what it downloads.
$(VENV)/spark.stamp: $(VENV)/run.stamp
	@$(BIN)/python -c 'import numpy, pyarrow, pyspark' 2>/dev/null || { \
		echo 'Installing Spark, once: about 500 MB to download, which takes as long as it takes.'; \
		$(BIN)/pip install --disable-pip-version-check --editable '.[spark]'; }
	@touch $@

$(VENV)/dev.stamp: $(VENV)/run.stamp
	@echo 'Installing what tests and tools need, once: about 700 MB to download.'
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

##@ Use and develop
setup: $(VENV)/dev.stamp  ## the development environment

run: $(VENV)/run.stamp  ## one broker on 127.0.0.1:9092, data in ./data, the console on http://127.0.0.1:8080
	@exec $(BIN)/tidemill serve --data-dir data --status 127.0.0.1:9404 --gateway 127.0.0.1:8080 $(ARGS)

demo: $(VENV)/spark.stamp  ## a broker, an order stream, and Spark over it, in a minute or two once Spark is installed (Java 17)
	@exec $(BIN)/tidemill demo $(ARGS)

# Twice as many workers as the two cores of a small machine: much of the time, tests wait for timeouts and leaders.
test: $(VENV)/dev.stamp  ## every test that a fresh machine can run, but for the long ones
	@$(BIN)/python -m pytest -n $(or $(JOBS),4) --dist loadfile -m "not long" $(ARGS)

long: $(VENV)/dev.stamp  ## the tests that take longest (a Spark query through kills, the demo, …), and all examples of the property tests
	@$(BIN)/python -m pytest -n $(or $(JOBS),2) --dist loadfile -m long $(ARGS)
	@TIDEMILL_ALL_EXAMPLES=1 $(BIN)/python -m pytest -n $(or $(JOBS),2) --dist loadfile -m "hypothesis and not long" $(ARGS)

object-store: $(VENV)/dev.stamp  ## object stores against an S3 server on this machine (moto, from PyPI)
	@$(BIN)/python -c 'import moto.server' 2>/dev/null || $(BIN)/pip install --quiet --disable-pip-version-check 'moto[s3,server]>=5'
	@$(BIN)/python -m pytest tests/unit/objects $(ARGS)

check: $(VENV)/dev.stamp  ## lint, types, layers, dead code
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python scripts/dead_code.py

docs: $(VENV)/dev.stamp  ## write the generated pages anew, and build the site into ./site
	@$(BIN)/python scripts/compatibility.py
	@$(BIN)/python scripts/cli_reference.py
	@$(BIN)/python scripts/configuration_reference.py
	@$(BIN)/python scripts/metrics_reference.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

##@ Measure
bench: $(VENV)/dev.stamp  ## measure this broker; ARGS="--quick --only fetch" narrows it
	@$(BIN)/python -m bench $(ARGS)

bench-kafka: $(VENV)/dev.stamp  ## the same beside Apache Kafka (Java 17, Maven), with ratios
	@$(BIN)/python -m bench --kafka $(ARGS)

bench-cluster: $(VENV)/dev.stamp  ## three brokers: replicated produce, failover, 2,000 partitions
	@$(BIN)/python -m bench --cluster $(ARGS)

bench-cluster-kafka: $(VENV)/dev.stamp  ## the same beside three nodes of Apache Kafka, with ratios
	@$(BIN)/python -m bench --cluster --kafka $(ARGS)

bench-secured-kafka: $(VENV)/dev.stamp  ## produce, fetch, acks and handshakes over TLS, and quotas, beside Apache Kafka
	@$(BIN)/python -m bench --secured --kafka $(ARGS)

bench-views: $(VENV)/dev.stamp  ## views of 1, 10 and 50 % of a topic beside a client that filters for itself
	@$(BIN)/python -m bench --only views $(ARGS)

bench-shares-kafka: $(VENV)/dev.stamp  ## share groups: throughput, acknowledgements and fairness beside Apache Kafka
	@$(BIN)/python -m bench --only shares --kafka $(ARGS)

bench-delays: $(VENV)/dev.stamp  ## due to visible at 20,000/s; memory and start of a broker with 5 million pending records
	@$(BIN)/python -m bench --only delays,delays-pending $(ARGS)

bench-unfiltered: $(VENV)/dev.stamp  ## topics without views or delays: produce, fetch and latency, to compare two versions
	@$(BIN)/python -m bench --only produce,fetch,latency,requests $(ARGS)

bench-authorizer: $(VENV)/dev.stamp  ## what a decision of the authorizer costs with 10,000 ACLs
	@$(BIN)/python -m bench.micro.authorizer $(ARGS)

bench-instructions: $(VENV)/dev.stamp  ## instructions of one request, whatever else the machine does (Valgrind): ARGS="../older ."
	@$(BIN)/python -m bench.micro.instructions $(ARGS)

bench-steps: $(VENV)/dev.stamp  ## the longest step of the event loop for every list of every API: ARGS="../older ." or ARGS="--only Fetch --where 5"
	@$(BIN)/python -m bench.micro.long_steps $(ARGS)

##@ Compare and break
diff-kafka: $(VENV)/dev.stamp  ## the same requests to Apache Kafka and to Tidemill, answers compared
	@$(BIN)/python -m bench.diff $(ARGS)

diff-acls: $(VENV)/dev.stamp  ## 10,000 random ACLs, principals and requests, to Apache Kafka and to Tidemill: CASES=500 SEED=7
	@$(BIN)/python -m bench.diff.acls --cases $(or $(CASES),10000) $(if $(SEED),--seed $(SEED)) $(ARGS)

interop-java: $(VENV)/dev.stamp  ## Kafka's own client and tools (jars from Maven Central) over TLS and SASL, in share groups, while partitions go and come
	@$(BIN)/python -m tests.interop.kafka_tools
	@$(BIN)/python -m pytest tests/interop/test_kafka_tools.py tests/interop/test_security.py tests/interop/test_share_groups.py \
		tests/interop/test_hidden_records.py tests/interop/test_fewer_partitions_others.py -k "java or tools" $(ARGS)

interop-others: $(VENV)/dev.stamp  ## kafkajs, kafka-go and sarama (npm, Go): views, delayed records, partitions that go and come
	@$(BIN)/python -m tests.interop.other_clients
	@$(BIN)/python -m pytest tests/interop/test_hidden_records.py tests/interop/test_fewer_partitions_others.py -k other_languages $(ARGS)

cluster: $(VENV)/dev.stamp  ## clusters of real processes: kill -9, SIGSTOP, network namespaces (as root), a full disk; SECURED=1: TLS and SCRAM between nodes
	@TIDEMILL_CLUSTER_SECURED=$(SECURED) $(BIN)/python -m pytest tests/cluster $(ARGS)

kill-rounds: $(VENV)/dev.stamp  ## 200 rounds of kill -9 under load
	@TIDEMILL_KILL_ROUNDS=$(or $(ROUNDS),200) $(BIN)/python -m pytest tests/cluster/test_kill.py $(ARGS)

queue-kills: $(VENV)/dev.stamp  ## a queue while brokers and workers are killed, KILLS (50) times
	@TIDEMILL_QUEUE_KILLS=$(or $(KILLS),50) TIDEMILL_QUEUE_SEED=$(or $(SEED),1) $(BIN)/python -m pytest -s -m long tests/cluster/test_queue_kills.py $(ARGS)

exactly-once: $(VENV)/dev.stamp  ## read, transform, write with each client, through 100 kills
	@TIDEMILL_EXACTLY_ONCE_KILLS=$(or $(KILLS),100) TIDEMILL_EXACTLY_ONCE_SEED=$(or $(SEED),1) $(BIN)/python -m pytest -rP \
		tests/cluster/test_exactly_once.py $(ARGS)

sim: $(VENV)/dev.stamp  ## the whole cluster from a seed: SEED=7, or SEEDS=1000; MINUTES=10 of simulated time each
	@$(BIN)/python -m tidemill.sim $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),10)) --minutes $(or $(MINUTES),10) $(ARGS)

fuzz: $(VENV)/dev.stamp  ## requests of all APIs, mutated, against real brokers: MINUTES=10 SEED=7 BROKERS=3 P99_MS=100; FRAME=hex repeats one
	@$(BIN)/python -m tests.wire.fuzz --minutes $(or $(MINUTES),1) --brokers $(or $(BROKERS),1) $(if $(SEED),--seed $(SEED)) \
		$(if $(FRAME),--frame $(FRAME)) $(if $(P99_MS),--p99-ms $(P99_MS)) $(ARGS)

group-schedules: $(VENV)/dev.stamp  ## 50 random join/leave/kill schedules, and 5,000 members at once
	@TIDEMILL_GROUP_SCHEDULES=$(or $(ROUNDS),50) TIDEMILL_GROUP_MEMBERS=5000 $(BIN)/python -m pytest \
		tests/cluster/test_groups_schedules.py tests/cluster/test_groups_many_members.py $(ARGS)

##@ Spark
spark-jvm: $(VENV)/dev.stamp  ## Spark's own Kafka connector (jars from Maven Central) against this broker
	@$(BIN)/python -m bench.spark.jvm_connector
	@$(BIN)/python -m pytest tests/spark/test_jvm_connector.py $(ARGS)

spark-kills: $(VENV)/dev.stamp  ## a streaming query through 60 faults: executors, drivers, brokers, rows, jobs; on one broker and on three
	@TIDEMILL_TASK_KILLS=$(or $(KILLS),40) TIDEMILL_SPARK_SEED=$(or $(SEED),1) $(BIN)/python -m pytest -rP \
		tests/spark/test_task_kills.py tests/spark/test_sink_failures.py tests/spark/test_driver_failures.py $(ARGS)
	@TIDEMILL_SPARK_KILLS=$(or $(KILLS),60) TIDEMILL_SPARK_SEED=$(or $(SEED),1) $(BIN)/python -m pytest -rP \
		tests/spark/test_exactly_once.py $(ARGS)

$(VENV)/pipelines/bin/spark-pipelines: $(VENV)/dev.stamp
	@$(BIN)/python -m venv $(VENV)/pipelines
	@$(VENV)/pipelines/bin/pip install --quiet --disable-pip-version-check --editable '.[spark]' 'pyspark[pipelines]'

spark-declarative: $(VENV)/pipelines/bin/spark-pipelines  ## the example of Spark's declarative pipelines (pyspark[pipelines], in an environment of its own)
	@TIDEMILL_SPARK_PIPELINES_PYTHON=$(abspath $(VENV))/pipelines/bin/python $(BIN)/python -m pytest tests/spark/test_declarative.py $(ARGS)

# Each in an environment of its own, of some 600 MB: versions need other jars.
SPARK_VERSIONS ?= 4.0 4.1 4.2 4.3
$(VENV)/spark-%/bin/pytest: pyproject.toml
	@$(PYTHON) -m venv $(VENV)/spark-$*
	@$(VENV)/spark-$*/bin/pip install --quiet --disable-pip-version-check --editable '.[client,spark]' 'pyspark[connect]==$*.*' \
		pytest pytest-asyncio
	@touch $@

spark-versions: $(SPARK_VERSIONS:%=$(VENV)/spark-%/bin/pytest)  ## read, write and exactly once on each version of Spark that is supported
	@for version in $(SPARK_VERSIONS); do \
		echo "Spark $$version"; $(VENV)/spark-$$version/bin/python -m pytest tests/spark/test_versions.py $(ARGS) || exit 1; \
	done

bench-spark: $(VENV)/dev.stamp  ## source, segment scan and sink, beside Spark's own Kafka connector (Java 17, Maven), with ratios
	@$(BIN)/python -m bench.spark $(ARGS)

.PHONY: help setup run demo test long check docs cluster bench bench-kafka bench-cluster bench-cluster-kafka diff-kafka diff-acls interop-java interop-others bench-secured-kafka bench-shares-kafka bench-views bench-delays bench-unfiltered bench-authorizer bench-instructions bench-steps kill-rounds queue-kills exactly-once spark-jvm spark-kills spark-declarative spark-versions bench-spark sim fuzz group-schedules object-store
