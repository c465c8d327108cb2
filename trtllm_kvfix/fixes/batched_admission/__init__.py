"""Where sequences are added one by one, those that evict least go first (H3)."""
