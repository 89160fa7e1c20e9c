"""Claim check: large payloads in an object store, and claims for them in the log (docs/claims.md).

| module | owns |
|---|---|
| `claim.py` | the format of claims and of keys, and which URIs a store may resolve: pure |
| `errors.py` | what can be wrong with a claim |
| `large_payloads.py` | puts payloads into a store and gets them back, verified |
| `sweep.py` | which objects may be removed: pure |
"""
