"""The child of a self-check in which `staged-offsets-v1` is put on and stages nothing."""

import sys
from collections.abc import Callable
from typing import Any

from tests.tools.selfcheck.ground import StandInGround
from trtllm_kvfix.fixes.staged_offsets_v1 import mechanism
from trtllm_kvfix.staging.stagers import Stagers
from trtllm_kvfix.tools.selfcheck.child import main


def as_upstream(stagers: Stagers, original: Callable[..., Any]) -> Callable[..., Any]:
    del stagers

    def copy_batch_block_offsets(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    return copy_batch_block_offsets


if __name__ == "__main__":
    mechanism.staged_copy = as_upstream
    main(sys.argv[1:], StandInGround)
