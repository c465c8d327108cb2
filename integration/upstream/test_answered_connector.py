"""A connector that answers when it is asked, in the place of one that reserves (test_newest_connector.py).

Upstream asks about a request when it has allocated pages for a chunk. An answer may go past a window: then pages of the
chunk are passed before anybody has written them. Upstream keeps them to be reused, and who reuses them reads what
others have left there. `connector-prefixes` has them given back first.

A match may end inside a block, and the request's page is then a copy of another's. There a prefix passes what has not
been written whether the connector answers or reserves.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest

from integration.upstream.newest_connector import CONNECTED_HAPPENS, ConnectedAttack, no_host_tier, parts_of_blocks
from integration.upstream.test_newest_connector import newest, pytestmark
from integration.upstream.test_newest_manager import AWAITED, WAYS
from tests.fixes.faults import failing
from tests.torture import v2_attack
from tests.torture.engines import needed
from tests.torture.test_v2_attack import require_right
from tests.torture.v2_attack import Way
from tests.torture.v2_books import OurLevels
from trtllm_kvfix.overlay.fuse import IN_A_ROW_MAX

__all__ = ["pytestmark"]
SERVED, SHARED = 32, 8  # tokens. The window of a request that has got the first has passed the second
IN_PART = 6  # of a match that ends inside the last block of what is shared
FIX = "connector-prefixes"
LOOPS = [Way("F", overlap=overlap, guesses=(0,)) for overlap in (True, False)]


class OneByOne(ConnectedAttack):
    """Of each two, the first gets a prefix that is longer than the window. The second begins with the same tokens."""

    def _drawn(self) -> Any:
        self._numbers += 1
        first = self._numbers % 2 == 1
        same = [1000 * ((self._numbers + 1) // 2) + at for at in range(SERVED)]
        prompt = [*same, 1, 2, 3] if first else [*same[:SHARED], 4]
        return self.server.request(self._numbers, prompt, 2)

    def _disturb(self) -> None:
        """Nobody cancels, and nothing is suspended."""

    def offer(self, request: Any, begin: int) -> tuple[int, bool]:
        length = SERVED - begin if request.request_id % 2 == 1 else 0
        return length, length > 0 and self.random.random() < 0.5


@pytest.fixture
def one_at_a_time() -> Iterator[None]:
    with mock.patch.object(v2_attack, "ACTIVE", 1):
        yield


@pytest.mark.usefixtures("one_at_a_time")
@pytest.mark.parametrize("way", LOOPS, ids=str)
def test_upstream_keeps_pages_to_be_reused_that_nobody_has_written(way: Way) -> None:
    others = [each for each in needed("F") if each != FIX]
    with way.build(), newest(way, others, OneByOne, failing=0, answers=True) as (attack, _):
        attack.run(60)
        assert attack.corrupt_tables == [] and attack.contents.wrong
        said = re.compile(r"request \d*[02468] read .* for its token [0-7] in page \d+ of group 1")
        assert [each for each in attack.contents.wrong if not said.fullmatch(each)] == []


@pytest.mark.usefixtures("one_at_a_time")
@pytest.mark.parametrize(("answers", "fixes"), [(False, []), (True, [FIX])], ids=["reserved", "given-back"])
@pytest.mark.parametrize("way", LOOPS, ids=str)
def test_the_second_is_right_behind_a_reservation_or_where_pages_are_given_back(
    way: Way, *, answers: bool, fixes: list[str]
) -> None:
    with way.build(), newest(way, fixes, OneByOne, failing=0, answers=answers) as (attack, found):
        attack.run(60)
        require_right(attack)
        assert attack.did["load at once"] and attack.did["load in the background"]
    assert found == []


@pytest.mark.usefixtures("one_at_a_time")
@pytest.mark.parametrize("always", [False, True], ids=["once", "always"])
@pytest.mark.parametrize("name", ["first_passed", "whole_blocks"])
def test_where_our_own_code_fails_an_answer_is_not_used(name: str, *, always: bool) -> None:
    place, way = f"fixes.connector_prefixes.fix.{name}", LOOPS[0]
    with (
        way.build(),
        failing(place, always=always) as planted,
        newest(way, [FIX], OneByOne, failing=0, answers=True) as (attack, found),
    ):
        attack.run(60)
        require_right(attack)
    assert f"Injected: {place}" in found
    if always and name == "first_passed":  # a request comes by `whole_blocks` first, which ends a row of faults
        assert planted.raised > IN_A_ROW_MAX
    else:
        assert planted.raised == (IN_A_ROW_MAX if always else 1)


class InThrees(OneByOne):
    """The second shares a part of a block with the first, and gets a longer prefix. The third begins as the second."""

    def _drawn(self) -> Any:
        self._numbers += 1
        group, which = divmod(self._numbers - 1, 3)
        first = [2000 * group + at for at in range(SHARED)]
        second = [*first[:IN_PART], *(2000 * group + 1000 + at for at in range(IN_PART, SERVED))]
        prompt = [[*first, 1], [*second, 1, 2, 3], [*second[:SHARED], 4]][which]
        return self.server.request(self._numbers, prompt, 2)

    def offer(self, request: Any, begin: int) -> tuple[int, bool]:
        length = max(0, SERVED - begin) if request.request_id % 3 == 2 else 0
        return length, length > 0 and self.random.random() < 0.5


@pytest.mark.usefixtures("one_at_a_time")
@pytest.mark.parametrize("answers", [False, True], ids=["reserves", "answers"])
@pytest.mark.parametrize("way", LOOPS, ids=str)
def test_upstream_keeps_a_block_that_holds_a_part_of_another(way: Way, *, answers: bool) -> None:
    others = [each for each in needed("F") if each != FIX]
    options: dict[str, Any] = {"levels": parts_of_blocks, "failing": 0, "answers": answers}
    with way.build(), newest(way, others, InThrees, **options) as (attack, _):
        attack.run(90)
        assert attack.corrupt_tables == [] and attack.contents.wrong
        first = 0 if answers else IN_PART  # where nothing is left to match, an answer passes whole pages as well
        said = re.compile(rf"request \d+ read .* for its token [{first}-{SHARED - 1}] in page \d+ of group 1")
        assert [each for each in attack.contents.wrong if not said.fullmatch(each)] == []
    with way.build(), newest(way, [FIX], InThrees, **options) as (attack, found):
        attack.run(90)
        require_right(attack)
        assert attack.did["load at once"] and attack.did["load in the background"] and attack.did["reuse"]
    assert found == []


@pytest.mark.parametrize("levels", [no_host_tier, parts_of_blocks])
@pytest.mark.parametrize("way", AWAITED, ids=str)
def test_where_pages_are_given_back_and_none_fails_and_upstream_waits_it_needs_nothing_else(
    way: Way, levels: Callable[[int, int, int], OurLevels]
) -> None:
    with way.build(), newest(way, [FIX], levels=levels, failing=0, answers=True) as (attack, _):
        attack.run()
        require_right(attack)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_with_all_fixes_nothing_is_wrong(way: Way) -> None:
    with way.build(), newest(way, needed(way.variant), answers=True) as (attack, found):
        attack.run()
        require_right(attack)
        assert CONNECTED_HAPPENS - attack.did.keys() == set()
    assert found == []


def test_a_connector_is_asked_the_same_with_all_fixes() -> None:
    heard, way = [], Way("F", guesses=(0,))
    for fixes in ([FIX], needed("F")):
        with way.build(), newest(way, fixes, failing=0, answers=True) as (attack, _):
            attack.run(150)
            heard.append([str(each) for each in attack.side.heard])
    one, all_fixes = heard
    assert one == all_fixes and len(one) > 300
