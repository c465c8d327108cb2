"""H17: a block is overwritten in the host tier before the part that a prompt matches is copied from it."""
