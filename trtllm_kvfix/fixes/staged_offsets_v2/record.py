"""V2 block offsets: kernel and copies read private snapshots of rows, copy index and scratch ranges (H2)."""

import ast
from collections.abc import Callable, Sequence
from functools import partial
from textwrap import dedent
from typing import TYPE_CHECKING, Any

from trtllm_kvfix.fixes.probe_answers import absent, fixed, in_variants, needed, unknown
from trtllm_kvfix.fixes.signatures import SELF, takes
from trtllm_kvfix.fixes.staged_offsets_v2.lending import PUT_AWAY, TABLE, way_back
from trtllm_kvfix.fixes.staged_offsets_v2.meaning import looked_at, meant_scaled, meant_unscaled
from trtllm_kvfix.fixes.staged_offsets_v2.mechanism import ID, PER_LAYER, StagedOffsetsV2, not_covered
from trtllm_kvfix.hazards.h2_block_offsets_v2 import device as h2
from trtllm_kvfix.overlay.fix import Answer, Fix, HostBuffers, Replacement, Seam
from trtllm_kvfix.overlay.seam import holders
from trtllm_kvfix.overlay.upstream import RESOURCE_MANAGER, STEP_COPIES, V2_PLACES, Upstream
from trtllm_kvfix.staging.read_back import OBSERVED_EVERY, ReadBack

if TYPE_CHECKING:
    from trtllm_kvfix.settings import FixSettings

GATHER = "gather_k_block_offsets"
LAUNCH = "copy_batch_block_offsets_to_device"
COPY = "KVCacheManagerV2.copy_batch_block_offsets"
BLOCK_COPY = "StepInputStage.block_copy"
SCALED = ("input", "output", "copy_index", "index_scales", "kv_offset", "stream")
UNSCALED = ("input", "output", "copy_index", "copy_v_idx", "stream")


def probe(up: Upstream) -> Answer:
    module = up.v2_module
    if module is None or not up.has(module, "KVCacheManagerV2"):
        return absent("there is no V2 KV-cache manager")
    copy, launch = up.attribute(module, COPY), up.attribute(module, LAUNCH)
    if copy is None or launch is None:
        return unknown(f"{module.__name__} does not have both {COPY} and {LAUNCH}")
    if not takes(up, copy, *[SELF] * 6):
        return unknown(f"{COPY} cannot be called as attention metadata calls it")
    per_layer = up.attribute(module, f"KVCacheManagerV2.{PER_LAYER}")
    if per_layer is not None and not takes(up, per_layer, *[SELF] * 6):
        return unknown(f"{PER_LAYER} cannot be called as {COPY} is known to call it")
    return _judged(up.source(copy), up.parameters(launch))


def _judged(source: str | None, parameters: tuple[str, ...]) -> Answer:
    if source is None:
        return unknown(f"the source of {COPY} cannot be read")
    if _launches_what_it_gathered(source):
        return fixed("the manager gathers the rows of a batch and launches from these")
    if parameters not in (SCALED, UNSCALED):
        return unknown(f"{LAUNCH} takes {parameters}, expected {SCALED} or {UNSCALED}")
    if LAUNCH not in source or "get_copy_index" not in source or (GATHER in source and not _launches_live_rows(source)):
        return unknown(f"{COPY} does not ship in a way that is known")
    return needed(f"the kernel ({len(parameters)} arguments) reads the live table and the shared copy index")


def _launches_what_it_gathered(source: str) -> bool:
    """A manager may also gather rows only to compare them with those of its last launch."""
    gathered, launched = _argument(source, GATHER, 1, "destination"), _argument(source, LAUNCH, 0, "input")
    return bool(gathered) and gathered == launched


def _launches_live_rows(source: str) -> bool:
    return _argument(source, LAUNCH, 0, "input") == f"self.{TABLE}"


def _argument(source: str, function: str, position: int, name: str) -> str:
    """An argument of the first call of this function, as it is written."""
    for call in ast.walk(ast.parse(dedent(source))):
        if isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[-1] == function:
            named = {each.arg: each.value for each in call.keywords}
            value = call.args[position] if position < len(call.args) else named.get(name)
            return "" if value is None else ast.unparse(value)
    return ""


def replacements(up: Upstream, settings: "FixSettings") -> Sequence[Replacement]:
    module = up.v2_module
    if module is None:
        raise LookupError("no module of the V2 manager is imported")
    staged = StagedOffsetsV2(mode=settings.staging_mode, slots=settings.staging_slots)
    unscaled = up.parameters(up.attribute(module, LAUNCH)) == UNSCALED
    # The name in the manager's own module: upstream has bound it there, and others have their own.
    made = [Replacement(Seam(module.__name__, LAUNCH), staged.launch_unscaled if unscaled else staged.launch)]
    if settings.read_back_every:
        seam, launch = made[0].seam, made[0].make
        look = _looking(up, settings.read_back_every)
        made[0] = Replacement(seam, lambda original: look(launch(original)))
    if not unscaled:
        made.append(Replacement(Seam(module.__name__, COPY), staged.copy))
        made += [
            Replacement(Seam(module.__name__, f"KVCacheManagerV2.{name}"), way_back(name), staged.lending.take_all_back)
            for name in PUT_AWAY
            if not up.has(module, f"KVCacheManagerV2.{name}")
        ]
    if up.has(module, f"KVCacheManagerV2.{PER_LAYER}"):
        made.append(Replacement(Seam(module.__name__, f"KVCacheManagerV2.{PER_LAYER}"), staged.per_layer))
    return made


def counting_replacements(up: Upstream, settings: "FixSettings") -> Sequence[Replacement]:
    """Observers of upstream's kernel. Its other path, layer by layer, is not observed."""
    module = up.v2_module
    if module is None:
        raise LookupError("no module of the V2 manager is imported")
    return [Replacement(Seam(module.__name__, LAUNCH), _looking(up, settings.read_back_every or OBSERVED_EVERY))]


def _looking(up: Upstream, every: int) -> Callable[[Any], Any]:
    meaning = meant_unscaled if up.parameters(up.attribute(up.v2_module, LAUNCH)) == UNSCALED else meant_scaled
    return partial(looked_at, ReadBack(ID, every), meaning)


def late_replacements(up: Upstream) -> Sequence[Replacement]:
    """Managers of some models, and the binding's own module, hold the launch under names of their own: all of them get
    the same function, and later imports get it from the binding's module. Where a kernel of another kind reads the live
    table, its replacement answers "not covered"."""
    launch = up.attribute(up.v2_module, LAUNCH)
    made = [
        Replacement(Seam(module, name), lambda _: launch)
        for module, name in holders(getattr(launch, "__kvfix_original__", launch))
    ]
    if up.has(STEP_COPIES, BLOCK_COPY):
        made.append(Replacement(Seam(STEP_COPIES, BLOCK_COPY), not_covered))
    return made


def self_test() -> None:
    h2.self_test(StagedOffsetsV2().launch)


FIX = Fix(
    id=ID,
    hazard="H2",
    title=f"Block offsets of the V2 manager: each call has rows and copy index of its own, {TABLE} is read at the call",
    upstream=("T#15607", "T#16088", "T#14128"),
    triggers=(RESOURCE_MANAGER, *V2_PLACES),
    probe=probe,
    replacements=replacements,
    counting_replacements=counting_replacements,
    self_test=self_test,
    expected=in_variants(needed="B B2 C D F", absent="A"),
    late=(STEP_COPIES,),
    late_replacements=late_replacements,
    keeps_safe=(HostBuffers(r"^_?host_(kv_cache_block_offsets|scratch_\w+_staging)$", r"v2"),),
)
