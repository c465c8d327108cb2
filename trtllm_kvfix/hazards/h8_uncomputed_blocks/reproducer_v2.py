"""H8-V2: blocks that nobody has written are offered for reuse (KVCacheManagerV2, sliding windows, a connector).

Shows:     a connector brings a prefix that is longer than a window. Another prompt, which shares its first two blocks,
           reuses them, although the window had passed them: nobody computed them, and nobody loaded them.
Control:   the same prompts where the connector has nothing: the blocks are computed, and rightly reused.
Needs:     torch, a GPU, TensorRT-LLM whose V2 asks connectors (autumn 2026); no model. Takes half a minute, most of it
           imports.
"""

import sys

import torch

from trtllm_kvfix.hazards.h2_block_offsets_v2.reproducer import kind
from trtllm_kvfix.hazards.h8_uncomputed_blocks.installed import PASSES, PREFIX, WINDOW, Served, reused_behind

if not hasattr(cls := kind(), PASSES):
    print("in this release no connector answers KVCacheManagerV2 with a prefix")
    sys.exit(2)
control, found = (reused_behind(Served(torch.cuda.Stream(), cls), prefix) for prefix in (0, PREFIX))
print(f"tokens reused: {control} that were computed; behind a prefix, {found} that NOBODY WROTE")
sys.exit(2 if control < WINDOW else int(found > 0))
