"""The sink: options, routing to partitions, one transaction a task, and the driver's two-phase commit."""
