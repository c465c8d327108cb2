"""The native core of trtllm-kvfix. Import trtllm_kvfix.native instead."""

from collections.abc import Callable, Sequence
import enum
from typing import overload

import numpy.typing


from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

def build_info() -> dict[str, str]:
    """How this extension was built."""

class OutOfBlocks(RuntimeError):
    """
    A window has too few blocks for the call. The attributes say how many it needed and had.
    """

    blocks_needed: int
    blocks_free: int
    window_size: int | None
    tier: str

class UnknownRequest(KeyError):
    """No live sequence has this request id."""

    def __str__(self) -> str: ...

class BlockInFlight(RuntimeError):
    """A transfer still writes the block."""

class InvariantViolation(RuntimeError):
    """
    The manager's books contradict each other. This is a bug; do not use this manager any more.
    """

class DeviceError(RuntimeError):
    """
    A device call failed. The message names the call, its arguments and the driver's text.
    """

class BlockManagerConfig:
    """The settings of a block manager. They are checked at once."""

    def __init__(self, *, tokens_per_block: int, blocks_primary: int | Mapping[int, int], blocks_host: int | Mapping[int, int] = 0, window_sizes: Sequence[int] | None = None, max_beam_width: int = 1, block_reuse: bool = True, partial_reuse: bool = True, copy_on_partial_reuse: bool = True, offload_priority_min: int = 30, host_admission: str = "all", events_max: int = 0, hash_bits: int = 128, seed: int | None = None) -> None:
        """
        hash_bits below 128 forces hash collisions, for tests. seed (128 bits) is the key of the block hashes and of the manager's indexes. It is a secret, the same on ranks that must agree. None: drawn from the system's entropy.
        """

    @property
    def tokens_per_block(self) -> int:
        """Tokens that a full block holds."""

    @property
    def blocks_primary(self) -> int | dict[int, int]:
        """Slots on the GPU: one number, or one for each window."""

    @property
    def blocks_host(self) -> int | dict[int, int]:
        """
        Slots of the host tier: one number, or one for each window. 0: no host tier.
        """

    @property
    def window_sizes(self) -> list[int] | None:
        """
        Sizes of attention windows in tokens, each with slots and a tree of its own. None: full attention.
        """

    @property
    def max_beam_width(self) -> int:
        """The widest beam that a request may ask for."""

    @property
    def block_reuse(self) -> bool:
        """False: nothing is ever matched or stored."""

    @property
    def partial_reuse(self) -> bool:
        """A block that matches in part is reused in part."""

    @property
    def copy_on_partial_reuse(self) -> bool:
        """
        A partial match that is in use is copied. False: a partial match is only ever taken over, so it serves one request.
        """

    @property
    def offload_priority_min(self) -> int:
        """
        Evicted blocks of a lower retention priority are dropped, not copied to host.
        """

    @property
    def host_admission(self) -> str:
        """
        Which evicted blocks may push others out of a full host tier. 'all', or 'adaptive': those for which no second request has asked may take only a share of it, which follows what comes back.
        """

    @property
    def events_max(self) -> int:
        """
        How many events may wait to be read; further ones push the oldest out. 0: no events.
        """

    @property
    def hash_bits(self) -> int:
        """
        How many bits of a block hash count. Fewer than 128 force collisions, for tests.
        """

    @property
    def seed(self) -> int:
        """
        The key of the block hashes. It is a secret, the same on ranks that must agree.
        """

    def __reduce__(self) -> tuple[Any, ...]: ...

    def __repr__(self) -> str: ...

class Retention:
    """
    How long the blocks of a request are worth keeping: priorities 0 to 100, default 35.
    """

    def __init__(self, ranges: Sequence[tuple[int, int | None, int, int | None]] = (), decode_priority: int = 35, decode_duration_ms: int | None = None) -> None:
        """
        ranges: (token_start, token_end or None, priority, duration_ms or None), ascending and disjoint.
        """

    @property
    def ranges(self) -> list[tuple[int, int | None, int, int | None]]:
        """
        (token_start, token_end or None, priority, duration_ms or None), ascending and disjoint.
        """

    @property
    def decode_priority(self) -> int:
        """Priority of the blocks that growth takes."""

    @property
    def decode_duration_ms(self) -> int | None:
        """
        How long decode_priority lasts once nobody uses the block. None: for ever.
        """

    def __reduce__(self) -> tuple[Any, ...]: ...

    def __repr__(self) -> str: ...

class SequenceRequest:
    """
    A request for blocks. It copies the tokens at construction and is immutable.
    """

    def __init__(self, request_id: int, tokens: Any, *, beam_width: int = 1, lora_id: int | None = None, salt: str | bytes | int | None = None, extra_keys: Iterable[tuple[int, int, bytes]] = (), retention: Retention | None = None) -> None:
        """
        tokens: a 1-D int32 or int64 array (numpy, buffer, DLPack on the CPU) or a list of ints. Arrays are copied at the speed of memory, lists at a few nanoseconds a token. extra_keys: (token_start, token_end, digest) of multimodal spans, ascending.
        """

    @property
    def request_id(self) -> int:
        """The id of the sequence in every later call."""

    @property
    def num_tokens(self) -> int:
        """The length of the prompt."""

    @property
    def tokens(self) -> list[int]:
        """The prompt, as a new list."""

    @property
    def beam_width(self) -> int:
        """
        Beams share the full blocks of the prompt; each has an incomplete last block of its own.
        """

    @property
    def lora_id(self) -> int | None:
        """Only requests with the same adapter share blocks."""

    @property
    def salt(self) -> str | bytes | int | None:
        """
        Only requests with the same salt share blocks. A number, a text and bytes are never the same salt.
        """

    @property
    def extra_keys(self) -> list[tuple[int, int, bytes]]:
        """
        Multimodal spans (token_start, token_end, digest), which are part of the identity of their blocks.
        """

    @property
    def retention(self) -> Retention | None:
        """How long its blocks are worth keeping. None: priority 35."""

    def __reduce__(self) -> tuple[Any, ...]: ...

    def __repr__(self) -> str: ...

def block_hashes(request: SequenceRequest, config: BlockManagerConfig) -> list[int]:
    """
    The hashes of the prompt's full blocks in every manager with the config's tokens_per_block and seed.
    """

class Admission:
    """
    What one request got. The numbers are its own, whatever else was in the batch.
    """

    @property
    def request_id(self) -> int:
        """The request."""

    @property
    def tokens_reused(self) -> int:
        """Leading tokens of the prompt that need not be computed."""

    @property
    def tokens_new(self) -> int:
        """Tokens of the prompt that must be computed: at least one."""

    @property
    def blocks_reused(self) -> int:
        """Blocks claimed, a partial match included, summed over windows."""

    @property
    def blocks_onboarded(self) -> int:
        """Copies from host to primary that were queued for this request."""

    @property
    def blocks_new(self) -> int:
        """Blocks without any reused token, summed over windows and beams."""

    def __repr__(self) -> str: ...

class BatchAdmission:
    """
    The requests admitted, in order, and the ids of those that did not fit the budget.
    """

    @property
    def admitted(self) -> list[Admission]:
        """One result for each request that fits, in the order of the call."""

    @property
    def deferred(self) -> list[int]:
        """
        The first request that would exceed tokens_new_max, and all after it. They are untouched.
        """

    def __repr__(self) -> str: ...

class PrefixReuse:
    """What admitting the request alone, now, would reuse."""

    @property
    def tokens(self) -> int:
        """Tokens that would be reused."""

    @property
    def blocks_primary(self) -> int:
        """Reused blocks that are in primary."""

    @property
    def blocks_host(self) -> int:
        """Reused blocks that are only in host and would be copied to primary."""

    def __repr__(self) -> str: ...

