"""A row about what a test on a GPU saw, where `KVFIX_RESULTS` names a folder for rows."""

import os
import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[2] / "bench"))
from measure import FACTS, append


def record(file: str, figures: dict[str, str | int]) -> None:
    if "KVFIX_RESULTS" in os.environ:
        columns = (*FACTS, "device", "torch", *figures)
        row = [torch.cuda.get_device_name(), torch.__version__, *figures.values()]
        append(Path(os.environ["KVFIX_RESULTS"]) / file, columns, [row])
