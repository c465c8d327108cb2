"""Where attention's metadata has moved (surface 9)."""

from ...._standin.attention import AttentionMetadata
from ...._standin.variant import only_if, since

only_if(since("F"), __name__)


class TrtllmAttentionMetadata(AttentionMetadata):
    prepare = AttentionMetadata.prepare
