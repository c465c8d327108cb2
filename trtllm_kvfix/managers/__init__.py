"""Our block manager in the place of upstream's: what its V1 `KVCacheManager` calls `.impl`.

It has been checked against upstream's own Python over a simulated device, and never inside a real TensorRT-LLM.
docs/native-manager.md says what it serves, what it refuses, and when to use it.

Before a server starts:

- constructors.py takes the place of four constructors of upstream, and refuses builds that it does not know. It also
  looks at the engine that is about to start, and refuses what a constructor cannot see.
- keywords.py reads or refuses each keyword of the cache's constructor. The result is a layout (layout.py).

A prompt meets, from the request that upstream makes to the kernel that reads its blocks:

- prompts.py: what the request says of its blocks. It is noted while the request is made.
- capacity.py: the scheduler that lets it start. It asks questions.py, which asks the core.
- native_kv_cache.py: the calls of upstream, under upstream's names and one lock.
- books.py: the notes between these calls. They become one batch, which the core admits. It keeps the live sequences,
  their slots as attention reads them, and pins. It submits the copies that the batch needs, on the model's stream,
  between pools of memory.py. Upstream sees these as tensors (tensors.py).

An answer that grows goes through the same files from native_kv_cache.py on. Beside them stand

- reports.py: what others read of the cache, in upstream's terms,
- between_ranks.py: ranks compare their books, and share the time by which retention ends.

The canary hears this manager (watched.py), and those of upstream where they serve: watching.py puts it there,
upstream_v1.py and upstream_v2.py name the methods that it hears and the caches that it refuses, watched_v1.py and
watched_v2.py follow the others.

The core behind all of them is `native.BlockManager`: `trtllm_kvfix.blocks` says where to begin with it.
"""
