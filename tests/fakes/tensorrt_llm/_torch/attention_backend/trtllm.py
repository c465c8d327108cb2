"""Where attention's metadata lives until it moves (surface 9)."""

from ..._standin.attention import AttentionMetadata, prepare_by_plan, prepare_with_own_table
from ..._standin.variant import MANGLED, before


class TrtllmAttentionMetadata(AttentionMetadata):
    if before("B"):
        prepare = prepare_with_own_table
    elif MANGLED:
        prepare = prepare_by_plan
    else:
        prepare = AttentionMetadata.prepare
