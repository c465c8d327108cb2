"""Events name whole blocks, so the rig that follows them counts those alone (integration/upstream)."""

import pytest

from integration.upstream.promises import whole_blocks
from tests.core.scenes import BLOCK, begin, leave_behind, manager, prompt, push_to_host

LONG = prompt(1, 2 * BLOCK)
FORK = [*LONG[: BLOCK + 2], *range(77, 77 + BLOCK - 2)]  # two blocks; it shares one, and the beginning of the next


@pytest.mark.parametrize("is_running", [True, False])
def test_a_block_that_only_begins_like_the_prompt_is_not_one_of_its_own(is_running: bool) -> None:
    m = manager(primary=4)
    (begin if is_running else leave_behind)(m, 1, LONG)
    assert whole_blocks(m, LONG) == (2, 0)
    assert whole_blocks(m, FORK) == (1, 0)
    assert whole_blocks(m, FORK[BLOCK:]) == (0, 0)


def test_each_tier_has_its_own() -> None:
    m = manager(primary=2, host=2)
    leave_behind(m, 1, LONG)
    push_to_host(m, 2, blocks=2)
    assert whole_blocks(m, FORK) == (0, 1)
