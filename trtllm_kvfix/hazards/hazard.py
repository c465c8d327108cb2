"""A hazard as a record: the facts that pages and commands show, and which ground cannot carry its scenario."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from trtllm_kvfix.hazards.ground import Ground
    from trtllm_kvfix.overlay.upstream import Upstream

# A device, simulated or a GPU (`verify`); the classes of an installed TensorRT-LLM (`selfcheck`); our engine (`demo`).
GroundName = Literal["device", "installed", "engine"]


@dataclass(frozen=True)
class Scene:
    """The scenario in the engine: users chat, and read what they should not."""

    fix: str  # what the control lacks
    title: str
    without: str  # what goes wrong then
    config: Mapping[str, Any]  # of the engine, with all fixes on, where it differs from the default


@dataclass(frozen=True)
class Scenario:
    """The scenario on the installed classes. `run` returns what is wrong, or None."""

    name: str
    fix_id: str
    run: "Callable[[Ground, Upstream], str | None]"
    # Its fix is needed by builds that are right without it, and finds that out while it runs.
    may_be_right: bool = False
    # Fixes without which it leaves everything alone on builds that need them.
    beside: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Hazard:
    room: str  # its folder here, and its page in docs/hazards, with `-` for `_`
    what: str  # what goes wrong
    symptoms: Mapping[str, str]  # what users see, by the fix that ends it
    scene: Scene | None = None
    # Why a ground cannot carry the scenario, for those that do not.
    not_on: Mapping[GroundName, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.room.partition("_")[0].upper()
