"""The model of a batch reads its inputs late; this compares them with what the host meant it to read."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

from integration.upstream import graphs, late
from integration.upstream.contents import Step, announced
from integration.upstream.engine import Batch, Engine

READ = ("input_ids", "position_ids", "prompt_lens", "kv_lens", "offsets")


@dataclass
class InputBatch(Batch):
    """`expected` is of the block offsets; `meant` is what the host meant the other inputs to be."""

    inputs: dict[str, Any] = field(default_factory=dict)  # on the device, filled late
    meant: dict[str, dict[int, int]] = field(default_factory=dict)  # by input: index -> value


class Model:
    """Reads what the kernels of a model would: each read is enqueued behind everything that was prepared."""

    extra_attrs: ClassVar[dict[str, Any]] = {}
    model_config = SimpleNamespace(extra_attrs={})

    def named_modules(self) -> list[Any]:
        return []

    def forward(self, attn_metadata: Any, input_ids: Any, position_ids: Any, **_: Any) -> dict[str, Any]:
        sources = {
            "input_ids": input_ids,
            "position_ids": position_ids.flatten(),
            "prompt_lens": attn_metadata.prompt_lens_cuda,
            "kv_lens": attn_metadata.kv_lens_cuda,
            "offsets": attn_metadata.kv_cache_block_offsets,
        }
        read = {name: _read(source) for name, source in sources.items()}
        return {"logits": None, "read": read, "rows": attn_metadata.num_seqs}


def _read(source: Any) -> Any:
    target = late.on_device(tuple(source.shape), source.dtype)
    graphs.read(target, source)
    return target


class Judge(Engine):
    """Knows what each batch should have read, and looks at it when the host has waited for the batch."""

    draft_len = 0
    speculates = False

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.wrong_inputs: list[str] = []

    def steps(self, scheduled: Any) -> list[Step]:
        real = [each for each in scheduled.generation_requests if not each.is_dummy]
        contexts = [self._context_step(each) for each in scheduled.context_requests]
        steps = contexts + [self._generation_step(each) for each in real]
        charged = sum(step.end - step.begin for step in contexts) + len(real) * (1 + self.draft_len)
        told = [(each.request_id, each.begin, each.end) for each in contexts]
        self.findings.batches.append({"contexts": told, "tokens": charged})
        return steps

    def launched(
        self, scheduled: Any, steps: list[Step], read: dict[str, Any], *, dummies: list[Any], in_graph: bool
    ) -> InputBatch:
        # A graph reads into the same memory at each replay.
        found = {name: _read(each) for name, each in read.items()} if in_graph else read
        requests = [*scheduled.context_requests, *(each for each in scheduled.generation_requests if not each.is_dummy)]
        batch = InputBatch(steps, found["offsets"], {}, announced(self.manager.impl), inputs=found)
        for row, request in enumerate([*requests, *dummies]):
            batch.rows[request.py_request_id] = row
            for pool, window, per_slot in self.pools():
                slots = self.manager.impl.witness_slots(request.py_request_id, window)[0]
                batch.expected[pool, row] = [slot * per_slot for slot in slots]
        batch.meant = self._meant(requests, steps, len(scheduled.context_requests))
        return batch

    def _meant(self, requests: list[Any], steps: list[Step], contexts: int) -> dict[str, dict[int, int]]:
        meant: dict[str, dict[int, int]] = {name: {} for name in READ[:-1]}
        at = 0
        for row, (request, step) in enumerate(zip(requests, steps, strict=True)):
            is_context = row < contexts
            meant["prompt_lens"][row] = step.end - step.begin if is_context else request.py_prompt_len
            for position in range(step.begin, step.end):
                meant["input_ids"][at + position - step.begin] = step.tokens[position]
                if is_context or not self.speculates:
                    meant["position_ids"][at + position - step.begin] = position
            if is_context or not self.speculates:
                # With speculation, the device corrects positions and lengths by what was accepted: upstream's
                # `_preprocess_inputs`, which no excerpt holds.
                meant["kv_lens"][row] = step.end
            at += step.end - step.begin if is_context else 1 + self.draft_len
        return meant

    def ran(self, batch: Any) -> None:
        for name, meant in batch.meant.items():
            seen = late.plain(batch.inputs[name])
            wrong = {index: int(seen[index]) for index, value in meant.items() if int(seen[index]) != value}
            if wrong:
                index = next(iter(wrong))
                self.wrong_inputs.append(f"{name}[{index}]: the device read {wrong[index]}, not {meant[index]}")
        super().ran(batch)
