"""Publishing: one producer, its delivery results, and what a record is given on its way out."""
