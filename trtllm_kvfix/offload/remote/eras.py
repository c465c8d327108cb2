"""The era of an engine's weights, which is a part of the names of its blocks.

The names of a checkpoint's weights are those that all nodes share. Weights that came later have no name that two
engines could agree on: nothing says whether another one was given the same. So each change begins an era under a name
that nobody else has. What the engine puts from then on, it finds again, and nobody else does, until it starts anew.
"""

import secrets

from trtllm_kvfix.offload.remote.keys import root_of

NAME_BYTES = 16


class Era:
    """The scheduler side's; nothing of it reaches other ranks but the names of blocks."""

    def __init__(self) -> None:
        self._name = ""  # that of the checkpoint

    def begin_next(self) -> None:
        self._name = secrets.token_hex(NAME_BYTES)

    def root(self, checkpoint: bytes) -> bytes:
        """Begins the names of blocks, where those of the checkpoint's weights begin with `checkpoint`."""
        return root_of({"checkpoint": checkpoint.hex(), "era": self._name}) if self._name else checkpoint
