"""H8: blocks that nobody computed are offered for reuse."""
