"""Counts what the fixes do: `counters` holds the counts, `exporter` shows them to Prometheus, which is off by
default."""