class TransferItem:
    """
    One copy between slots: host to primary, primary to host, or within primary.
    """

    @property
    def kind(self) -> str:
        """
        'onboard': host to primary. 'offload': primary to host. 'copy': within primary.
        """

    @property
    def slot_src(self) -> int:
        """
        The slot to read: in host for 'onboard', in primary for the other kinds.
        """

    @property
    def slot_dst(self) -> int:
        """
        The slot to write: in host for 'offload', in primary for the other kinds.
        """

    @property
    def tokens(self) -> int:
        """Leading tokens of the block that must be copied; the rest is not used."""

    @property
    def block_id(self) -> int:
        """The block to which the destination belongs."""

    @property
    def window_size(self) -> int | None:
        """The window whose slots these are. None: full attention."""

    def __repr__(self) -> str: ...

class TransferBatch:
    """
    Copies in the order in which they must run, and the ticket that ends them.
    """

    @property
    def ticket(self) -> int:
        """
        Pass it to complete() or fail(), once. 0: nothing was queued, so neither call is needed.
        """

    @property
    def items(self) -> list[TransferItem]:
        """
        The copies. An offload may have to read a slot before a later item writes it.
        """

    def __len__(self) -> int: ...

    def __repr__(self) -> str: ...

class BlockEvent:
    """
    A full block was stored or removed, or its tier or priority has changed.
    """

    @property
    def kind(self) -> str:
        """'stored', 'removed' or 'updated'."""

    @property
    def event_id(self) -> int:
        """
        Counts up by one; a gap means that events were dropped (KvCacheStats.events_dropped).
        """

    @property
    def block_hash(self) -> int:
        """The hash of the block. It covers everything before the block too."""

    @property
    def parent_hash(self) -> int | None:
        """The hash of the block before this one. None: this is the first."""

    @property
    def tokens(self) -> list[int]:
        """For a stored block, its tokens; otherwise empty."""

    @property
    def tokens_per_block(self) -> int:
        """Of the manager."""

    @property
    def lora_id(self) -> int | None:
        """For a stored block, the adapter of its prefix."""

    @property
    def salt(self) -> str | bytes | int | None:
        """For a stored block, the salt of its prefix."""

    @property
    def extra_keys(self) -> list[tuple[int, int, bytes]]:
        """Multimodal spans, as offsets from the block's first token."""

    @property
    def tier(self) -> str:
        """The tier from which the block is read: 'primary' or 'host'."""

    @property
    def priority(self) -> int:
        """The block's retention priority."""

    @property
    def window_size(self) -> int | None:
        """The window whose tree holds the block. None: full attention."""

    def __repr__(self) -> str: ...

class CacheCounters:
    """What happened during an iteration, or since the start."""

    @property
    def requests(self) -> int:
        """Requests admitted."""

    @property
    def tokens_reused(self) -> int:
        """Prompt tokens that were found in the cache."""

    @property
    def tokens_new(self) -> int:
        """Prompt tokens that had to be computed."""

    @property
    def blocks_reused(self) -> int:
        """Blocks claimed by admissions."""

    @property
    def blocks_reused_partial(self) -> int:
        """Reused blocks of which only a part matched."""

    @property
    def blocks_onboarded(self) -> int:
        """Copies from host to primary."""

    @property
    def blocks_copied(self) -> int:
        """Copies within primary."""

    @property
    def blocks_new(self) -> int:
        """Prompt blocks without any reused token."""

    @property
    def blocks_missed(self) -> int:
        """Full prompt blocks that were not reused."""

    @property
    def blocks_grown(self) -> int:
        """Blocks that growth took."""

    @property
    def blocks_stored(self) -> int:
        """Blocks that entered the tree."""

    @property
    def blocks_offloaded(self) -> int:
        """Copies from primary to host."""

    @property
    def blocks_dropped(self) -> int:
        """Blocks whose content was lost to eviction, those behind them included."""

    @property
    def blocks_declined(self) -> int:
        """
        Evicted blocks that might not push another out of host. They were dropped.
        """

    @property
    def blocks_failed(self) -> int:
        """Copies that failed."""

    def __repr__(self) -> str: ...

class RequestStats:
    """What one live request got, and how it grew."""

    @property
    def tokens_reused(self) -> int:
        """Prompt tokens that were found in the cache."""

    @property
    def tokens_new(self) -> int:
        """Prompt tokens that had to be computed."""

    @property
    def blocks_reused(self) -> int:
        """Blocks claimed by its admission."""

    @property
    def blocks_onboarded(self) -> int:
        """Copies from host to primary that its admission queued."""

    @property
    def blocks_new(self) -> int:
        """Prompt blocks without any reused token."""

    @property
    def blocks_missed(self) -> int:
        """Full prompt blocks that were not reused, summed over windows."""

    @property
    def blocks_grown(self) -> int:
        """Blocks that growth took."""

    def __repr__(self) -> str: ...

class TierStats:
    """blocks = free + cached + owned + in_flight"""

    @property
    def blocks(self) -> int:
        """All slots of the tier."""

    @property
    def free(self) -> int:
        """Slots that hold nothing."""

    @property
    def cached(self) -> int:
        """Slots that can be found and that eviction may take."""

    @property
    def owned(self) -> int:
        """
        Slots that live sequences own, and slots that are pinned, locked or kept.
        """

    @property
    def in_flight(self) -> int:
        """Slots that a transfer still writes."""

    def __repr__(self) -> str: ...

class WindowStats:
    """One window's slots."""

    @property
    def window_size(self) -> int | None:
        """None: full attention."""

    @property
    def primary(self) -> TierStats:
        """The slots on the GPU."""

    @property
    def host(self) -> TierStats:
        """The slots of the host tier."""

    @property
    def kept(self) -> int:
        """
        Primary slots, free or cached, that are kept for later chunks of live prompts.
        """

    def __repr__(self) -> str: ...

class KvCacheStats:
    """A snapshot; reading it resets nothing."""

    @property
    def max_num_blocks(self) -> int:
        """Primary slots, all windows."""

    @property
    def free_num_blocks(self) -> int:
        """Primary slots that are free or cached."""

    @property
    def used_num_blocks(self) -> int:
        """Primary slots that are owned or in flight."""

    @property
    def tokens_per_block(self) -> int:
        """Of the manager."""

    @property
    def cache_hit_rate(self) -> float:
        """Blocks reused / (reused + missed), since the start."""

    @property
    def windows(self) -> list[WindowStats]:
        """Each window's slots, ascending by size."""

    @property
    def total(self) -> CacheCounters:
        """Since the start."""

    @property
    def iteration(self) -> CacheCounters:
        """In the iteration that the last refresh_blocks() ended."""

    @property
    def current(self) -> CacheCounters:
        """Since the last refresh_blocks()."""

    @property
    def events_dropped(self) -> int:
        """Events that were dropped before anybody read them."""

    @property
    def sequences(self) -> int:
        """Live sequences."""

    @property
    def sequences_suspended(self) -> int:
        """Suspended sequences."""

    def __repr__(self) -> str: ...

