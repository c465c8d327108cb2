"""Block offsets of the V2 manager are gathered from private rows (H2)."""
