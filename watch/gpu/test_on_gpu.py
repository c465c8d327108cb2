"""Needs a CUDA GPU and CUPTI: the races that are planted by the driver's calls alone, under hostrace."""

import ctypes as c
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

try:
    if c.CDLL("libcuda.so.1").cuInit(0) != 0:
        pytest.skip("needs a CUDA GPU", allow_module_level=True)
except OSError:
    pytest.skip("needs a CUDA driver", allow_module_level=True)

from watch.gpu.planted_graphs import ALL_CASES
from watch.gpu.rows import ARMS, Row, planted_row

TIMES = 5
AT_ONCE = max((os.cpu_count() or 2) // 2, 1)
Rows = dict[tuple[str, str, str], "Future[Row]"]


@pytest.fixture(scope="module")
def rows(request: pytest.FixtureRequest) -> Iterator[Rows]:
    """Programs of all selected tests, several at once: each spends most of its time on its start."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    chosen = [item.callspec.params for item in items if item.module is request.module]
    keys = [(str(each["name"]), str(each["arm"]), str(each["mode"])) for each in chosen]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {key: pool.submit(planted_row, *key, TIMES) for key in keys}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize(("arm", "mode"), ARMS)
@pytest.mark.parametrize("name", ALL_CASES)
def test_planted(rows: Rows, name: str, arm: str, mode: str) -> None:
    row = rows[name, arm, mode].result()
    assert row.ok, row