class BlockManager:
    """
    A two-tier paged block manager. Every method may be called from any thread.
    """

    def __init__(self, config: BlockManagerConfig) -> None: ...

    @property
    def config(self) -> BlockManagerConfig:
        """What the manager was made of."""

    def add_sequence_batch(self, requests: Iterable[SequenceRequest], *, tokens_new_max: int | None = None, chunk_tokens: int | None = None) -> BatchAdmission:
        """
        Claims every match of every request first, then onboards and allocates. All or nothing. With chunk_tokens only the first chunk of each prompt is reserved; add_tokens reserves the next ones.
        """

    def add_sequence(self, request: SequenceRequest, *, chunk_tokens: int | None = None) -> Admission:
        """A batch of one."""

    def analyze_prefix_reuse(self, request: SequenceRequest, *, chunk_tokens: int | None = None) -> PrefixReuse:
        """What admitting the request so, now, would reuse. Changes nothing."""

    def add_token(self, request_id: int, count: int = 1, tokens: Any = None, *, computed: int | None = None) -> None:
        """
        Reserves count more positions; tokens, if given, are their values. computed: leading positions, of those before the call, whose values are in the cache by now.
        """

    def add_tokens(self, request_ids: Any, counts: Any, tokens: Any = None, *, computed: Any = None) -> None:
        """Growth of a whole iteration in one call. All or nothing."""

    def rewind_kv_cache(self, request_id: int, count: int) -> None:
        """Takes back the last count grown positions."""

    def store_context_blocks(self, request_id: int, tokens_computed: int) -> None:
        """
        The prompt's first tokens_computed tokens have been computed: their full blocks become reusable.
        """

    def remove_sequence(self, request_id: int, *, store: bool = True, pin: bool = False, tokens: Any = None, computed: int | None = None) -> list[int]:
        """
        Ends a sequence. tokens: the whole sequence, where growth did not give the values. computed: leading positions whose values are in the cache. Returns the pinned ids.
        """

    def pin_blocks_by_id(self, ids: Any) -> list[tuple[int, str]]:
        """Pins blocks where they are; returns (slot, tier) of each."""

    def unpin_blocks_by_id(self, ids: Any, *, tier: str | None = None) -> None:
        """
        Ends one pin of each; tier must be given where a block is pinned in both.
        """

    def get_cache_block_ids(self, request_id: int, window_size: int | None = None) -> list[list[int]]:
        """[beam][block]; -1 where the block has left the window."""

    def get_batch_cache_block_ids(self, request_ids: Any, window_size: int | None = None) -> list[list[list[int]]]:
        """get_cache_block_ids() of several requests: [request][beam][block]."""

    def copy_batch_block_offsets(self, output: Any, request_ids: Any, beam_width: int, offset: int, *, scale: int = 1, v_offset: int = 0) -> None:
        """
        Writes primary slots into an int32 array (windows, rows, 2, blocks): K = slot * scale, V = K + v_offset, -1 where the block has left the window. Request i, beam b goes to row offset + i * beam_width + b.
        """

    def blocks_to_admit(self, request: SequenceRequest, *, tokens_new_max: int = 0, chunk_tokens: int | None = None) -> list[int]:
        """
        Primary blocks, window by window, that the request alone would take of those free or cached: to be admitted now, and to grow by tokens_new_max positions.
        """

    def blocks_to_grow(self, request_ids: Any, counts: Any) -> int:
        """
        Primary blocks that add_tokens with these counts would take beyond those kept, in the window where it is most.
        """

    def free_blocks_without(self, request_ids: Any) -> list[int]:
        """
        Primary blocks, window by window, that would be there without these sequences: free or cached, and kept for nobody.
        """

    def get_token_count(self, request_id: int) -> int:
        """The sequence's length: its prompt and what it has grown by."""

    def get_num_front_blocks_removed(self, request_id: int, window_size: int | None = None) -> int:
        """Leading blocks of the sequence that have left the window."""

    def get_priority_by_block_id(self, block_id: int) -> int:
        """The priority that the block has now."""

    def take_transfers(self) -> TransferBatch:
        """
        The copies queued since the last call, in the order in which they must run.
        """

    def complete(self, ticket: int) -> None:
        """All copies of the ticket have been done."""

    def fail(self, ticket: int) -> list[int]:
        """
        The copies did not arrive: nothing of them stays findable. Returns the requests that own an undelivered block.
        """

    def advance_time(self, now_ms: int) -> None:
        """Moves the clock of retention durations. Never backwards."""

    def refresh_blocks(self) -> None:
        """Ends an iteration of the statistics."""

    def reset_reuse_state(self) -> None:
        """Nothing that is cached now will be found again."""

    def get_kv_cache_stats(self) -> KvCacheStats:
        """Slots now, and what happened so far. Resets nothing."""

    def get_request_stats(self, request_id: int) -> RequestStats:
        """
        What one live request got and grew. UnknownRequest where there is none.
        """

    def get_latest_events(self) -> list[BlockEvent]:
        """The events since the last call."""

    def digest(self) -> int:
        """64 bits that are equal on ranks that are in the same state."""

    def check_invariants(self) -> None:
        """Recounts everything; raises InvariantViolation."""

    def __repr__(self) -> str: ...

    def suspend_sequence(self, request_id: int) -> int:
        """
        Swaps a live sequence out: its blocks are copied to host and given up in primary. Returns how many copies are queued. All or nothing: OutOfBlocks (tier 'host') where the host tier has no room, BlockInFlight where a block of the sequence has not arrived.
        """

    def resume_sequence(self, request_id: int) -> int:
        """
        Brings a suspended sequence back, as it was. Returns how many copies are queued. All or nothing: OutOfBlocks, BlockInFlight where a copy to host has not ended, ValueError where one was lost.
        """

    def blocks_to_resume(self, request_id: int) -> list[int]:
        """
        Primary blocks, window by window, that resume_sequence would take of those free or cached.
        """

    def commit_and_get_block_hashes(self, request_id: int) -> list[int]:
        """
        The hashes of the sequence's full blocks whose tokens are known, from the first. Each is computed once.
        """

    def truncate_blocks(self, request: SequenceRequest, tokens_kept: int) -> int:
        """
        Forgets cached blocks of the request's prompt that lie behind its first tokens_kept tokens, the last first, up to one that something else follows or uses. Returns how many.
        """

    def decode_batch(self, request_ids: Any) -> DecodeBatch:
        """
        The sequences as a batch, for engines that grow the same ones in every step.
        """

class DecodeBatch:
    """
    Sequences that generate together, one position a step each. A step costs less than with BlockManager.add_tokens, because they are looked up again only after a sequence has ended.
    """

    def add_tokens(self, tokens: Any = None, *, computed: bool = False) -> None:
        """
        Reserves one more position for each sequence. tokens are their values, in the order of request_ids. With computed, all positions that the sequences had before this call have their values in the cache by now. Raises UnknownRequest once one of the sequences has ended.
        """

    @property
    def request_ids(self) -> list[int]:
        """The requests, in the order in which they were given."""

    def __len__(self) -> int: ...

    def __repr__(self) -> str: ...

class Prompt:
    """What a request says of its blocks, as RequestBooks takes it."""

    def __init__(self, request_id: int, tokens: Any, *, lora_id: int | None = None, salt: str | bytes | int | None = None, extra_keys: Iterable[tuple[int, int, bytes]] = (), retention: Retention | None = None, is_private: bool = False) -> None:
        """
        The arguments of SequenceRequest. is_private: no other request may find its blocks, because they depend on more than their names say.
        """

    @property
    def request_id(self) -> int:
        """The request's id."""

    @property
    def num_tokens(self) -> int:
        """Its length."""

    @property
    def is_private(self) -> bool:
        """Whether no other request may find its blocks."""

    @property
    def sequence(self) -> SequenceRequest:
        """The prompt as the block manager takes it."""

    def __repr__(self) -> str: ...

class Settled(enum.IntEnum):
    """How RequestBooks.settle() ended."""

    QUIET = 0
    """Nothing is left to do."""

    NEWS = 1
    """There are admitted requests or copies to take."""

    MUST_DRAIN = 2
    """
    Growth waits for slots that copies hold: end all copies, then settle(drained=True).
    """

