"""After admission a batch holds at most max_num_tokens (H3)."""
