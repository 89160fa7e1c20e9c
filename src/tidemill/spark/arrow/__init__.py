"""Record batches become Arrow batches and Arrow rows become record batches, with no Python object for a record."""
