"""Check that a function takes the calls of upstream's own callers. Probes ask this before they answer `needed`."""

import inspect
from collections.abc import Callable
from typing import Any

from trtllm_kvfix.overlay.upstream import Upstream

SELF = object()  # stands for any argument


def takes(up: Upstream, function: Callable[..., Any] | None, *arguments: Any, **named: Any) -> bool:
    """Bound functions have no signature; where their documentation names the parameters, the number must fit."""
    if function is None:
        return False
    try:
        inspect.signature(function).bind(*arguments, **named)
    except TypeError:
        return False
    except ValueError:
        documented = [name for name in up.parameters(function) if name != "self"]
        return not documented or len(documented) == len(arguments) - 1 + len(named)
    return True
