"""Takes steps in a process of their own and writes down each before and after: a crash names the step it came in.

python -m trtllm_kvfix.tools.selfcheck.child DESCRIPTOR STEP...
"""

import json
import os
import sys
from collections.abc import Callable, Sequence

from trtllm_kvfix.hazards.ground import Ground, TorchGround
from trtllm_kvfix.overlay import import_hook
from trtllm_kvfix.tools.selfcheck import steps


def main(arguments: Sequence[str], ground: Callable[[], Ground] = TorchGround) -> None:
    import_hook.remove()  # the fixes of this process would be in the arms that are to be without
    descriptor, *names = arguments
    with os.fdopen(int(descriptor), "w", buffering=1) as report:
        for name in names:
            report.write(json.dumps({"begun": name}) + "\n")
            outcome = steps.take(name, ground)
            report.write(json.dumps({"ended": name, "outcome": outcome._asdict()}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
