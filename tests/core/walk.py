"""A seeded walk of the pair through busy states: deeper than Hypothesis goes by itself, at the price of shrinking."""

import random
from collections.abc import Callable

from . import pair_verbs
from .model import Config, Request, Retention, WindowShape
from .model.values import Range, Salt
from .native_values import CARRIERS
from .pair import Pair


def random_config(rng: random.Random) -> Config:
    size = rng.randint(1, 4)
    spread = rng.choice([[], [], [(1, 0)], [(1, 1), (2, 1)], [(1, 0), (2, 0), (3, 2)]])
    sizes: list[int | None] = [size * blocks + more % size for blocks, more in spread] or [None]
    host = rng.choice([0, 2, 6, 12])
    return Config(
        tokens_per_block=size,
        windows=tuple(WindowShape(each, rng.randint(4, 24), host) for each in sorted(set(sizes), key=lambda s: s or 0)),
        max_beam_width=rng.choice([1, 1, 1, 2, 3]),
        block_reuse=rng.random() < 0.97,
        partial_reuse=rng.random() < 0.8,
        copy_on_partial_reuse=rng.random() < 0.7,
        offload_priority_min=rng.choice([0, 30, 30, 50]),
        host_admission=rng.choice(["all", "adaptive"]) if host else "all",
    )