class StartAnswer(enum.IntEnum):
    """Whether a request may start."""

    FITS = 0
    """It may."""

    GAINS_BY_WAITING = 1
    """Another request computes the block that it needs first."""

    LACKS_ROOM = 2
    """Its blocks are not there."""

class Admitted:
    """A request that settle() has admitted."""

    @property
    def request_id(self) -> int:
        """The request's id."""

    @property
    def tokens_reused(self) -> int:
        """Leading tokens that it found in the cache."""

    @property
    def tokens(self) -> int:
        """The length of its prompt."""

    @property
    def is_dummy(self) -> bool:
        """Whether it stands for a request."""

    @property
    def has_duration(self) -> bool:
        """Whether its retention ends at some time."""

    def __repr__(self) -> str: ...

class GotBlocks:
    """A request that has got further blocks."""

    @property
    def request_id(self) -> int:
        """The request's id."""

    @property
    def tokens_reused(self) -> int | None:
        """
        Leading tokens that it found in the cache when it was admitted; None when it grew.
        """

    @property
    def is_dummy(self) -> bool:
        """Whether it stands for a request."""

    def __repr__(self) -> str: ...

class Starting:
    """One pass of a capacity scheduler over the requests that wait."""

    @property
    def free(self) -> list[int]:
        """Blocks, by window, that are left for the requests asked about next."""

    @property
    def tokens_found(self) -> int:
        """Tokens in whole cached blocks of the request asked about last."""

    def fits(self, blocks: Any) -> bool:
        """
        Whether so many are left for the request asked about last, instead of those that were found for it.
        """

    def charge(self) -> None:
        """The request asked about last starts."""

    def __repr__(self) -> str: ...

class RequestBooks:
    """
    Between the calls of a server's loop and the block manager: single calls become a batch, and wait for what the loop says late.
    """

    def __init__(self, manager: BlockManager, *, chunk_tokens: int | None = None, tokens_ahead: int | None = None) -> None:
        """
        chunk_tokens: of a prompt in one step, where prompts are reserved in chunks. tokens_ahead: positions that may be reserved then beyond those known to be computed.
        """

    def __repr__(self) -> str: ...

    def add(self, prompt: Prompt, tokens_new_max: int, is_dummy: bool = False) -> None:
        """Notes a request, for the next settle()."""

    def add_token(self, request_id: int, detach_swa_front_blocks: bool = True) -> None:
        """
        Notes one more position of a request. A dummy's is settled at once, because its refusal is expected from this call.
        """

    def look(self, request_id: int, position: int) -> bool:
        """
        The request's position may have moved. Returns whether more chunks of its prompt will come.
        """

    def begin_at(self, request_id: int, position: int) -> None:
        """The model begins there: behind what somebody loads."""

    def settle(self, drained: bool = False) -> Settled:
        """
        Admits the noted requests in one batch, then grows the others. drained: all copies have ended.
        """

    def take_admitted(self) -> list[Admitted]:
        """The requests that were admitted since the last call."""

    def note_who_gets_blocks(self) -> None:
        """From now on, for take_who_got_blocks()."""

    def take_who_got_blocks(self) -> list[GotBlocks]:
        """
        The requests that were admitted, or grew by a block, since the last call.
        """

    def may_have_copies(self) -> bool:
        """
        Whether copies are queued; also true while another thread works on the manager.
        """

    def report(self, request_id: int, position: int) -> None:
        """
        A batch with a chunk of its prompt has ended. position: where the request stands. It may be unknown by now.
        """

    def filled(self, request_id: int, tokens: int) -> int:
        """
        Leading positions whose values are in the cache, as far as is known. tokens: those that the request has by now.
        """

    def store(self, request_id: int, tokens: int) -> None:
        """
        Stores what is computed of the prompt, without a report. tokens: those that the request has by now.
        """

    def rewind(self, request_id: int, count: int) -> None:
        """Takes back the last count grown positions."""

    def remove(self, request_id: int, tokens: int | None) -> int:
        """
        Ends a request that has so many tokens by now; with None it keeps nothing for others. Returns how many of its first tokens end() needs instead; 0 if it has ended.
        """

    def end(self, request_id: int, tokens: Any) -> None:
        """Ends a request, and keeps these tokens of it for others."""

    def keep_all_private(self) -> None:
        """Nothing that live requests have computed, or will, is kept for others."""

    def holds(self, request_id: int) -> bool:
        """Whether the request was admitted, and not removed."""

    def knows(self, request_id: int) -> bool:
        """The same, or it is noted."""

    def is_private(self, request_id: int) -> bool:
        """Whether nothing of it is kept for others."""

    @property
    def is_idle(self) -> bool:
        """Whether only dummies are live."""

    @property
    def live(self) -> list[int]:
        """The ids of the requests that were admitted and not removed, ascending."""

    @property
    def changes(self) -> int:
        """While this number stays, all live requests keep the same blocks."""

    def blocks_to_complete(self, request_ids: Any) -> list[int]:
        """
        Blocks, by window, that these requests take until their last tokens, besides those held or kept for them.
        """

    def start(self, free: Any) -> Starting:
        """Begins a scheduler's pass with so many blocks, by window."""

    def ask(self, starting: Starting, prompt: Prompt, tokens_new_max: int) -> StartAnswer:
        """
        Whether the request may start and then grow by so many tokens. Charges nothing.
        """

class PinnedArray:
    """Pinned host memory with a shape."""

    @property
    def address(self) -> int:
        """The address of the first byte, on the host."""

    @property
    def device_address(self) -> int:
        """The address of the same byte for the device."""

    @property
    def nbytes(self) -> int:
        """Size of the contents."""

    @property
    def shape(self) -> list[int]:
        """The number of elements in each dimension."""

    @property
    def dtype(self) -> str:
        """The type of an element, as numpy names it."""

    @property
    def array(self) -> numpy.typing.NDArray[Any]:
        """A live view."""

    def __repr__(self) -> str: ...

class DeviceArray:
    """Device memory with a shape."""

    @property
    def address(self) -> int:
        """The address of the first byte, on the device."""

    @property
    def nbytes(self) -> int:
        """Size of the contents."""

    @property
    def shape(self) -> list[int]:
        """The number of elements in each dimension."""

    @property
    def dtype(self) -> str:
        """The type of an element, as numpy names it."""

    def __repr__(self) -> str: ...

