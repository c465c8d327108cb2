"""Blocks enter the reuse tree when they have been computed, and not before (H8).

Builds without T#12673 offer the whole prompt after its first chunk, and all of a sequence when it is released, whatever
has been computed. With this fix a prompt is offered when its last chunk is done, and a request that ends before leaves
nothing behind.

The methods of the bound class are replaced, so every caller in Python comes through here: the manager's own methods,
the termination of requests, transfers. All of it runs in the executor's thread.

Upstream has no call that releases without storing: the arguments are unnamed and refuse None. But it stores nothing of
dummy requests, and the release itself checks that mark, which Python can write. So the fix sets the mark, calls, and
restores it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trtllm_kvfix.fixes.probe_answers import absent, in_variants, needed, unknown
from trtllm_kvfix.fixes.reuse import cached_tokens
from trtllm_kvfix.hazards.h8_uncomputed_blocks import simulated as h8
from trtllm_kvfix.metrics import counters, flight
from trtllm_kvfix.overlay import fuse
from trtllm_kvfix.overlay.fix import Answer, Fix, Replacement, Seam, State
from trtllm_kvfix.overlay.fuse import Fuse
from trtllm_kvfix.overlay.seam import is_marked
from trtllm_kvfix.overlay.signatures import SELF, takes
from trtllm_kvfix.overlay.upstream import (
    BINDINGS,
    BOUND_MANAGERS,
    LLM_REQUEST,
    RESOURCE_MANAGER,
    Upstream,
)

if TYPE_CHECKING:
    from trtllm_kvfix.settings import FixSettings


ATTEMPTS_MAX = 16  # prompts that showed nothing, such as short ones


class Observation:
    """Finds out whether this build's `store_context_blocks` goes by the position, as it does since T#12673.

    No name shows it. The test takes a prompt that has been computed to its end, so whatever is stored meanwhile is
    right. It sets the position back to what the tree has already, stores the prompt, and looks at the tree. If nothing
    was added, and something is with the true position, the build goes by the position. Until that
    was seen, and where it cannot be, the fix assumes that the build does not.
    """

    def __init__(self) -> None:
        self.store_obeys_position = False
        self._attempts_left = ATTEMPTS_MAX

    def observe(self, manager: Any, store: Callable[..., Any], request: Any) -> None:
        """Test with a request whose prompt has been computed."""
        if self._attempts_left == 0:
            return
        self._attempts_left -= 1
        answer = _stores_by_position(manager, store, request)
        if answer is not None:
            self.store_obeys_position = answer
            self._attempts_left = 0


def _stores_by_position(manager: Any, store: Callable[..., Any], request: Any) -> bool | None:
    """None where this prompt shows nothing."""
    before = cached_tokens(manager, request)
    if before is None or before + manager.tokens_per_block >= request.prompt_len:
        return None  # there is no block that could be added
    position = request.context_current_position
    request.context_current_position = before
    try:
        store(manager, request)
    finally:
        request.context_current_position = position
    if cached_tokens(manager, request) != before:
        return False
    store(manager, request)
    return True if cached_tokens(manager, request) != before else None


Says = Callable[[Any], bool]  # something about a request


@dataclass(eq=False)
class Hold:
    """Stands for the pins of a save whose request ended early: its sequence keeps its blocks until the save is over.

    Upstream keeps it as it keeps the ids of pinned blocks, and passes it to `unpin_blocks_by_id`.
    """

    manager: Any
    request_id: int
    release: Callable[[], Any] | None = field(default=None)  # upstream's call, which waits for the save


class ComputedBlocks:
    """The replacements. Where their own code fails, nothing is offered: the next request computes for itself."""

    def __init__(self, fuse: Fuse) -> None:
        self._fuse = fuse
        self._observation = Observation()
        self._holds: dict[tuple[int, int], Hold] = {}  # by manager and request

    def storing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For `store_context_blocks(llm_request)`, which upstream calls after every chunk."""

        def store_context_blocks(manager: Any, *args: Any, **kwargs: Any) -> Any:
            if self._fuse.blown or self._too_early(manager, original, args):
                return None
            return original(manager, *args, **kwargs)

        return store_context_blocks

    def releasing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For `remove_sequence(request_id, llm_request, pin_on_release)`."""

        return self._releasing(original, has_more_to_compute)

    def releasing_loads(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The same, where upstream offers blocks up to the request's position. While a connector loads, the position is
        ahead of the blocks' contents, and nothing of the prompt has been computed yet."""
        return self._releasing(original, has_computed_nothing)

    def _releasing(self, original: Callable[..., Any], too_early: Says) -> Callable[..., Any]:
        def remove_sequence(manager: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._ends_early(args, too_early):
                return original(manager, *args, **kwargs)
            request = args[1]

            def release() -> Any:
                return self._as_dummy(request, lambda: original(manager, *args, **kwargs))

            hold = self._holds.get((id(manager), args[0]))
            if hold is not None:
                hold.release = release
                return None
            return release()

        return remove_sequence

    def saving(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For `store_blocks_for_reuse(request_id, llm_request, pin_blocks)`: a connector or transfer will read them.

        A request that upstream has paused comes back under its id, so its sequence cannot be kept: upstream stores it.
        """

        def store_blocks_for_reuse(manager: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._ends_early(args, has_more_to_compute) or not self._is_over_and_pinned(args):
                return original(manager, *args, **kwargs)
            hold = Hold(manager, args[0])
            self._holds[id(manager), args[0]] = hold
            return hold

        return store_blocks_for_reuse

    def unpinning(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For `unpin_blocks_by_id(what store_blocks_for_reuse answered)`."""

        def unpin_blocks_by_id(manager: Any, *args: Any, **kwargs: Any) -> Any:
            if not args or not isinstance(args[0], Hold):
                return original(manager, *args, **kwargs)
            hold = args[0]
            self._holds.pop((id(hold.manager), hold.request_id), None)
            return None if hold.release is None else hold.release()

        return unpin_blocks_by_id

    def _too_early(self, manager: Any, store: Callable[..., Any], args: tuple[Any, ...]) -> bool:
        try:
            (request,) = args
            if request.context_remaining_length == 0:
                self._observation.observe(manager, store, request)
                early = False
            else:
                early = not self._observation.store_obeys_position
            if early:
                _held_back(request)
        except Exception as error:
            self._fuse.fault(error)
            return True
        self._fuse.in_a_row = 0
        return early

    def _ends_early(self, args: tuple[Any, ...], too_early: Says) -> bool:
        """Whether a part of the prompt has not been computed and never will be."""
        try:
            request = args[1]
            early = self._fuse.blown or too_early(request)
            early = early and not request.is_dummy_request
            if early:
                _held_back(request)
        except Exception as error:
            self._fuse.fault(error)
            return len(args) > 1
        self._fuse.in_a_row = 0
        return early

    def _is_over_and_pinned(self, args: tuple[Any, ...]) -> bool:
        try:
            return bool(args[2] and args[1].is_generation_complete_state)
        except Exception as error:
            self._fuse.fault(error)
            return False

    def _as_dummy(self, request: Any, release: Callable[[], Any]) -> Any:
        try:
            request.is_dummy_request = True
        except Exception as error:
            self._fuse.fault(error)
            return release()
        try:
            return release()
        finally:
            request.is_dummy_request = False


def has_more_to_compute(request: Any) -> bool:
    """Tokens that a connector still loads count, since it never brings the last token of a prompt."""
    return bool(request.context_remaining_length > 0)


def has_computed_nothing(request: Any) -> bool:
    """Whether the position is still where reuse and a load have put it. The reused part is in the tree already."""
    return bool(request.is_first_context_chunk and has_more_to_compute(request))


def _held_back(request: Any) -> None:
    counters.stores_held_back.add()
    flight.note(flight.HELD_BACK, getattr(request, "request_id", 0), request.context_remaining_length)


# ---- when it is needed, and what it replaces ----

ID = "computed-blocks"
# How many positional arguments upstream's callers pass.
CALLED = {"store_context_blocks": 1, "remove_sequence": 3, "store_blocks_for_reuse": 3, "unpin_blocks_by_id": 1}
READ = ("context_remaining_length", "context_current_position", "is_dummy_request", "is_generation_complete_state")
# Where blocks are stored by position, a connector's load is all that a position may be ahead of.
CALLED_BY_POSITION = {"remove_sequence": 3}
READ_BY_POSITION = ("context_remaining_length", "is_first_context_chunk", "is_dummy_request")


def probe(up: Upstream) -> Answer:
    if up.bindings is None or not up.has(RESOURCE_MANAGER, "KVCacheManager.update_resources"):
        return absent("there is no V1 KV-cache manager over a bound one")
    if stores_by_position(up):
        strange = _strange(up, CALLED_BY_POSITION, READ_BY_POSITION)
        if strange:
            return unknown(strange)
        return needed("a load that a connector has not finished counts as computed", only_with="a connector")
    if not up.binds("add_sequence"):
        return unknown("the bound manager has neither add_sequence nor add_sequence_batch")
    strange = _strange(up, CALLED, READ)
    if strange:
        return unknown(strange)
    return needed(
        "prompts are offered for reuse before they are computed; Python cannot tell whether this build has upstream's "
        "fix (T#12673), and applying ours is safe"
    )


def stores_by_position(up: Upstream) -> bool:
    """Sequences are added in batches (T#13029), which came after blocks were stored by position (T#12673)."""
    return up.binds("add_sequence_batch")


def _strange(up: Upstream, called: Mapping[str, int], read: Sequence[str]) -> str:
    """Describe what differs from the code that the fix expects. Empty if nothing does."""
    for name, count in called.items():
        owners = [owner for owner, method in _methods(up) if method == name]
        if not owners:
            return f"nothing in {BINDINGS} has its own {name}"
        if not takes(up, up.attribute(BINDINGS, f"{owners[0]}.{name}"), SELF, *[SELF] * count):
            return f"{name} does not take the {count} arguments that upstream's callers pass"
    missing = [name for name in read if not up.has(LLM_REQUEST, f"LlmRequest.{name}")]
    return f"requests have no {', '.join(missing)}" if missing else ""


def replacements(up: Upstream, settings: "FixSettings") -> Sequence[Replacement]:  # noqa: ARG001  one interface
    blocks = ComputedBlocks(fuse.of(ID))
    if stores_by_position(up):
        return [
            Replacement(Seam(BINDINGS, f"{owner}.{name}"), blocks.releasing_loads)
            for owner, name in _methods(up)
            if name in CALLED_BY_POSITION
        ]
    made: dict[str, Callable[[Any], Any]] = {
        "store_context_blocks": blocks.storing,
        "remove_sequence": blocks.releasing,
        "store_blocks_for_reuse": blocks.saving,
        "unpin_blocks_by_id": blocks.unpinning,
    }
    return [Replacement(Seam(BINDINGS, f"{owner}.{name}"), made[name]) for owner, name in _methods(up)]


def holds_for(up: Upstream, impl: Any) -> bool:
    """Whether a request of this manager may be cut short, so that only computed blocks are offered for reuse."""
    if stores_by_position(up) or probe(up).state is not State.NEEDED:
        return True
    return is_marked(getattr(type(impl), "remove_sequence", None), ID)


def _methods(up: Upstream) -> Iterator[tuple[str, str]]:
    """(class, method) of those that the bound classes themselves hold."""
    for owner in BOUND_MANAGERS:
        held = vars(up.attribute(BINDINGS, owner) or object)
        for name in CALLED:
            if name in held:
                yield owner, name


def self_test() -> None:
    blocks = ComputedBlocks(fuse.Fuse(ID))
    h8.self_test(blocks.storing, blocks.releasing)


FIX = Fix(
    id=ID,
    hazard="H8",
    title="Blocks are offered for reuse when they have been computed, and not before",
    upstream=("T#12673",),
    only_for="V1",
    triggers=(BINDINGS, RESOURCE_MANAGER, LLM_REQUEST),
    probe=probe,
    replacements=replacements,
    self_test=self_test,
    expected=in_variants(needed="A B B2 C D F"),
)
