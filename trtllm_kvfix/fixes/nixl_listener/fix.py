"""NIXL agents of the raw adapter are made without a metadata listener, whose fixed port collides on one host (H6)."""

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Collection, Sequence
from functools import partial
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from trtllm_kvfix.fixes.probe_answers import absent, fixed, in_variants, needed, unknown
from trtllm_kvfix.hazards.h6_listener_port import simulated as h6
from trtllm_kvfix.overlay import fuse
from trtllm_kvfix.overlay.fix import Answer, Fix, Replacement, Seam
from trtllm_kvfix.overlay.signatures import SELF, takes
from trtllm_kvfix.overlay.upstream import NIXL, NIXL_ADAPTERS, Upstream

if TYPE_CHECKING:
    from trtllm_kvfix.settings import FixSettings


ID = "nixl-listener"
SWITCH = "enable_listen_thread"


def without_listener(modules: Collection[str], original: Callable[..., None]) -> Callable[..., None]:
    """`__init__` of the agent configuration: called from one of these modules, it leaves the listener off.

    The adapter imports NIXL inside its functions, so there is no name in its module to replace. The caller's module
    distinguishes its configurations from all others. If our own code fails, upstream gets its arguments unchanged.
    """
    signature = inspect.signature(original)
    tried = fuse.of(ID)

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807  it becomes one
        given, failure = (args, kwargs), None
        if not tried.blown:
            try:
                if sys._getframe(1).f_globals.get("__name__") in modules:
                    given = _switched_off(signature, self, args, kwargs)
                    tried.in_a_row = 0
            except Exception as error:
                failure = error
        original(self, *given[0], **given[1])
        if failure is not None:  # arguments that upstream refuses are no fault of ours
            tried.fault(failure)

    return __init__


def _switched_off(
    signature: inspect.Signature, config: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    bound = signature.bind(config, *args, **kwargs)
    bound.arguments[SWITCH] = False
    return bound.args[1:], bound.kwargs


# ---- when it is needed, and what it replaces ----

CONFIG = "nixl_agent_config"


def probe(up: Upstream) -> Answer:
    adapter = up.first(*NIXL_ADAPTERS)
    if adapter is None:
        return absent("there is no raw NIXL adapter")
    if up.module(NIXL) is None:
        return absent("NIXL is not installed")
    make = up.attribute(NIXL, f"{CONFIG}.__init__")
    if not takes(up, make, SELF, **{SWITCH: SELF}) or SWITCH not in up.parameters(make):
        return unknown(f"{NIXL}.{CONFIG} does not take {SWITCH}")
    sources = [up.source(function) for function in _functions(adapter)]
    if None in sources or not sources:
        return unknown("the adapter's source cannot be read")
    return _judged(up, make, [source for source in sources if source is not None])


def _judged(up: Upstream, make: Any, sources: list[str]) -> Answer:
    trees = [ast.parse(textwrap.dedent(source)) for source in sources]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    calls = [node for node in nodes if isinstance(node, ast.Call) and _named(node.func) == CONFIG]
    if not calls:
        return unknown(f"the adapter does not call {CONFIG}")
    if not all(_fits(up, make, call) for call in calls):
        return unknown(f"the adapter does not call {CONFIG} with arguments that it takes")
    if all(_leaves_it_off(call) for call in calls):
        return fixed("the adapter leaves the listener off itself")
    return needed("the adapter starts a listener on a fixed port: a second agent on the host fails or hangs")


def _functions(adapter: ModuleType) -> list[FunctionType]:
    """Those that the module defines, and the methods of its classes."""
    own = [value for value in vars(adapter).values() if getattr(value, "__module__", None) == adapter.__name__]
    methods = [value for each in own if isinstance(each, type) for value in vars(each).values()]
    return [value for value in (*own, *methods) if isinstance(value, FunctionType) and _is_written_in(value, adapter)]


def _is_written_in(function: FunctionType, adapter: ModuleType) -> bool:
    """Not generated, as a dataclass's methods are."""
    return function.__code__.co_filename == adapter.__file__


def _named(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _fits(up: Upstream, make: Any, call: ast.Call) -> bool:
    """If the call unpacks lists or dictionaries, its arguments are not known before it runs."""
    named = [keyword.arg for keyword in call.keywords]
    if None in named or any(isinstance(argument, ast.Starred) for argument in call.args):
        return True
    return takes(up, make, SELF, *[SELF] * len(call.args), **{name: SELF for name in named if name is not None})


def _leaves_it_off(call: ast.Call) -> bool:
    return any(
        keyword.arg == SWITCH and isinstance(keyword.value, ast.Constant) and keyword.value.value is False
        for keyword in call.keywords
    )


def replacements(up: Upstream, settings: "FixSettings") -> Sequence[Replacement]:  # noqa: ARG001  one interface
    return [Replacement(Seam(NIXL, f"{CONFIG}.__init__"), partial(without_listener, NIXL_ADAPTERS))]


def self_test() -> None:
    h6.self_test(without_listener)


FIX = Fix(
    id="nixl-listener",
    hazard="H6",
    title="Agents of the raw NIXL adapter do without the metadata listener",
    upstream=(),
    triggers=(*NIXL_ADAPTERS, NIXL),
    probe=probe,
    replacements=replacements,
    self_test=self_test,
    expected=in_variants(needed="C", fixed="F", absent="A B B2 D"),
)
