"""What the native block manager is used for besides a GPU tier: identities of blocks, the index of a host tier."""
