"""Confluent's REST Proxy v3: its paths, shapes and error codes, put together from its parts.

What it documents and is not here: ACLs, tasks and balancer operations, `records:batch`, schema registry formats.
"""

from __future__ import annotations

from tidemill.gateway.rest_v3 import clusters as v3_clusters
from tidemill.gateway.rest_v3 import configs as v3_configs
from tidemill.gateway.rest_v3 import groups as v3_groups
from tidemill.gateway.rest_v3 import records as v3_records
from tidemill.gateway.rest_v3 import topics as v3_topics

# The most frequent routes come first: the router searches from the beginning.
routes = [
    *v3_records.routes,
    *v3_clusters.routes,
    *v3_topics.routes,
    *v3_configs.routes,
    *v3_groups.routes,
]
