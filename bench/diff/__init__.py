"""Sends the same requests to Apache Kafka and to Tidemill and lists where the answers differ.

`cases/` holds the scripts, one module per family of APIs. A script runs once against each broker; every answer is
recorded under (API, version, case). `normalise` takes out what must differ between two clusters (ids, clocks, ports),
and `compare` compares the rest field by field. `accepted.toml` explains the differences that are intended. What is left
over is a bug in one of the two, or a sentence missing in that table.
"""
