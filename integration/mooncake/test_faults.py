"""The store fails in every way that was found. The engine computes instead, waits for nothing long, and goes on."""

import os
import signal
import sys
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path

from integration.mooncake.engines import Engine, MakeEngine
from integration.mooncake.nodes import MOONCAKE, Master, Node, client_of, stop, until

PROMPT = list(range(200, 248))
BEHIND = 44
TAMPER = Path(__file__).with_name("tamper.py")


def stored(engine: Engine) -> list[int]:
    """The answer, once the prompt is in the store and the engine's host tier has forgotten it."""
    answer = engine.serve(PROMPT).answer
    engine.ask("forget_host_tier")
    return answer


def tamper(master: Master, how: str, names: str = "") -> str:
    """A command for a shell: in a process of its own, as a client may never be used again. Without names, all."""
    return (
        f"{sys.executable} {TAMPER} {MOONCAKE} {master.address} 127.0.0.1:{master.metrics_port} {how} {names} "
        ">/dev/null 2>&1"
    )


def goes_on(engine: Engine) -> None:
    """Checks that it serves other prompts from the store as before, and holds nothing."""
    other = [9, *PROMPT[1:-1], 9]
    engine.serve(other)
    engine.ask("forget_host_tier")
    forget = partial(engine.ask, "forget_host_tier")
    until(lambda: engine.serve(other).loaded == BEHIND, "nothing is loaded any more", forget)
    assert engine.ask("blocks_in_use") == 0


def bad_blocks_are_seen(engine: Engine, answer: list[int]) -> None:
    """The prompt is computed, also where the store was slow to answer, and is asked again."""

    def seen() -> bool:
        served = engine.serve(PROMPT)
        assert served.loaded == 0 and served.answer == answer
        return bool(engine.ask("counts")["offload_remote_bad_blocks"])

    until(seen, "the blocks are not asked for", partial(engine.ask, "forget_host_tier"))


def comes_whole(engine: Engine, answer: list[int]) -> None:
    """From the store. A porter that has just begun may be slow to answer, and then the prompt is computed."""
    served = []

    def whole() -> bool:
        served.append(engine.serve(PROMPT))
        return served[-1].loaded == BEHIND

    until(whole, "the prompt does not come from the store", partial(engine.ask, "forget_host_tier"))
    assert all(each.answer == answer for each in served)


def test_flipped_bytes_are_seen(make_engine: MakeEngine, master: Master, node: Node) -> None:
    engine = make_engine()
    answer = stored(engine)
    assert os.system(tamper(master, "flip")) == 0
    bad_blocks_are_seen(engine, answer)
    goes_on(engine)
    del node


def test_one_bad_object_costs_itself_and_is_put_again(make_engine: MakeEngine, master: Master, node: Node) -> None:
    engine, other = make_engine(), make_engine()
    answer = stored(engine)
    assert os.system(tamper(master, "flip", engine.ask("object_at", PROMPT, 6))) == 0
    again = other.serve(PROMPT)
    assert again.answer == answer and again.corrupt == []
    counts = other.ask("counts")
    assert counts["offload_remote_bad_blocks"] == 1
    assert counts["offload_remote_hit_tokens"] == 6 * 4, "the blocks in front of it"
    other.ask("settle")
    assert other.ask("counts")["offload_remote_put_blocks"] >= 1, "it is put again"
    comes_whole(make_engine(), answer)
    del node


def test_another_blocks_contents_are_seen(make_engine: MakeEngine, master: Master, node: Node) -> None:
    """The read's memory went to another object meanwhile, so the contents are whole, with a checksum that fits."""
    engine = make_engine()
    answer = stored(engine)
    assert os.system(tamper(master, "swap")) == 0
    bad_blocks_are_seen(engine, answer)
    del node


def test_a_block_that_goes_during_a_load(make_engine: MakeEngine, master: Master, node: Node) -> None:
    engine = make_engine()
    answer = stored(engine)
    engine.ask("after_look", tamper(master, "remove"))
    again = engine.serve(PROMPT)
    assert again.loaded == 0 and again.answer == answer
    del node


def test_a_node_that_dies_during_a_load(make_engine: MakeEngine, node: Node) -> None:
    engine = make_engine()
    answer = stored(engine)
    engine.ask("after_look", f"kill -9 {node.process.pid}")
    again = engine.serve(PROMPT)
    assert again.loaded == 0 and again.answer == answer
    assert engine.ask("blocks_in_use") == 0


