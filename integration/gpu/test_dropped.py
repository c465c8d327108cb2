"""Needs a CUDA GPU, and tests/ beside integration/.

On a GPU, memory is given back behind all streams. Python's other threads go on meanwhile.
"""

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from tests.staging.dropped import KINDS, check_apart  # noqa: E402  not there where the module is skipped


@pytest.mark.parametrize("kind", KINDS)
def test_an_object_that_is_dropped_waits_without_the_gil(kind: str) -> None:
    check_apart("cuda", kind)