class Device:
    """A GPU, or a simulated one. Calls that take a stream return at once."""

    @property
    def name(self) -> str:
        """The name of the GPU, or of the simulation."""

    @property
    def simulated(self) -> bool:
        """
        Whether the device is simulated: streams are threads, and its memory is the host's.
        """

    @property
    def has_kernels(self) -> bool:
        """Whether this build has the kernels that this device needs."""

    @property
    def multiprocessors(self) -> int:
        """The number of multiprocessors."""

    @property
    def has_batched_copy(self) -> bool:
        """Whether the driver takes many copies in one call."""

    def __repr__(self) -> str: ...

    def create_stream(self) -> int:
        """
        Returns a handle. Calls that take one also accept a torch stream's number.
        """

    def destroy_stream(self, stream: int) -> None:
        """Gives back a stream that create_stream() made."""

    def synchronize(self, stream: int) -> None:
        """
        Blocks this thread until the stream has done everything that was enqueued on it.
        """

    def create_event(self) -> int:
        """Returns a handle for record(), done(), wait() and make_wait()."""

    def destroy_event(self, event: int) -> None:
        """Gives the event back."""

    def record(self, event: int, stream: int) -> None:
        """Puts the event behind everything that is on the stream so far."""

    def done(self, event: int) -> bool:
        """Whether the stream is past the event."""

    def wait(self, event: int) -> None:
        """Blocks this thread until the stream is past the event."""

    @property
    def event_waits(self) -> int:
        """How many of these waits have begun, in all threads."""

    def make_wait(self, stream: int, event: int) -> None:
        """
        Makes whatever is enqueued on the stream from now on wait for the event. Returns at once.
        """

    def close_gate(self, stream: int) -> int:
        """
        Holds whatever is enqueued on the stream from now on. Returns a handle.
        """

    def open_gate(self, gate: int) -> None:
        """Releases the stream that close_gate() holds."""

    def pinned(self, shape: Sequence[int], dtype: str) -> PinnedArray:
        """Pinned memory of exactly this size, zeroed."""

    def empty(self, shape: Sequence[int], dtype: str) -> DeviceArray:
        """Device memory, freed with the object."""

    def outside_captures(self, work: Callable[[], Any]) -> Any:
        """
        Returns what `work` returns. Its calls into the driver, to pin memory, say, are allowed while another thread captures a graph, and leave that graph alone.
        """

    def download(self, array: DeviceArray, stream: int) -> numpy.typing.NDArray[Any]:
        """Returns the contents as a new numpy array. Waits for the stream."""

    def upload(self, array: DeviceArray, values: numpy.typing.NDArray[Any], stream: int) -> None:
        """Fills the array with these values. Waits for the stream."""

    def copy(self, dst: int, src: int, nbytes: int, stream: int) -> None:
        """Copies nbytes bytes. The source is read when the copy executes."""

    def copy_batch(self, dst: Any, src: Any, nbytes: Any, order: str, stream: int) -> None:
        """
        Makes many copies. order: 'stream' reads the sources in stream order, 'any' perhaps earlier.
        """

    def capture_copies(self, dst: Any, src: Any, nbytes: Any) -> int:
        """
        Makes a graph of these copies. Each launch reads the sources anew, when it executes.
        """

    def launch_graph(self, graph: int, stream: int) -> None:
        """Enqueues the graph."""

    def destroy_graph(self, graph: int) -> None:
        """Gives the graph back."""

    def fill_words(self, address: int, count: int, value: int, stream: int) -> None:
        """Runs a kernel that writes count words of 32 bits."""

    def gather_host_rows(self, dst: DeviceArray, table: PinnedArray, copy_index: PinnedArray, rows: int, width: int, scale: Sequence[int], v_offset: Sequence[int], stream: int) -> None:
        """
        Runs upstream's racy V2 kernel, for control arms. It reads table and copy_index when it runs.
        """

    def digest_ring(self, stream: int, pools: list[tuple[int, int, int, int]], places: int, key: int) -> DigestRing:
        """
        A ring for digests of so many blocks at once. Each pool is an address, the bytes of a block there, the number of layers that lie in it one behind the other, and in how many parts each is digested. A block has the same slot in each pool.
        """

class DigestRing:
    """
    Digests of blocks as the stream's work so far has left them, in a ring of pinned memory. Not for two threads at once.
    """

    @property
    def free(self) -> int:
        """Blocks for which there is room."""

    def send(self, slots: list[int]) -> None:
        """
        Runs a kernel that digests the blocks in these slots. There must be room.
        """

    def arrived(self) -> list[list[bytes]]:
        """
        What has arrived since the last call: for each that was sent, 8 bytes of each layer of each block. They and the layer's bytes add up to its digest.
        """

    def done(self) -> bool:
        """Whether the device is done with the memory."""

    def __repr__(self) -> str: ...

def open_device(name: str = 'auto', seed: int = 0) -> Device:
    """
    Opens 'cpu' (simulated), 'cuda', 'cuda:N', or 'auto': the first GPU if there is one, else 'cpu'.
    """

class PlaceOfThread:
    """Where each thread enqueues work."""

    def __init__(self, find_torch: Callable[[], tuple[Callable[[], int], Callable[[int], int], Callable[[int], Device]]]) -> None:
        """
        find_torch: called once, by the first thread that has named no place. Returns what tells torch's current device, the current stream of a device, and the device behind a number.
        """

    def now(self) -> tuple[Device, int]:
        """The place that this thread has named, or else torch's."""

    @staticmethod
    def name(place: tuple[Device, int] | None) -> tuple[Device, int] | None:
        """
        This thread enqueues there from now on. Returns what it had named before.
        """

    def __repr__(self) -> str: ...

class StreamMarks:
    """
    Events behind the work of streams, one for each: a writer that waits for them may overwrite what was read up to there. Not for two threads at once.
    """

    def __init__(self, place: PlaceOfThread) -> None: ...

    def record(self) -> None:
        """
        Moves the mark of this thread's current stream behind everything that is on it.
        """

    def done(self) -> bool:
        """Whether every stream is past its mark."""

    def wait(self) -> float:
        """
        Waits until every stream is past its mark. Returns the seconds; 0 if all were.
        """

    @property
    def streams(self) -> list[int]:
        """Every stream that has a mark."""

    def __repr__(self) -> str: ...

def copy_pages(table: Any, rows: Any, own: Any) -> None:
    """
    Copies the first planes of these rows of a table (pools, rows, 2, blocks) into the first rows of `own`, in their order. Raises ValueError, with nothing copied, if they do not fit.
    """

class StagerStats:
    """Counts since the stager was made."""

    @property
    def mode(self) -> str:
        """'snapshot' or 'early_copy', as chosen for this device and table."""

    @property
    def ships(self) -> int:
        """Shipments so far."""

    @property
    def staged_bytes(self) -> int:
        """Bytes of block offsets that were staged."""

    @property
    def late_copies(self) -> int:
        """Early copies that came too late, because others used the copy engine."""

    @property
    def ring_waits(self) -> int:
        """Shipments that waited for a slot."""

    @property
    def wait_us(self) -> float:
        """The total time that they waited."""

    def __repr__(self) -> str: ...

class OffsetStager:
    """
    Ships block offsets. When a shipment returns, the caller may overwrite everything that it passed. Any thread may ship, on any stream.
    """

    def __init__(self, *, layout: str, num_pools: int, rows_max: int, blocks_max: int, device: Device | str = 'auto', mode: str = 'auto', slots: int = 3, index_scales: Sequence[int] | None = None, kv_offset: Sequence[int] | None = None) -> None: ...

    def ship(self, dst: Any, table: Any, rows: Any, *, stream: int, width: int | None = None, lent: bool = False) -> None:
        """
        Row rows[i] of the table goes to row i of dst; the rest of dst stays untouched. dst: int32 (pools, n, 2, blocks), a CUDA tensor or a DeviceArray. table: a numpy array or a CPU tensor of the same kind. rows: numbers, or how many from the first on. lent: the caller leaves the table as it is until `settle` returns, so this call need not wait until it is read.
        """

    def settle(self) -> None:
        """Waits until the caller may write again to the tables that it has lent."""

    def stats(self) -> StagerStats:
        """Counts of shipments and of waits."""

    def close(self) -> None:
        """
        Waits for pending shipments and gives the memory back. Later shipments raise.
        """

    def __enter__(self) -> OffsetStager: ...

    def __exit__(self, kind: object | None, error: object | None, trace: object | None) -> None: ...

    def __repr__(self) -> str: ...

class CopyEngine:
    """Block copies that are ordered against the streams that compute."""

    def __init__(self, device: Device, *, transfers_max: int = 64) -> None: ...

    def submit(self, dst: Any, src: Any, nbytes: Any, *, after: int | None = None, before: int | None = None, stream: int, order: str = 'stream') -> int:
        """
        after: an event behind the writers of the sources, or behind the last users of the destinations. before: a stream that will use the destinations. Returns a number for done() and wait().
        """

    def done(self, transfer: int) -> bool:
        """Whether every byte of the transfer has arrived."""

    def wait(self, transfer: int) -> None:
        """Blocks this thread until every byte of the transfer has arrived."""

    @property
    def waits(self) -> int:
        """Submissions that waited because transfers_max were in flight."""

    def __repr__(self) -> str: ...

