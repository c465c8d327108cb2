"""The reference model of the block manager: docs/block-manager.md written a second time, slow and obvious.

It shares no code and no data structure with the C++ core: sets are plain lists, every order is a `min` over stamps,
a tree is objects that point at each other. It does not choose block ids or slot numbers (the core may use any free
one): a block is an object with a serial, and a tenancy of a slot is a serial too.
"""

from .manager import ModelManager
from .state import Block
from .values import TIERS, Admission, BatchAdmission, Config, PrefixReuse, Request, Retention, WindowShape

__all__ = [
    "TIERS",
    "Admission",
    "BatchAdmission",
    "Block",
    "Config",
    "ModelManager",
    "PrefixReuse",
    "Request",
    "Retention",
    "WindowShape",
]
