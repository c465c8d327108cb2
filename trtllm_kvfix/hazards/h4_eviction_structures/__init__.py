"""H4: two threads change the eviction structures at once."""
