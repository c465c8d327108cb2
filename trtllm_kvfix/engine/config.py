"""Configuration of an engine, and the fixes that it can run without."""

from dataclasses import dataclass, field

from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.fix_ids import FIX_IDS
from trtllm_kvfix.hazards import table

# Switching one off takes one protection away; all but the second are fixes of the overlay. docs/hazards describes them.
HAZARDS = {hazard.scene.fix: hazard.id for hazard in table.HAZARDS if hazard.scene is not None}
MANAGERS = ("native", "one-by-one")
TIERS = ("native", "connector")


@dataclass(frozen=True)
class EngineConfig:
    tokens_per_block: int = 8
    blocks_primary: int = 64
    blocks_host: int = 0
    requests_max: int = 8  # in a batch
    tokens_max: int = 64  # in an iteration: longer prompts are computed in chunks
    length_max: int = 512  # of a prompt and its answer
    tier: str = "native"  # whose host tier: the manager's, or the offload connector's
    manager: str = "native"
    layout: str = "v1"  # of block tables
    graphs: bool = True  # steps that only generate are replayed
    overlap: bool = True  # the next step is prepared while the device runs the last one
    off: frozenset[str] = field(default_factory=frozenset)  # fixes
    # Above 0, nothing is left to chance: in every n-th step the device begins nothing before the host waits for it, and
    # in the others the device is done before the host goes on.
    late_every: int = 0
    # The native manager's copies between the tiers are late, too: they begin when the host waits for what they stand in
    # front of, or else when the step is over.
    late_copies: bool = False
    # Blocks that a canary looks at in each step, besides those that something has happened to. 0: there is none.
    canary: int = 0

    def __post_init__(self) -> None:
        if self.manager not in MANAGERS:
            raise SettingsError(f"manager is '{self.manager}'; known are {', '.join(MANAGERS)}")
        if self.tier not in TIERS:
            raise SettingsError(f"tier is '{self.tier}'; known are {', '.join(TIERS)}")
        if self.canary < 0:
            raise SettingsError(f"canary is {self.canary}; it is a number of blocks, and 0 means none")
        for fix in self.off:
            self._check_off(fix)
        if self.blocks_primary * self.tokens_per_block < self.length_max:
            raise SettingsError(
                f"{self.blocks_primary} blocks of {self.tokens_per_block} tokens cannot hold a sequence of "
                f"{self.length_max}; take more blocks, or a smaller length_max"
            )

    def _check_off(self, fix: str) -> None:
        check_id(fix)
        if fix == "computed-blocks" and self.manager == "native":
            raise SettingsError(
                "computed-blocks=off needs the manager one-by-one: the native one never offers what is not computed"
            )
        if fix.startswith("staged-offsets") and not fix.endswith(self.layout):
            raise SettingsError(f"{fix}=off needs block tables of the other layout; this engine has {self.layout}")

    def has(self, fix: str) -> bool:
        return fix not in self.off


def check_id(fix: str) -> None:
    """Raise SettingsError for a fix that cannot change a letter here."""
    if fix in HAZARDS:
        return
    known = ", ".join(HAZARDS)
    if fix in FIX_IDS:
        raise SettingsError(
            f"{fix} cannot change an answer of this engine, so it cannot be switched off here; these fixes can: {known}"
        )
    raise SettingsError(f"'{fix}' is not a fix; known are {known}")
