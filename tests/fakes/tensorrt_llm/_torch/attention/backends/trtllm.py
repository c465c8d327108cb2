"""Where attention's metadata has moved (surface 9)."""

from ...._standin.attention import AttentionMetadata


class TrtllmAttentionMetadata(AttentionMetadata):
    prepare = AttentionMetadata.prepare
