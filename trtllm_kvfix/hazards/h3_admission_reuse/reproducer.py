"""H3: a cached prefix that the scheduler counted on is evicted while the batch is admitted (KVCacheManager).

Shows:     of two requests of a batch, the first needs the room in which the second's cached prefix lies. Requests are
           added one by one, so the first evicts it, and the second computes more tokens than it was charged for.
Control:   the same two requests in the other order: the prefix is claimed before anything is evicted.
Needs:     torch, a GPU, TensorRT-LLM (1.1, 1.2, 1.3 up to rc12); no model. Takes half a minute, most of it imports.
"""

import sys

import torch

from trtllm_kvfix.hazards.h3_admission_reuse.installed import BLOCKS, KEPT, batch_of_two
from trtllm_kvfix.hazards.small import Requests


def tokens_reused(*, large_first: bool) -> int:
    _, sharing = batch_of_two(Requests(torch.cuda.Stream(), blocks=BLOCKS), large_first=large_first)
    return int(sharing.prepopulated_prompt_len)


control, found = tokens_reused(large_first=False), tokens_reused(large_first=True)
print(f"of {len(KEPT)} cached tokens the second request reuses {found}; admitted first, it reuses {control}")
sys.exit(2 if control < len(KEPT) else int(found < len(KEPT)))
