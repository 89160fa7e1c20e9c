"""The Python SDK: `tidemill.Client` and `tidemill.AsyncClient`, thin over confluent-kafka."""
