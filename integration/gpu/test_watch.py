"""Needs a CUDA GPU and CUPTI: the races that are planted by the driver's calls alone, under `watch`."""

import ctypes as c

import pytest

pytest.importorskip("pydantic", reason="needs pydantic, for the settings")
try:
    if c.CDLL("libcuda.so.1").cuInit(0) != 0:
        pytest.skip("needs a CUDA GPU", allow_module_level=True)
except OSError:
    pytest.skip("needs a CUDA driver", allow_module_level=True)

from integration.gpu.watch.planted_graphs import ALL_CASES
from integration.gpu.watch.rows import planted_row

TIMES = 5


@pytest.mark.parametrize(
    ("arm", "mode"), [("racy", "plain"), ("racy", "report"), ("racy", "hold"), ("repaired", "report")]
)
@pytest.mark.parametrize("name", ALL_CASES)
def test_planted(name: str, arm: str, mode: str) -> None:
    row = planted_row(name, arm, mode, TIMES)
    assert row.ok, row
