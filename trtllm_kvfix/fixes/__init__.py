"""The fixes, each with a room here, in the order in which they are applied (fix_ids.py)."""

from importlib import import_module

from trtllm_kvfix.fix_ids import FIX_IDS, room_of
from trtllm_kvfix.overlay.fix import Fix


def _record(fix_id: str) -> Fix:
    fix: Fix = import_module(f"{__name__}.{room_of(fix_id)}.record").FIX
    return fix


ALL: tuple[Fix, ...] = tuple(_record(fix_id) for fix_id in FIX_IDS)
