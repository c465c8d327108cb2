"""Uses of the native block manager besides a GPU tier: identities of blocks, and the index of a host tier."""
