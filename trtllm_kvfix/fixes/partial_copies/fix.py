"""A cache reuses no block in part by a copy that may be of another block, or come too late (H17).

A block that a prompt matches in part is copied where it is in use or others follow it. Builds without T#13029 find it,
make room for the copy, and then copy. With a host tier they may make room by moving another block to the host, into the
slot of the very block that they have found. The copy is then of the other one. And in 1.1 no step waits for such
copies, with a host tier or without.

Python sees nothing of this: it is one call into C++. But the constructor has a switch for such copies
(`copy_on_partial_reuse`). Without them upstream takes over only blocks that nobody uses and nothing follows, and takes
these out of their queue first. A prompt loses less than a block of reuse by it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from trtllm_kvfix.fixes.probe_answers import absent, fixed, in_variants, needed, unknown
from trtllm_kvfix.hazards.h17_partial_copies import simulated as h17
from trtllm_kvfix.log import log
from trtllm_kvfix.overlay import fuse
from trtllm_kvfix.overlay.fix import HOST_TIER, Answer, Fix, Replacement, Seam
from trtllm_kvfix.overlay.fuse import Fuse
from trtllm_kvfix.overlay.upstream import BINDINGS, RESOURCE_MANAGER, Upstream

if TYPE_CHECKING:
    from trtllm_kvfix.settings import FixSettings

SWITCH = "copy_on_partial_reuse"


Says = Callable[[Any], bool]  # whether a cache of this configuration may copy wrongly


class UncopiedMatches:
    """The replacement. Where its own code fails, the switch is off for caches that would copy rightly, too."""

    def __init__(self, fuse: Fuse, may_copy_wrongly: Says) -> None:
        self._fuse = fuse
        self._may_copy_wrongly = may_copy_wrongly

    def making(self, original: Callable[..., None]) -> Callable[..., None]:
        """For the manager's constructor."""

        def make(manager: Any, kv_cache_config: Any, *args: Any, **kwargs: Any) -> None:
            if not self._is_concerned(kv_cache_config) or not self._switches_off(kv_cache_config):
                original(manager, kv_cache_config, *args, **kwargs)
                return
            log.info("this cache copies no blocks that match in part: %s is off (H17)", SWITCH)
            try:
                original(manager, kv_cache_config, *args, **kwargs)
            finally:
                setattr(kv_cache_config, SWITCH, True)  # it is the user's own

        return make

    def _is_concerned(self, config: Any) -> bool:
        if not self._fuse.blown:
            try:
                concerned = self._may_copy_wrongly(config)
            except Exception as error:
                self._fuse.fault(error)
            else:
                self._fuse.in_a_row = 0
                return concerned
        return bool(getattr(config, SWITCH, False))

    def _switches_off(self, config: Any) -> bool:
        """A configuration that takes no other value ends no server: the log says that upstream may copy."""
        try:
            setattr(config, SWITCH, False)
        except Exception as error:
            self._fuse.fault(error)
            return False
        return True


class ObservedMatches:
    """Changes nothing, and counts the caches that the other would change."""

    def __init__(self, fuse: Fuse, may_copy_wrongly: Says) -> None:
        self._fuse = fuse
        self._may_copy_wrongly = may_copy_wrongly

    def making(self, original: Callable[..., None]) -> Callable[..., None]:
        def make(manager: Any, kv_cache_config: Any, *args: Any, **kwargs: Any) -> None:
            self._fuse.observe(lambda: self._may_copy_wrongly(kv_cache_config))
            original(manager, kv_cache_config, *args, **kwargs)

        return make


def may_copy_wrongly(up: Upstream, config: Any) -> bool:
    copies = config.enable_block_reuse and config.enable_partial_reuse and getattr(config, SWITCH)
    return bool(copies and (config.host_cache_size or not orders_copies(up)) and has_upstreams_books(up))


def orders_copies(up: Upstream) -> bool:
    """Whether a step waits for what was asked of the transfer manager. 1.1 has no call for it."""
    return up.binds("refresh_blocks")


def has_upstreams_books(up: Upstream) -> bool:
    """With `kvfix.manager: native` an object stands in the place of the bound class. Our books hold what they copy."""
    return isinstance(up.attribute(RESOURCE_MANAGER, "KVCacheManagerCpp"), type)


# ---- when it is needed, and what it replaces ----

ID = "partial-copies"
MAKE = "KVCacheManager.__init__"


def probe(up: Upstream) -> Answer:
    if up.bindings is None or not up.has(RESOURCE_MANAGER, "KVCacheManager"):
        return absent("there is no V1 KV-cache manager over a bound one")
    if up.binds("add_sequence_batch"):
        return fixed("blocks are claimed before room is made (T#13029)")
    if up.parameters(up.attribute(RESOURCE_MANAGER, MAKE))[1:2] != ("kv_cache_config",):
        return unknown(f"the first argument of {MAKE} is not kv_cache_config")
    if not up.binds("add_sequence"):
        return unknown("the bound manager has neither add_sequence nor add_sequence_batch")
    if not orders_copies(up):
        return needed("no step waits for the copy of a block that matches in part")
    return needed(
        "with a host tier, a block that matches in part may be overwritten before it is copied",
        only_with=HOST_TIER,
    )


def replacements(up: Upstream, settings: "FixSettings") -> Sequence[Replacement]:  # noqa: ARG001  one interface
    return _by(UncopiedMatches(fuse.of(ID), partial(may_copy_wrongly, up)))


def counting_replacements(up: Upstream, settings: "FixSettings") -> Sequence[Replacement]:  # noqa: ARG001  one interface
    return _by(ObservedMatches(fuse.of(ID), partial(may_copy_wrongly, up)))


def _by(matches: UncopiedMatches | ObservedMatches) -> Sequence[Replacement]:
    return [Replacement(Seam(RESOURCE_MANAGER, MAKE), matches.making)]


def self_test() -> None:
    h17.self_test(UncopiedMatches(Fuse(ID), lambda config: bool(config.host_cache_size)).making)


FIX = Fix(
    id=ID,
    hazard="H17",
    title="A cache copies no block that a prompt matches in part, where the copy may be of another block",
    upstream=("T#13029",),
    only_for="V1",
    triggers=(BINDINGS, RESOURCE_MANAGER),
    probe=probe,
    replacements=replacements,
    counting_replacements=counting_replacements,
    self_test=self_test,
    expected=in_variants(needed="A B B2", fixed="C D F"),
)
