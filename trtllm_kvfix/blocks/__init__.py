"""The block manager: which KV-cache block holds what, and where. It never moves bytes.

docs/block-manager-guide.md introduces it, docs/block-manager.md is its contract. Python reaches it through native.py,
as `BlockManager` (a GPU tier and a host tier, for a manager) and `TierIndex` (a tier that another program fills, for a
connector). This package holds the part of it that is Python:

- identity.py: what names the blocks of a request (tokens, LoRA, salt, images), read from a request of upstream's.

In C++, data meet the files of `cpp/core` in this order:

- request.h, identity.h, block_hash.h: the prompt, and the names of its blocks.
- block_manager.h: every verb, under one lock. Each is a file of its own over state.h.
- admission_planner.h: matching, claims and room of a batch, without a change. admit.h then applies the plan.
- window.h, and in it block_store.h (blocks and their slots), reuse_tree.h (cached blocks by prefix) and
  eviction_queue.h (the order in which they go).
- hold.h and evict.h give a block its slot, transfer.h queues the copies that this needs.
- chunk.h and grow.h: the rest of a prompt, and its answer. tables.h: what attention reads.
- store.h: computed blocks enter the tree. publish.h: events say so. retain.h: how long they are worth keeping.
- leave.h: blocks leave a window that no position looks back to any more. review.h says where a block belongs when its
  last sequence, pin or copy has ended: in a queue, or with the free ones.
- tier_index.h: the same questions for a tier of a connector, over tier_blocks.h and tier_admission.h.
- digest.h and invariants.h: the whole state as one number for ranks, and recounted for tests.

`cpp/bindings` turns arguments and results, and decides nothing.
"""
