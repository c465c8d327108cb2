"""What the fixes did, counted. Counting is in `counters`; showing it to Prometheus, off by default, in `exporter`."""
