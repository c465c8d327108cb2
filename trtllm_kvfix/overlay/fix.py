"""The three words for what we change in upstream, as records: a seam, a replacement, and a fix.

A *seam* is an attribute of upstream. A *replacement* is what we put into one. A *fix* is the replacements that mend one
hazard, with what shows whether this TensorRT-LLM needs them. Other replacements mend nothing, such as the gate in front
of an engine's start. The registry (registry.py) knows all of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from trtllm_kvfix.overlay.upstream import Upstream
    from trtllm_kvfix.settings import FixSettings


Manager: TypeAlias = Literal["V1", "V2"]  # upstream's KV cache managers: KVCacheManager and KVCacheManagerV2


class State(str, Enum):
    """Answer of a probe. Only `needed` is applied by itself."""

    NEEDED = "needed"
    FIXED_UPSTREAM = "fixed-upstream"
    NOT_APPLICABLE = "not-applicable"
    UNKNOWN = "unknown"


# What becomes of a fix in a process: FixStatus.word, and what it means, for `status` and docs/support.md.
STATES = {
    "applied": "the fix is in place",
    "observing": "it counts what it would do, and changes nothing (the setting `observe`)",
    "displaced": "another tool has taken its place, so it does nothing",
    "stood-down": "its own code failed three times in a row; it takes its safe fallback at every call",
    "off": "the settings switch it off",
    "waiting": "nothing to fix: TensorRT-LLM has not loaded the code that it is about",
    "fixed-upstream": "this TensorRT-LLM has a fix of its own",
    "not-applicable": "this TensorRT-LLM lacks the feature that the fix is about",
    "unknown": "not applied, because its probe cannot tell whether it fits; `doctor --verbose` says why",
    "needed": "it is needed here, and nothing has applied it",
}


HOST_TIER = "a host tier"  # of Answer.only_with; upstream's own, which a server's file shows


@dataclass(frozen=True)
class Answer:
    state: State
    reason: str  # what was seen, in one line, for `doctor` and the log
    only_with: str = ""  # what a server must have to be hit, where the probe cannot see whether it has it


@dataclass(frozen=True)
class Seam:
    """One attribute of upstream that we replace.

    Seam("tensorrt_llm._torch.pyexecutor.resource_manager", "KVCacheManager.copy_batch_block_offsets")
    """

    module: str
    path: str

    def __str__(self) -> str:
        return f"{self.module}:{self.path}"


@dataclass(frozen=True)
class Replacement:
    seam: Seam
    # It gets the attribute as the class or module has it, or None where it is absent, and returns the replacement.
    # Static and class methods arrive and are put back as plain functions; the wrapping is kept by the seam.
    make: Callable[[Any], Any]


@dataclass(frozen=True)
class HostBuffers:
    """Those that a fix keeps safe, by regular expressions on the buffer's name and on its file."""

    buffer: str
    file: str  # relative to the package, such as "_torch/pyexecutor/resource_manager.py"


def _none(_: "Upstream") -> "Sequence[Replacement]":
    return ()


@dataclass(frozen=True, kw_only=True)
class Fix:
    id: str
    hazard: str  # of docs/hazards, such as "H1"
    title: str
    upstream: tuple[str, ...]  # references such as "T#15546"
    only_for: Manager | None = None  # the manager without which the fix changes nothing in a server
    # The fix is probed when every one of these that exists in this build has finished importing. So everything that
    # `probe` and `replacements` look at belongs here, each candidate place of a module that moved included.
    triggers: tuple[str, ...]
    probe: "Callable[[Upstream], Answer]"
    replacements: "Callable[[Upstream, FixSettings], Sequence[Replacement]]"
    # Raises AssertionError if the mechanism does not work on this machine; uses the simulated device and needs no
    # upstream.
    self_test: Callable[[], None]
    # For the choice `observe`: they count and change nothing. None where there can be none (fix_ids.BLIND).
    counting_replacements: "Callable[[Upstream, FixSettings], Sequence[Replacement]] | None" = None
    # The answer that the probe should give in each variant of docs/support.md; tests compare it with the actual answer.
    expected: Mapping[str, State]
    keeps_safe: tuple[HostBuffers, ...] = ()
    # Other seams that hold or do what the fix replaced. They are asked for when the fix is applied, and again when a
    # module that a fix watches has been imported. The fix does not wait for the import of their modules.
    late: tuple[str, ...] = ()
    late_replacements: "Callable[[Upstream], Sequence[Replacement]]" = _none
