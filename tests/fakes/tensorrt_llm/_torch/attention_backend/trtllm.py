"""Where attention's metadata lives until it moves (surface 9)."""

from ..._standin.attention import AttentionMetadata, prepare_with_own_table
from ..._standin.variant import before


class TrtllmAttentionMetadata(AttentionMetadata):
    prepare = prepare_with_own_table if before("B") else AttentionMetadata.prepare
