"""Block offsets of the V1 manager are shipped from a snapshot (H1)."""
