"""A stand-in for TensorRT-LLM: its module paths, names, signatures and call orders, and its bugs.

STANDIN_VARIANT chooses the upstream that it stands for when it is imported (`_standin/variant.py`). What is written
here about upstream cites the section of the surface description that says so. Names that upstream does not have are in
`_standin`.
"""

import sys

from ._standin.variant import NAME, Hides

sys.meta_path.insert(0, Hides())

from ._utils import mpi_rank, mpi_world_size  # noqa: E402  the finder comes first
from .logger import logger  # noqa: E402  hides the module of this name, as upstream's does
from .mapping import Mapping  # noqa: E402

__all__ = ["Mapping", "logger", "mpi_rank", "mpi_world_size"]

__version__ = f"0.0.0+standin.{NAME}"
