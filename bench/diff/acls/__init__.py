"""Asks Apache Kafka and Tidemill, both with an authorizer, the same random requests under the same random ACLs.

A case is a set of ACLs, a principal, the address from which it speaks, and one request. What is compared is what a client
may do and see: error codes, the names that are shown or left out, and authorised operations. Differences that are meant to
be there stand in `accepted.toml`, which docs/compatibility.md shows. A seed repeats a run.
"""
