"""Confluent's REST Proxy v3: its paths, shapes and error codes, put together from its parts.

What it documents and is not here: ACLs, tasks and balancer operations, `records:batch`, schema registry formats.
"""

from __future__ import annotations

from tidemill.gateway import v3_clusters, v3_configs, v3_groups, v3_records, v3_topics

# What is asked for most comes first: the router looks from the beginning.
routes = [
    *v3_records.routes,
    *v3_clusters.routes,
    *v3_topics.routes,
    *v3_configs.routes,
    *v3_groups.routes,
]
