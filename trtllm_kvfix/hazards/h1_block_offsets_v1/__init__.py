"""H1: the V1 manager refills its pinned table of block offsets while a copy of it is queued."""
