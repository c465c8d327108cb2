"""The child of a self-check, on the ground of the stand-in."""

import sys

from tests.tools.selfcheck.ground import StandInGround
from trtllm_kvfix.tools.selfcheck.steps import main

if __name__ == "__main__":
    main(sys.argv[1:], StandInGround)
