"""Sends the same requests to Apache Kafka and to Tidemill and lists where the answers differ.

`cases/` holds the scripts, one module per family of APIs. A script runs once against each broker; every
answer is recorded under (API, version, case). `normalise` takes out what must differ between two clusters
(ids, clocks, ports), `compare` lines the rest up field by field, and `accepted.toml` explains the
differences that are meant to be there. What is left over is a bug in one of the two, or a sentence missing
in that table.
"""
