"""The model engine and the sampler of a scenario: they prepare attention metadata as upstream does and compute nothing.

`forward` enqueues a read of the device's block offsets behind everything that `prepare` has enqueued, as attention
would. When the host waits for the batch, that read has run, and what it found is compared with the bound books.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from integration.upstream import late
from integration.upstream.contents import Contents, Step, announced
from trtllm_kvfix.staging import current_place

FIRST_GENERATED = 100_000


@dataclass
class Batch:
    """One forward pass was given this."""

    steps: list[Step]
    snapshot: Any  # on the device, filled late
    expected: dict[tuple[int, int], list[int]]  # (pool, row) -> offsets that the books said at the launch
    transfers: list[tuple[str, int, int, int]] = field(default_factory=list)
    rows: dict[int, int] = field(default_factory=dict)  # request -> first row
    loads: list[Callable[[], None]] = field(default_factory=list)
    end: int = 0  # the event behind it, where streams carry it out


@dataclass
class Findings:
    """The scenario saw this."""

    batches: list[dict[str, Any]] = field(default_factory=list)
    wrong_rows: list[str] = field(default_factory=list)
    over_budget: list[int] = field(default_factory=list)
    moves: int = 0


class Engine:
    """The part of a model engine that the loops ask for."""

    def __init__(self, manager: Any, metadata: Any, budget: int, beam_width: int, *, chunked: bool) -> None:
        self.manager = manager
        self.attn_metadata = metadata
        self.budget = self.max_num_tokens = budget
        self.attn_runtime_features = SimpleNamespace(chunked_prefill=chunked)
        self.beam_width = beam_width
        self.contents = Contents(manager.tokens_per_block)
        self.findings = Findings()
        self.arriving: list[Callable[[], None]] = []  # what a connector writes on the stream before the next batch
        self.is_warmup = False
        self.iter_counter = 0
        self.enable_attention_dp = False
        self.enable_spec_decode = self.is_spec_decode = False
        self.spec_config = None
        self.kv_cache_dtype_byte_size = 2
        self.iter_states: dict[str, int] = {"num_ctx_tokens": 0}
        self.model = SimpleNamespace(named_modules=list)
        self.llm_args = SimpleNamespace(
            max_stats_len=1,
            max_num_tokens=budget,
            print_iter_log=False,
            enable_iter_perf_stats=False,
            enable_iter_req_stats=False,
            stream_interval=1,
            attention_dp_config=None,
            batch_wait_timeout_ms=0,
            batch_wait_timeout_iters=0,
            batch_wait_max_tokens_ratio=0,
            disable_overlap_scheduler=False,
            attention_dp_enable_balance=False,
            attention_dp_time_out_iters=0,
            attention_dp_batching_wait_iters=0,
        )
        self.pytorch_backend_config = self.llm_args  # as an earlier era names it

    def warmup(self, _: Any) -> None:
        pass

    def get_max_num_sequences(self) -> int:
        return int(self.manager.max_batch_size)

    def forward(self, scheduled: Any, _resources: Any, *_: Any, **__: Any) -> dict[str, Any]:
        contexts = list(scheduled.context_requests)
        generations = list(scheduled.generation_requests)
        steps = [self._context_step(each) for each in contexts] + [self._generation_step(each) for each in generations]
        charged = sum(step.end - step.begin for step in steps)
        self.findings.batches.append(
            {"contexts": [(s.request_id, s.begin, s.end) for s in steps[: len(contexts)]], "tokens": charged}
        )
        if charged > self.budget:
            # As upstream does, where it prepares the inputs.
            raise AssertionError(f"{charged} tokens exceed max_num_tokens {self.budget}")
        self._prepare(contexts, generations, steps)
        return {"logits": None, "batch": self._launched(contexts, generations, steps)}

    def _context_step(self, request: Any) -> Step:
        begin = request.context_current_position
        end = begin + request.context_chunk_size
        # One that was preempted has a longer prompt than it came with, and generates behind that.
        request.py_generates_from, request.py_forwarded = end, 0
        return Step(request.py_request_id, list(request.get_tokens(0))[:end], begin, end)

    def _generation_step(self, request: Any) -> Step:
        # In the overlap loop the host knows a token less than the device; the model makes them by position.
        begin = request.py_generates_from
        at = begin + request.py_forwarded
        request.py_forwarded += 1
        known = list(request.get_tokens(0))[:begin]
        made = [FIRST_GENERATED + position for position in range(begin, at + 1)]
        return Step(request.py_request_id, known + made, at, at + 1)

    def _prepare(self, contexts: list[Any], generations: list[Any], steps: list[Step]) -> None:
        metadata = self.attn_metadata
        metadata.request_ids = [each.py_request_id for each in (*contexts, *generations)]
        metadata.num_contexts = len(contexts)
        # A generation has a row for each of its beams.
        steps = steps[: len(contexts)] + [step for step in steps[len(contexts) :] for _ in range(self.beam_width)]
        metadata.prompt_lens = [step.end - step.begin for step in steps]
        metadata.num_seqs = len(steps)
        metadata.seq_lens = metadata.seq_lens_kv = torch.tensor(metadata.prompt_lens, dtype=torch.int)
        params = metadata.kv_cache_params
        params.num_cached_tokens_per_seq = [step.begin for step in steps]
        metadata.beam_width = self.beam_width
        metadata.prepare()

    def _launched(self, contexts: list[Any], generations: list[Any], steps: list[Step]) -> Batch:
        """The read of attention, enqueued; and what it ought to find."""
        source = self.attn_metadata.kv_cache_block_offsets
        snapshot = late.on_device(tuple(source.shape), torch.int32)
        size = source.numel() * 4
        place = current_place()
        place.device.copy(snapshot.data_ptr(), source.data_ptr(), size, place.stream)
        batch = Batch(steps, snapshot, {}, announced(self.manager.impl), loads=self.arriving)
        self.arriving = []
        row = 0
        for request in (*contexts, *generations):
            beams = 1 if request in contexts else self.beam_width
            batch.rows[request.py_request_id] = row
            for pool, window, per_slot in self.pools():
                by_beam = self.manager.impl.witness_slots(request.py_request_id, window)
                for beam in range(beams):
                    batch.expected[pool, row + beam] = [slot * per_slot for slot in by_beam[beam]]
            row += beams
        return batch

    def slots_of(self, request_id: int, window: int) -> list[int]:
        slots: list[int] = self.manager.impl.witness_slots(request_id, window)[0]
        return slots

    def fill(self, window: int, slots: list[int], tokens: list[int], begin: int, end: int) -> None:
        """Writes what a connector would write of a prompt."""
        self.contents.fill(window, slots, tokens, begin, end)

    def pools(self) -> list[tuple[int, int, int]]:
        """(pool, window, what a slot number is multiplied by), out of the layer table."""
        mapping = self.manager.kv_cache_pool_mapping.tolist()
        windows = self.manager.max_attention_window_vec
        layers: dict[int, int] = {}
        window_of: dict[int, int] = {}
        for layer, (pool, _) in enumerate(mapping):
            layers[pool] = layers.get(pool, 0) + 1
            window_of[pool] = windows[layer % len(windows)]
        return [(pool, window_of[pool], layers[pool] * self.manager.kv_factor) for pool in sorted(layers)]

    def rows_read(self, batch: Batch) -> Any:
        """The rows that the device read, compared with what the books said at the launch."""
        found = late.plain(batch.snapshot)
        for (pool, row), expected in batch.expected.items():
            seen = found[pool, row, 0, : len(expected)].tolist()
            if seen != expected:
                self.findings.wrong_rows.append(f"pool {pool}, row {row}: the device read {seen}, not {expected}")
        return found

    def ran(self, batch: Batch) -> None:
        """The host has waited for the batch: look at what the device read, and let the contents follow it."""
        self.rows_read(batch)
        self.carry_out(batch)

    def carry_out(self, batch: Batch) -> None:
        found = late.plain(batch.snapshot)
        self.findings.moves += len(batch.transfers)
        for transfer in batch.transfers:
            self.contents.transfer(*transfer)
        for load in batch.loads:
            load()
        for step in batch.steps:
            row = batch.rows[step.request_id]
            for pool, window, per_slot in self.pools():
                blocks = len(batch.expected[pool, row])
                step.slots[window] = [value // per_slot for value in found[pool, row, 0, :blocks].tolist()]
            self.contents.run(step)


class Sampler:
    """Waits for a batch where upstream's sampler does, and gives each request its next token."""

    def __init__(self, engine: Engine, state_class: Any, event_class: Any, states: Any) -> None:
        self.engine = engine
        self.SampleState = state_class
        self._event = event_class
        self._states = states

    def sample_async(self, scheduled: Any, outputs: dict[str, Any], _prefix: Any = None) -> Any:
        event = torch.cuda.Event()
        event.record()
        state = self.SampleState(scheduled_requests=scheduled, sampler_event=self._event(cuda_event=event))
        state.batch = outputs["batch"]
        last = [each for each in scheduled.context_requests if each.is_last_context_chunk]
        state.sampled = [*last, *scheduled.generation_requests]
        return state

    def finish(self, state: Any) -> None:
        """The host waits for the batch."""
        state.sampler_event.synchronize()
        self.engine.ran(state.batch)

    def update_requests(self, state: Any, _resources: Any = None) -> None:
        self.finish(state)
        for request in state.sampled:
            if request.state == self._states.GENERATION_COMPLETE:
                continue
            position = request.get_num_tokens(0)
            for beam in range(self.engine.beam_width):
                request.add_new_token(FIRST_GENERATED + position, beam)
            request.py_decoding_iter += 1
            if request.get_num_tokens(0) - request.py_prompt_len >= request.py_max_new_tokens:
                for beam in range(self.engine.beam_width):
                    request.finish_by(self.finish_reason, beam)

    finish_reason: Any = None

    def beam_width(self, _: Any) -> int:
        return self.engine.beam_width

    def get_cache_indirection(self) -> None:
        return None

    def is_generation_model(self) -> bool:
        return True

    def setup_sampler_step(self, _: Any) -> None:
        pass
