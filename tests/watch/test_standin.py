"""The stand-in's loop under `watch`, on the made-up driver: without a fix its touches are reported, with it none is."""

import json

import pytest

from watch.tests.conftest import Watch

pytest.importorskip("trtllm_kvfix._core", reason="needs the extension")

from integration.gpu.watch.ours import KNOWN, statement

STEPS = "60"
SUPPRESS = ("--suppress", str(KNOWN))
# A text that has to be among the statements at fault. H2's gather is a kernel: it runs on a GPU.
AT = {
    "offsets-v1": "impl.copy_batch_block_offsets(",
    "inputs": "self.prompt_lens_cpu.numpy()[: len(self.request_ids)] = self.prompt_lens",
    "graph-inputs": "self.token_to_slot_host.numpy()[: len(slots)] = slots",
}


@pytest.mark.parametrize("name", AT)
def test_without_the_fix_the_statement_at_fault_is_named(watch: Watch, name: str) -> None:
    done = watch("integration.gpu.watch.ours_work", "standin", name, "unfixed", STEPS, options=SUPPRESS)
    assert done.status == 1
    statements = [statement(race) for race in done.races]
    assert all(statements)
    assert any(AT[name] in each for each in statements), statements


@pytest.mark.parametrize("name", AT)
def test_with_the_fix_nothing_is_reported(watch: Watch, name: str) -> None:
    done = watch("integration.gpu.watch.ours_work", "standin", name, "fixed", STEPS, options=SUPPRESS)
    assert done.status == 0, done.said
    assert json.loads(done.out)["wrong"] == 0
    assert done.times("races") == done.times("possible") == 0
    assert done.report["numbers"]["guarded"] > int(STEPS)
