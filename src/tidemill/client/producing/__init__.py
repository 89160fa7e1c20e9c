"""Writing: the producer of single records, the producer of whole batches, and transactions."""