class Walk:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        events_max, hash_bits = self.rng.choice([0, 5, 10**6]), self.rng.choice([128, 128, 4, 1])
        self.pair = Pair(random_config(self.rng), events_max, hash_bits)
        self.model = self.pair.model
        self.ids_used = 0
        self.prompts: list[list[int]] = []

    def run(self, steps: int) -> None:
        weights: dict[Callable[[], object], int] = {
            self.serve: 12,
            self.serve_in_chunks: 6,
            self.admit: 8,
            self.grow: 10,
            self.store: 5,
            self.remove: 10,
            self.rewind: 2,
            self.truncate: 1,
            self.name_blocks: 1,
            self.suspend: 2,
            self.resume: 3,
            self.pin: 4,
            self.unpin: 4,
            self.end_transfers: 10,
            self.move_time: 2,
            self.sweep: 1,
        }
        for action in self.rng.choices(list(weights), list(weights.values()), k=steps):
            action()
            self.pair.check()

    def live(self) -> list[int]:
        return self.model.live()

    # -------------------------------------------------------------------------------------------- sequences

    def prompt(self) -> list[int]:
        """Mostly the beginning of an earlier one, and then something else."""
        block = self.model.config.tokens_per_block
        if not self.prompts or self.rng.random() < 0.2:
            self.prompts.append([self.rng.randrange(3) for _ in range(self.rng.randint(1, 5 * block))])
            return self.prompts[-1]
        known = self.rng.choice(self.prompts[-4:])
        cut = self.rng.choice([len(known), self.rng.randint(1, len(known))])
        return known[:cut] + [self.rng.randrange(2) for _ in range(self.rng.randrange(block + 1))]

    def request(self) -> Request:
        rng = self.rng
        self.ids_used += 1
        prompt = self.prompt()
        salts: list[Salt] = [*[None] * 12, "a", b"a", 7]
        cut = rng.randrange(len(prompt))
        extras = ((cut, rng.randint(cut + 1, len(prompt)), rng.choice([b"x", b"yy"])),) if rng.random() < 0.1 else ()
        return Request(
            self.ids_used,
            tuple(prompt),
            beam_width=rng.randint(1, self.model.config.max_beam_width),
            lora_id=rng.choice([None] * 9 + [3]),
            salt=rng.choice(salts),
            extra_keys=extras,
            retention=self.retention() if rng.random() < 0.4 else Retention(),
        )

    def retention(self) -> Retention:
        rng = self.rng
        begin = rng.choice([0, 0, rng.randrange(8)])
        end = rng.choice([None, begin + rng.randint(1, 8)])
        kept = Range(begin, end, rng.choice([0, 20, 35, 60, 100]), rng.choice([None, 0, 3, 8]))
        return Retention((kept,), rng.choice([10, 35, 80]), rng.choice([None, 2]))

    def serve(self) -> None:
        request = self.request()
        if self.pair.add([request]):
            self.pair.check()
            self.run_all_transfers()
            self.pair.store_context(request.request_id, len(request.tokens))
            if self.rng.random() < 0.7:
                self.pair.remove(request.request_id)

    def admit(self) -> None:
        batch = [self.request() for _ in range(self.rng.randint(1, 4))]
        budget, chunk = self.rng.choice([None, None, self.rng.randint(0, 30)]), self.rng.choice([None, 0, 1, 3, 7])
        self.pair.add(batch, budget, self.rng.choice(CARRIERS), chunk if self.rng.random() < 0.3 else None)

    def grow(self) -> None:
        ids = self.rng.sample(self.live(), min(len(self.live()), self.rng.randint(1, 3)))
        counts = [self.rng.choice([0, 1, 1, 1, self.rng.randint(1, 7)]) for _ in ids]
        beyond = sum(self.beyond(each, count) for each, count in zip(ids, counts, strict=True))
        values = [self.rng.randrange(2) for _ in range(beyond)] if self.rng.random() < 0.7 else None
        lengths = [self.model.sequence(i).length for i in ids]
        computed = self.rng.choice([None, lengths, lengths, [max(0, length - 1) for length in lengths]])
        self.pair.grow(ids, counts, values, self.rng.choice(CARRIERS), computed)

    def beyond(self, request_id: int, count: int) -> int:
        """Those of these positions that lie behind the prompt."""
        seq = self.model.sequence(request_id)
        prompt = len(seq.request.tokens)
        return max(seq.length + count, prompt) - max(seq.length, prompt)

    def serve_in_chunks(self) -> None:
        """No chunk of an admitted prompt is refused, whatever else is there."""
        request, chunk = self.request(), self.rng.randint(1, 8)
        if not self.pair.add([request], chunk=chunk):
            return
        self.pair.check()
        self.run_all_transfers()
        seq = self.model.sequence(request.request_id)
        while seq.length < len(request.tokens):
            computed = seq.length
            if self.rng.random() < 0.5:
                self.pair.store_context(request.request_id, computed)
            if self.rng.random() < 0.3:
                self.admit()
                self.pair.check()
                self.run_all_transfers()
            count = min(self.rng.randint(1, chunk), len(request.tokens) - computed)
            taken = self.pair.grow([request.request_id], [count], computed=[computed])
            assert taken, "a chunk of a prompt that was admitted is refused"
            self.pair.check()
            if self.rng.random() < 0.1:
                return
        if self.rng.random() < 0.7:
            self.pair.remove(request.request_id, computed=seq.length)

    def store(self) -> None:
        if self.live():
            request_id = self.rng.choice(self.live())
            length = len(self.model.sequence(request_id).request.tokens)
            self.pair.store_context(request_id, self.rng.choice([length, length, self.rng.randint(0, length + 1)]))

    def remove(self) -> None:
        if self.live():
            request_id = self.rng.choice(self.live())
            sequence = self.model.sequence(request_id)
            tokens = None
            if self.rng.random() < 0.2:
                missing = sequence.length - len(sequence.known)
                tokens = sequence.known + [self.rng.randrange(2) for _ in range(missing)]
            self.pair.remove(request_id, store=self.rng.random() < 0.9, pin=self.rng.random() < 0.1, tokens=tokens)

    def rewind(self) -> None:
        if self.live():
            self.pair.rewind(self.rng.choice(self.live()), self.rng.randint(0, 5))

    def truncate(self) -> None:
        request = self.request()
        pair_verbs.truncate(self.pair, request, self.rng.randint(0, len(request.tokens) + 1))

    def name_blocks(self) -> None:
        if self.model.state.sequences:
            pair_verbs.check_hashes(self.pair, self.rng.choice(list(self.model.state.sequences)))

    def suspend(self) -> None:
        if self.live():
            pair_verbs.suspend(self.pair, self.rng.choice(self.live()))

    def resume(self) -> None:
        suspended = self.model.suspended()
        if suspended and not pair_verbs.resume(self.pair, self.rng.choice(suspended)) and self.rng.random() < 0.3:
            self.pair.remove(self.rng.choice(suspended), store=self.rng.random() < 0.7)

    # -------------------------------------------------------------------------------------------- pins

    def pin(self) -> None:
        known = self.pair.names.known_ids()
        if self.live() and self.rng.random() < 0.3:
            self.pair.pin_sequence(self.rng.choice(self.live()))
        elif known:
            self.pair.pin_ids(self.rng.choices(known, k=self.rng.randint(1, 2)))

    def unpin(self) -> None:
        names = self.pair.names
        pinned = [i for i in names.known_ids() if any(names.block(i).pins.values()) and names.alive(names.block(i))]
        if pinned:
            self.pair.unpin_ids([self.rng.choice(pinned)], self.rng.choice([None, None, "primary", "host"]))

    # -------------------------------------------------------------------------------------------- the rest

    def run_all_transfers(self) -> None:
        self.pair.take()
        while self.pair.tickets:
            self.pair.complete(0)

    def end_transfers(self) -> None:
        if self.rng.random() < 0.5:
            self.pair.take()
        if self.pair.tickets:
            index = self.rng.randrange(len(self.pair.tickets))
            if self.rng.random() < 0.85:
                self.pair.complete(index)
            else:
                self.pair.fail(index)

    def move_time(self) -> None:
        self.pair.advance_time(self.model.state.now_ms + self.rng.randint(0, 4))

    def sweep(self) -> None:
        self.pair.read_events()
        self.pair.refresh()
        if self.rng.random() < 0.1:
            self.pair.reset_reuse_state()