class DeviceTable:
    """Where a tensor that attention reads is, and how it is laid out."""

    def __init__(self, dst: Any, device: Device) -> None:
        """
        Raises TypeError or ValueError unless dst is int32 (pools, rows, 2, blocks) on the device.
        """

    @property
    def address(self) -> int:
        """Of its first byte."""

    @property
    def pool_stride(self) -> int:
        """Elements from one pool to the next."""

    @property
    def rows(self) -> int:
        """Of a pool."""

    @property
    def blocks(self) -> int:
        """Of a plane of a row."""

    def __repr__(self) -> str: ...

class OffsetLaunch:
    """V2's launch, from a live table and an index that others write."""

    def __init__(self, stager_of: Callable[[Any, Any, Any], OffsetStager | None], fuse: Any) -> None:
        """
        stager_of: the stager of a table, its scales and its V offsets, if it has one. fuse: while it is blown, nothing is shipped.
        """

    @overload
    def __call__(self, input: Any, output: Any, copy_index: Any, index_scales: Any, kv_offset: Any, stream: Any) -> Any:
        """
        When this returns, all arguments may be written again. Calls `otherwise` with what raises the failure, or None, and the same arguments, if nothing was shipped.
        """

    @overload
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """With other arguments it calls `unknown`."""

    def note_launch(self, address: int) -> None:
        """A launch has been made to the output at this address."""

    def take_launch(self, address: int) -> bool:
        """
        Whether the last launch went to the output at this address, and nobody has asked since.
        """

    def __repr__(self) -> str: ...

class PoolSelection:
    """Where a copy goes."""

    def copy_(self, source: Any, non_blocking: bool = False) -> PoolSelection:
        """
        When this returns, the source may be written again, or after `begin` if the table is lent.
        """

    def __repr__(self) -> str: ...

class PoolCopies:
    """
    A device tensor to which V1 copies its table pool by pool. Whatever else is copied goes to `otherwise(index, source, non_blocking)` of a derived class.
    """

    def __init__(self, tensor: Any, table: Any, stager: OffsetStager | None, stream_of: Callable[[], int], fuse: Any, *, lends: bool) -> None:
        """
        It has begun. fuse: what counts faults in a row. lends: the code that fills the table calls `begin` first.
        """

    @property
    def tensor(self) -> Any:
        """Where the copies go."""

    @property
    def table(self) -> Any:
        """Where they come from."""

    @property
    def lends(self) -> bool:
        """Whether a copy may read the table until `begin` is called."""

    @property
    def failed(self) -> bool:
        """In this call: nothing more is taken."""

    def fail(self) -> None:
        """Take nothing more in this call."""

    def begin(self) -> None:
        """
        Call before the table is filled: when this returns, nothing reads it any more.
        """

    def end(self) -> None:
        """
        Call behind upstream's method: unless this call has failed, the fuse counts from 0 again.
        """

    @property
    def has_taken(self) -> bool:
        """Whether copies were taken and not shipped."""

    @property
    def taken(self) -> tuple[int, int, int | None]:
        """
        The pools that were taken and not shipped, their rows, and their blocks if not all.
        """

    def drop_taken(self) -> None:
        """They have been copied."""

    @property
    def shipped(self) -> tuple[int, int | None] | None:
        """Rows, and blocks if not all, of this call's shipment."""

    def raise_failure(self) -> None:
        """Raises what has kept the last copy from being taken."""

    def __getitem__(self, index: Any, /) -> PoolSelection: ...

    def __repr__(self) -> str: ...

class PoolCopiesByTensor:
    """
    What stands in the place of each device tensor, made once for it and a table. It keeps neither of them alive.
    """

    def __init__(self, make: Callable[[Any, Any], PoolCopies]) -> None:
        """make: for a tensor and a table."""

    def __call__(self, tensor: Any, table: Any) -> Any: ...

    def __repr__(self) -> str: ...

