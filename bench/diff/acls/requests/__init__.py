"""The requests of each family of APIs, filled in at random."""
