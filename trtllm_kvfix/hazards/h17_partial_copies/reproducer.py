"""H17: a block that a prompt matches in part is overwritten in the host tier before it is copied (KVCacheManager).

Shows:     a prompt matches half of a block on the host, below which another request's block hangs. It has to be copied.
           To make room for the copy, the manager moves a block to the host, into the very slot of the match, and then
           takes the match for the copy: it holds the tokens of the request whose block was moved.
Control:   the same requests without a host tier: the match is copied into another block, or is where it was.
Needs:     torch, a GPU, TensorRT-LLM (1.2 to 1.3.0rc12); no model. Takes half a minute, most of it imports.
"""

import sys

import torch

from trtllm_kvfix.hazards.h17_partial_copies.installed import BLOCKS, block_bytes, play
from trtllm_kvfix.hazards.small import Requests

without = Requests(torch.cuda.Stream(), blocks=BLOCKS)
reused, _ = play(without, 0)
print(f"without a host tier: {reused} tokens reused")
reused_wrongly = 0
for others in range(BLOCKS):
    requests = Requests(torch.cuda.Stream(), blocks=BLOCKS, host_cache_size=block_bytes(without.cache))
    count, is_the_match = play(requests, others)
    if is_the_match:
        reused_wrongly = max(reused_wrongly, count)
lost = f"{reused_wrongly} reused from a block into which ANOTHER HAD BEEN MOVED"
print(f"with one block on the host: {lost if reused_wrongly else 'none reused wrongly'}")
sys.exit(2 if reused == 0 else int(reused_wrongly > 0))
