"""The seam to object stores: `store.py` says what a store does, `folder.py` and `remote.py` do it."""
