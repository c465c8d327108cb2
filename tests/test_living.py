"""What lives is listed, whoever adds meanwhile."""

import gc

from tests.threads import run_together
from tests.torture.engines import threads_switch_often
from trtllm_kvfix.living import Living


class Thing:
    pass


def test_what_nobody_keeps_is_listed_no_more() -> None:
    living: Living[Thing] = Living()
    kept = Thing()
    living.add(kept)
    living.add(Thing())
    gc.collect()
    assert living.all() == [kept]


def test_threads_add_while_others_list() -> None:
    living: Living[Thing] = Living()
    kept = [[Thing() for _ in range(200)] for _ in range(2)]

    def add(things: list[Thing]) -> None:
        for each in things:
            living.add(each)
            living.add(Thing())  # goes at once

    def read() -> None:
        for _ in range(200):
            assert all(isinstance(each, Thing) for each in living.all())

    with threads_switch_often():
        run_together(lambda: add(kept[0]), lambda: add(kept[1]), read)
    assert {id(each) for each in living.all()} == {id(each) for things in kept for each in things}
