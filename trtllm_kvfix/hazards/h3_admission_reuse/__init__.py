"""H3: cached prefixes that a batch counts on are evicted while it is admitted."""