class CopyingCall:
    """Calls of V1's method, with what stands in the place of its tensor."""

    def __init__(self, copies_of: PoolCopiesByTensor, fuse: Any, *, blocking: Callable[[Callable[[], None] | None, Any, Any], Any], finish: Callable[[Any], None], finish_every: bool) -> None:
        """
        copies_of: what stands in the tensor's place. fuse: while it is blown, nothing does. blocking: what does then, and where ours fails; it is called with what raises the failure, or None, the tensor and the table. finish: called behind the method if it has left copies, or every time.
        """

    def __call__(self, original: Callable[..., Any], owner: Any, tensor: Any, table: Any, others: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """
        Calls the original with the owner, what stands in the tensor's place, and the others.
        """

    def __repr__(self) -> str: ...

class HostPool:
    """The memory of the host tier: pinned slots, one after the other."""

    def __init__(self, device: Device, *, host_bytes: int, block_bytes: int, tail_bytes: int = 0, piece_bytes_max: int = 1073741824, page_bytes: int = 4096, numa_node: int | None = None, huge_pages: bool = True, shared: bool = False) -> None: ...

    @property
    def address(self) -> int:
        """The address of slot 0."""

    @property
    def slots(self) -> int:
        """The number of slots."""

    @property
    def block_bytes(self) -> int:
        """The part of a slot that the device copies."""

    @property
    def slot_bytes(self) -> int:
        """The distance from one slot to the next."""

    @property
    def bytes(self) -> int:
        """The number of bytes mapped."""

    @property
    def bytes_pinned(self) -> int:
        """How many of the mapped bytes are registered with the device."""

    @property
    def pieces(self) -> int:
        """The number of registrations. No slot lies across two."""

    @property
    def numa_bound(self) -> bool:
        """Whether the memory lies on the NUMA node that was asked for."""

    @property
    def descriptor(self) -> int:
        """
        The file descriptor of the pages if another process may map them, or -1.
        """

    @property
    def at_same_address_on_device(self) -> bool:
        """
        Whether the device sees the memory at the host's address, as kernels need it.
        """

    def digests(self, slots: Any, key: int) -> list[int]:
        """
        A digest of each block's content, in 64 bits. Nothing may write the slots meanwhile.
        """

    def close(self) -> None:
        """
        Gives the memory back. Pieces that the device does not let go of are kept.
        """

    def abandon(self) -> None:
        """Keeps the memory for good, because the device may still write to it."""

    def __repr__(self) -> str: ...

class EndedTransfer:
    """How a transfer ended."""

    @property
    def job(self) -> int:
        """The number that was passed to enqueue()."""

    @property
    def error(self) -> str:
        """What went wrong. Empty: every byte has arrived."""

    @property
    def bytes(self) -> int:
        """How many bytes were to be copied."""

    @property
    def seconds(self) -> float:
        """The time from submission until its end was noticed."""

    def __repr__(self) -> str: ...

class LaneStats:
    """Counts since the lane was made."""

    @property
    def queued(self) -> int:
        """Transfers that wait now."""

    @property
    def in_flight(self) -> int:
        """Transfers that the device is running now."""

    @property
    def submitted(self) -> int:
        """Transfers that were given to the device."""

    @property
    def failed(self) -> int:
        """Transfers of which at least one byte did not arrive."""

    @property
    def first_error(self) -> str:
        """The error of the first failed transfer."""

    @property
    def broken(self) -> bool:
        """Whether the lane has given up, after too many failures in a row."""

    @property
    def by_kernel(self) -> int:
        """Submitted transfers that went by kernel."""

    def __repr__(self) -> str: ...

class Mark:
    """A point in a stream. It is valid for as long as this object lives."""

    def __repr__(self) -> str: ...

class Marks:
    """
    Events that mark points in streams. None stands for two points at once.
    """

    def __init__(self, device: Device, *, marks_max: int) -> None: ...

    def set(self, stream: int) -> Mark:
        """Marks the end of everything on the stream so far."""

    @property
    def created(self) -> int:
        """
        How many events were made. Those of marks that are gone are used again.
        """

    def __repr__(self) -> str: ...

class TransferLane:
    """
    Runs the transfers of one direction, with a thread and streams of its own.
    """

    def __init__(self, device: Device, *, order: str, queue_max: int = 256, in_flight_max: int = 32, failures_max: int = 3, streams: int = 4, kernel_sms: int = 0) -> None:
        """
        streams: how many share the blocks of a transfer by DMA. kernel_sms: multiprocessors for copies by kernel; 0 copies by DMA.
        """

    def enqueue(self, job: int, dst: Any, src: Any, nbytes: Any, *, after: Mark | None = None) -> Literal['taken', 'full', 'broken', 'closed']:
        """
        job: the caller's number for the transfer, which may not be in the lane already. The lane keeps the transfer only if it answers 'taken'.
        """

    def take_ended(self) -> list[EndedTransfer]:
        """
        Returns each ended transfer once, in the order in which the lane took them.
        """

    def state(self, job: int) -> Literal['queued', 'in flight', 'ended here'] | None:
        """
        None: the lane never took the transfer, or take_ended() has returned it.
        """

    def wait(self, job: int, limit_s: float) -> bool:
        """
        Waits while the transfer is queued or in flight here. False: the limit has passed.
        """

    def close(self, limit_s: float) -> bool:
        """
        False: the device has not ended all transfers, so the memory that it was given must be kept.
        """

    def stats(self) -> LaneStats:
        """Counts of transfers, and the first error."""

    def __repr__(self) -> str: ...

def crc32c(bytes: Any, starts: Any, length: int) -> list[int]:
    """
    The CRC-32C of each range of `length` bytes that begins at one of `starts`.
    """

def fail_operation(device: Device, ordinal: int) -> None:
    """
    Makes the ordinal-th operation enqueued from now on fail. For the simulated device.
    """

def unplug(device: Device) -> None:
    """
    Makes every operation that has not begun fail, for ever. For the simulated device.
    """

class TurnLockStats:
    """Counts since the lock was made."""

    @property
    def turns(self) -> int:
        """How often the lock went from free to held."""

    @property
    def waits(self) -> int:
        """Calls that had to queue."""

    @property
    def wait_us(self) -> float:
        """The total time that they waited."""

    @property
    def queued(self) -> int:
        """Calls that are waiting now."""

    @property
    def depth(self) -> int:
        """How often the holder holds the lock now. 0: nobody holds it."""

    @property
    def holder(self) -> int:
        """The thread that holds it, as `threading.get_ident` has it, or 0."""

    def __repr__(self) -> str: ...

class TurnLock:
    """
    A recursive lock that serves first come, first served. Callers wait without the GIL.
    """

    def __init__(self) -> None: ...

    def guarded(self, call: Callable[..., Any], stalled: Callable[[], Any], stall_s: float) -> Callable[..., Any]:
        """
        What makes this call while it holds the lock. As a class attribute it binds like any method. While it waits for the lock, it calls `stalled` every stall_s.
        """

    def stats(self) -> TurnLockStats:
        """Counts of turns and waits."""

    def __repr__(self) -> str: ...

class TierClaim:
    """
    Slots that the caller must fill, for the blocks of a sequence from `first` on.
    """

    @property
    def first(self) -> int:
        """The number of the first block that was claimed."""

    @property
    def slots(self) -> list[int]:
        """The slots for that block and those after it."""

    @property
    def declined(self) -> bool:
        """
        Whether blocks are missing because they are not worth pushing others out.
        """

    def __repr__(self) -> str: ...

class TierIndexStats:
    """Slots now, and blocks evicted since the index was made."""

    @property
    def slots(self) -> int:
        """All slots of the tier."""

    @property
    def free(self) -> int:
        """Slots that hold nothing."""

    @property
    def owned(self) -> int:
        """Slots that are being filled, or pinned."""

    @property
    def evicted(self) -> int:
        """Blocks that made room for others, since the index was made."""

    @property
    def sequences(self) -> int:
        """Open sequences."""

    def __repr__(self) -> str: ...

class TierIndex:
    """
    The index of a tier that another program fills and reads. Each call costs only what is new.
    """

    def __init__(self, slots: int, tokens_per_block: int, *, hash_bits: int = 64, admission: str = 'all') -> None:
        """
        hash_bits: fewer than 64 force collisions, for tests. admission says which blocks may push others out: 'all', or 'adaptive', which admits only blocks that were asked for before whenever that would find more.
        """

    @property
    def slots(self) -> int:
        """All slots of the tier."""

    @property
    def tokens_per_block(self) -> int:
        """Tokens that a block holds."""

    def open(self, *, lora_id: int | None = None, salt: str | bytes | int | None = None, extra_keys: Iterable[tuple[int, int, bytes]] = ()) -> int:
        """Opens a sequence without tokens. Returns its number."""

    def extend(self, sequence: int, tokens: Any) -> None:
        """
        Adds the tokens of the sequence's next whole blocks, as an array or a list like SequenceRequest's.
        """

    def close(self, sequence: int) -> None:
        """Closes the sequence. Slots that it has claimed may still be committed."""

    def held(self, sequence: int) -> int:
        """
        How many of the sequence's leading blocks can be read. They become the newest.
        """

    def claim(self, sequence: int, end: int, *, known: int = 0, priorities: Any = (), reused: bool = False) -> TierClaim | None:
        """
        Claims slots for the blocks that are missing among the first `end`, as far as there is room. known: how many leading blocks were here once, or are elsewhere; they take free slots only. priorities: those of the last blocks before `end`. reused: somebody had the blocks before and wants them again, so they may push others out whatever admission is. None while another claim fills one of them.
        """

    def commit(self, slots: Any) -> None:
        """The slots of one claim are filled, so its blocks can be found."""

    def abandon(self, slots: Any) -> None:
        """The slots of one claim will not be filled."""

    def set_aside(self, slots: Any) -> None:
        """
        The blocks of one claim will not be filled, as if abandoned. Their slots may still be written, so they stay until they are abandoned.
        """

    def pin(self, sequence: int, first: int, end: int) -> list[int]:
        """
        Pins blocks first to end, as far as they can be read, and returns their slots. They stay until they are unpinned.
        """

    def unpin(self, slots: Any) -> None:
        """Ends one pin of each slot."""

    def condemn(self, slots: Any) -> None:
        """
        These pinned slots do not hold what was stored there. Nobody reads them again, nor the blocks that follow them.
        """

    def drop(self) -> None:
        """
        Makes the index forget every block that is here or on its way. Pinned slots stay until they are unpinned.
        """

    def stats(self) -> TierIndexStats:
        """Slots now, and evictions so far."""

    def check_invariants(self) -> None:
        """Recounts everything. Raises InvariantViolation if something is wrong."""

    def __repr__(self) -> str: ...

class FlightRing:
    """The last notes of a process; trtllm_kvfix.metrics.flight reads them."""

    def __init__(self, memory: numpy.typing.NDArray[Any]) -> None:
        """memory: zeroed bytes, a whole number of slots."""

    SHIPPED: int = 7

    def note(self, kind: int, text: bytes, a: int = 0, b: int = 0, c: int = 0, d: int = 0) -> None:
        """Overwrites the oldest note. Text that is too long is cut off."""

    def serve_process(self) -> None:
        """Native code notes here from now on."""

    def move_to(self, memory: numpy.typing.NDArray[Any]) -> None:
        """Continues in that memory, with what has been noted so far."""

    def __repr__(self) -> str: ...

class FillBooks:
    """
    What each slot was filled with, and the looks that find out whether complete blocks have changed. For one thread alone.
    """

    def __init__(self, tokens_per_block: int, layers: int, *, due_max: int, step_looks_max: int, blocks_per_step: int, seed: int, knows_all: bool = True) -> None:
        """
        layers: digests of a block. due_max: looks that may wait. step_looks_max: in a step, at blocks to which something has happened. blocks_per_step: others. knows_all: no block leaves the device and comes back unheard.
        """

    def moved(self, kind: str, source: int, target: int, tokens: int) -> None:
        """
        A copy of the leading tokens of a block has been enqueued: 'onboard', 'offload' or 'copy'.
        """

    def admitted(self, request_id: int, slots: Any, reused: int, part_is_copied: bool = False) -> list[tuple[int, int | None, int]]:
        """
        A request has its blocks, and takes the first `reused` positions as they are. part_is_copied: a block inside which they end is a copy of its own. Returns blocks that are reused and that nobody was seen to fill so far: slot, who began, and who reuses it.
        """

    def replaced(self, request_id: int, place: int, slot: int) -> list[tuple[int, int | None, int]]:
        """
        An equal block of another takes the place of its own; -1: a window has passed it. Returns what admitted() does.
        """

    def regrown(self, request_id: int, place: int, slot: int) -> None:
        """
        It has given back a block that it had not begun, and got another one for the same positions.
        """

    def shrunk(self, request_id: int, blocks: int) -> None:
        """It has given back the blocks behind these."""

    def left(self, request_id: int, places_known: int) -> None:
        """
        It lets go of its slots. Only of its leading blocks it is known where they were.
        """

    def came_back(self, request_id: int, slots: Any) -> None:
        """It has its blocks again, perhaps in other slots."""

    def forget(self, slots: Any) -> None:
        """What they hold may change unheard."""

    def hold(self, slots: Any, numbers: Any = ()) -> None:
        """
        One more active request has these slots. numbers: those of its blocks, where they move unheard.
        """

    def let_go(self, slots: Any, numbers: Any = ()) -> None:
        """
        One less has them. What none has is forgotten, since it may change unheard, or kept by its number.
        """

    def grown(self, request_id: int, slots: Any) -> None:
        """It has got further blocks, which a step or a load will write."""

    def loaded(self, request_id: int, begin: int, end: int) -> None:
        """
        A load that wrote these positions is over; or steps wrote them, and they are kept for certain.
        """

    def went_on(self, parts: Iterable[tuple[int, int, int, Any]], holds: bool = False) -> None:
        """
        The same of many requests, from one position to another; then each has got further blocks in these slots. holds: and holds them.
        """

    def step(self, number: int, digests: Iterable[Iterable[bytes]], writes: Iterable[tuple[int, Any | None, int, int, int]], free: int) -> tuple[list[tuple[int, list[int], str, int | None, int | None, int, int]], list[int]]:
        """
        Digests have arrived, and a step has been enqueued. A write is a request, its slots from that of the first written position on or None where they are known, the first position, the one behind the last, and the one below which all are kept for certain. Returns what arrived() does, and the slots whose digests are wanted behind the step, at most `free`.
        """

    def arrived(self, digests: Iterable[Iterable[bytes]]) -> list[tuple[int, list[int], str, int | None, int | None, int, int]]:
        """
        As DigestRing gives them. Returns blocks that are not what was filled: slot, numbers of the layers that differ, occasion, who filled it, who reuses it, the step behind which it was right, and that behind which it was not.
        """

    def released(self, request_id: int, free: int) -> list[int]:
        """
        The request has ended, or waits again. Returns slots whose digests are wanted at once, at most `free`.
        """

    def lost(self, request_id: int) -> None:
        """It has ended unheard: its slots may be others' by now."""

    def slots_of(self, request_id: int, first: int = 0) -> list[int]:
        """The slots of a live request, from that of its block `first` on."""

    def has_changed(self, slot: int) -> bool:
        """
        Whether the block there was not what was filled when it was last looked at.
        """

    @property
    def compared(self) -> dict[str, int]:
        """Looks that were compared, by occasion."""

    @property
    def taken(self) -> int:
        """Blocks whose first digest was taken."""

    @property
    def missed(self) -> int:
        """Looks that were due, and came too late or never."""

    def __repr__(self) -> str: ...

class ReplayReuse:
    """Counts of prompt tokens, or of prompt blocks, since the beginning."""

    @property
    def reused(self) -> int:
        """Reused, from primary or host."""

    @property
    def host(self) -> int:
        """Reused from host."""

    @property
    def remote(self) -> int:
        """Reused from host, where the store behind it had just delivered them."""

    @property
    def computed(self) -> int:
        """Computed, because nothing was reused."""

    def __repr__(self) -> str: ...

class ReplayTally:
    """
    What a replay has counted. trtllm_kvfix.tools.replay.outcome explains the terms.
    """

    @property
    def iterations(self) -> int:
        """Iterations so far, quiet ones included."""

    @property
    def finished(self) -> int:
        """Requests that ended."""

    @property
    def iterations_admitting(self) -> int:
        """Iterations that admitted a request."""

    @property
    def deferred(self) -> int:
        """Times that a request was offered and had to wait."""

    @property
    def overshoots(self) -> int:
        """Iterations over their budget."""

    @property
    def tokens_over(self) -> int:
        """Tokens over the budget, in all iterations."""

    @property
    def tokens_over_max(self) -> int:
        """The most tokens over the budget in one iteration."""

    @property
    def promises(self) -> int:
        """Admissions whose reuse had been estimated."""

    @property
    def promises_broken(self) -> int:
        """Admissions whose reuse differed from the estimate."""

    @property
    def tokens_short(self) -> int:
        """Tokens whose reuse was promised but not delivered."""

    @property
    def tokens(self) -> ReplayReuse:
        """Of prompts."""

    @property
    def blocks(self) -> ReplayReuse:
        """Of prompts."""

    def __repr__(self) -> str: ...

class ReplayRequests:
    """The requests of a trace; each is named by its index."""

    def __init__(self, base: int, span: int, tokens_per_symbol: int) -> None:
        """
        How prompts are spelled: a symbol s stands for the tokens base + (s + k) % span, k counted from 0.
        """

    def add(self, symbols: Any, *, is_spelled: bool, prompt_length: int, answer: Any, timestamp_ms: float, blocks_needed: int, lora_id: int | None = None, salt: str | bytes | int | None = None) -> None:
        """
        symbols: those of the prompt, or its tokens if it is not spelled. blocks_needed: the most that it needs while it runs.
        """

    def prompt(self, index: int) -> list[int]:
        """The tokens of the prompt."""

    def __repr__(self) -> str: ...

class ReplayScheduler:
    """
    The scheduler that docs/replay.md describes. Only one thread may use it at a time.
    """

    def __init__(self, manager: BlockManager, requests: ReplayRequests, waiting: Any, *, blocks_primary: int, max_batch_size: int, max_num_tokens: int, tokens_per_iteration: int, iteration_ms: float, one_by_one: bool) -> None:
        """waiting: indices, in the order in which they are offered."""

    def advance(self, iterations_max: int, tier: object = None) -> bool:
        """
        Runs until requests have ended, for at most iterations_max iterations. Without a tier it releases the GIL. False once no request waits or runs. tier: a HostTier of trtllm_kvfix.tools.replay, the same in every call.
        """

    @property
    def tally(self) -> ReplayTally:
        """What has been counted so far."""

    def __repr__(self) -> str: ...
