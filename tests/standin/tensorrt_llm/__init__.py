"""A stand-in for TensorRT-LLM: its module paths, names, signatures and call orders, and its bugs.

STANDIN_VARIANT chooses the upstream that it stands for when it is imported (`_standin/variant.py`). What is written
here about upstream cites the section of the surface description that says so. Names that upstream does not have are in
`_standin`.
"""

import sys

from ._standin.variant import NAME, Hides

sys.meta_path.insert(0, Hides())

__version__ = f"0.0.0+standin.{NAME}"