def test_a_node_that_stops_during_a_load_writes_nothing_later(make_engine: MakeEngine, node: Node) -> None:
    engine = make_engine(host_blocks=48, timeout_s=5)
    answer = stored(engine)
    before, starts = engine.ask("porter")
    engine.ask("after_look", f"kill -STOP {node.process.pid}")
    again = engine.serve(PROMPT)
    assert again.loaded == 0 and again.answer == answer
    assert engine.ask("counts")["offload_remote_late"] == 1
    assert engine.ask("blocks_in_use") == 0  # so the process that could have written them has gone
    assert not Path(f"/proc/{before}").exists()
    node.process.send_signal(signal.SIGCONT)
    until(lambda: engine.ask("porter")[1] > starts, "no new porter")
    engine.serve([8, *PROMPT])  # takes the same slots
    assert engine.serve([8, *PROMPT]).loaded


def test_a_master_that_stops_delays_nobody(make_engine: MakeEngine, master: Master, node: Node) -> None:
    engine = make_engine()
    answer = stored(engine)
    stop(master.process)
    again = engine.serve(PROMPT)
    assert again.loaded == 0 and again.answer == answer
    assert engine.ask("counts")["offload_remote_unanswered"] >= 1
    master.process.send_signal(signal.SIGCONT)
    goes_on(engine)
    del node


def test_a_lookup_that_has_no_end_ends_the_porter(make_engine: MakeEngine, master: Master, node: Node) -> None:
    engine = make_engine(lookup_wait_ms=20, timeout_s=1)
    stored(engine)
    before, _ = engine.ask("porter")
    stop(master.process)
    assert engine.serve(PROMPT).loaded == 0
    until(lambda: engine.ask("porter")[0] != before, "the lookup goes on", lambda: engine.serve([2, 3]))
    master.process.send_signal(signal.SIGCONT)
    del node


def test_a_master_that_dies_and_comes_back(make_engine: MakeEngine, master: Master, node: Node) -> None:
    engine, other = make_engine(), make_engine()
    answer = stored(engine)
    master.kill()
    for _ in range(3):
        again = engine.serve(PROMPT)
        assert again.answer == answer
    master.come_back()
    assert engine.serve([5, *PROMPT]).loaded == 0  # a new master knows nothing of what there was
    goes_on(engine)
    until(lambda: other.serve([9, *PROMPT[1:-1], 9]).loaded == BEHIND, "the other engine does not come back")
    del node


def test_what_a_host_tier_has_comes_back_to_a_master_that_has_forgotten_it(
    make_engine: MakeEngine, master: Master, node: Node
) -> None:
    engine = make_engine()
    engine.serve(PROMPT)
    engine.ask("settle")
    put = engine.ask("counts")["offload_remote_put_blocks"]
    master.kill()
    assert engine.serve(PROMPT).loaded == BEHIND, "from the host tier"
    master.come_back()

    def serve() -> None:
        assert engine.serve(PROMPT).loaded == BEHIND
        engine.ask("settle")

    until(lambda: engine.ask("counts")["offload_remote_put_blocks"] >= put + BEHIND // 4, "nothing is put again", serve)
    assert make_engine().serve(PROMPT).loaded == BEHIND
    del node


def test_a_lookup_keeps_a_block_from_being_evicted(master: Master, node: Node) -> None:
    """What follows for blocks of a host tier is that they are looked up, too."""
    client = client_of(master.address)
    kept, others = ([f"{kind} {number}" for number in range(50)] for kind in ("kept", "others"))
    for name in (*kept, *others):
        assert client.put(name, bytes(1000)) == 0
    numbers, unasked = count(), iter(others)

    def fill() -> None:
        for _ in range(16):
            assert client.batch_is_exist(kept) == [1] * len(kept)
            client.put(f"large {next(numbers)}", bytes(1 << 20))

    # Each is asked about once, since that would keep it as well.
    until(lambda: client.is_exist(next(unasked, others[0])) == 0, "nothing is evicted", fill)
    assert client.batch_is_exist(kept) == [1] * len(kept)
    client.close()
    del node


def test_a_master_that_comes_later(master: Master) -> None:
    master.kill()
    engine = Engine(master.address)
    try:
        assert engine.serve([3, *PROMPT]).loaded == 0
        assert engine.ask("counts")["offload_remote_up"] == 0
        master.come_back()
        with closing(Node(master.address)):
            engine.ask("up")
            stored(engine)
            assert engine.serve(PROMPT).loaded == BEHIND
    finally:
        engine.kill()


def test_a_store_without_room(make_engine: MakeEngine, node: Node) -> None:
    node.close()
    engine = make_engine()
    answer = stored(engine)
    assert engine.serve(PROMPT).answer == answer
    counts = engine.ask("counts")
    assert counts["offload_remote_put_blocks"] == 0 and counts["offload_remote_dropped_blocks"]
    assert engine.ask("blocks_in_use") == 0


def test_a_porter_that_dies_is_started_again(make_engine: MakeEngine, node: Node) -> None:
    engine = make_engine()
    answer = stored(engine)
    process, starts = engine.ask("porter")
    os.kill(process, signal.SIGKILL)
    until(lambda: engine.ask("porter")[1] > starts, "it is not started again")
    engine.ask("up")
    comes_whole(engine, answer)
    del node
