"""H6: two agents of one host share a listener's port."""
