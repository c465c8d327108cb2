"""The connector with a store that answers at once does what `replay --remote` predicts."""

from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from tests.offload.remote.porter_double import Key, planted, sealed
from trtllm_kvfix.offload import policy
from trtllm_kvfix.offload.remote import scheduler
from trtllm_kvfix.tools.replay.command import generate
from trtllm_kvfix.tools.replay.engine import Replay
from trtllm_kvfix.tools.replay.host_tier import Found, KeyStore
from trtllm_kvfix.tools.replay.outcome import HostAdmission, HostTierKind

from .real_tier import BLOCK_BYTES, RealTier, Request

ROUNDS_MAX = 50


class RealRemoteTier(RealTier):
    """Between two iterations everything that is on its way to the store gets there."""

    def find(self, index: int, tokens_found: int) -> Found:
        """Upstream's scheduler sees a request once it has been looked up."""
        request = Request(index, self.replay.known(index))
        self.worker.choosers.room.manager = self
        assert any(self.worker.choosers.shown(self, [request]) for _ in range(ROUNDS_MAX))
        return super().find(index, tokens_found)

    def step(self, running: Sequence[tuple[int, int]]) -> None:
        super().step(running)
        side = self.scheduler.side
        for _ in range(ROUNDS_MAX):
            nothing = SimpleNamespace(new_requests=[], cached_requests=[])
            self.worker.bind_connector_meta(self.scheduler.build_connector_meta(nothing))
            self._settle([], [])
            if len(side.ledger) == 0:
                return


@pytest.mark.parametrize(("name", "blocks_host"), [("small", 60), ("small", 90), ("chat", 400)])
def test_the_connector_does_what_the_replay_predicts(
    name: str, blocks_host: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory: dict[Key, bytes] = {}
    planted(monkeypatch, memory)
    monkeypatch.setattr(scheduler, "PUT_SHARE", 1)  # prompts that come at once would not all be put into small pools
    monkeypatch.setenv("TRTLLM_KVFIX_OFFLOAD_HOST_BYTES", str(blocks_host * sealed(BLOCK_BYTES)))
    made = generate(name, 3)
    shape = made.shape.model_copy(update={"blocks_host": blocks_host, "host_tier": HostTierKind.CONNECTOR})
    alone = Replay(made.workload, shape).run()
    predicted = Replay(made.workload, shape.model_copy(update={"blocks_remote": 1 << 20})).run()
    tier = RealRemoteTier(shape)
    found = tier.run(made.workload, shape)
    tier.close()
    assert tier.foreign == []
    assert predicted.tokens.remote > 0
    assert predicted.tokens.host > alone.tokens.host
    assert found.tokens.host == pytest.approx(predicted.tokens.host, rel=0.05)


def test_what_the_host_tier_declines_is_found_in_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """As much is reused as where everything is taken. Without the part of the pool that it goes through, far less."""
    made = generate("chat", 0)
    sizes = {"blocks_primary": 150, "blocks_host": 100, "blocks_remote": 1 << 20}

    def reused(admission: HostAdmission) -> int:
        tier = {"host_tier": HostTierKind.CONNECTOR, "host_admission": admission}
        return Replay(made.workload, made.shape.model_copy(update=sizes | tier)).run().tokens.host

    everything, adaptive = reused(HostAdmission.ALL), reused(HostAdmission.ADAPTIVE)
    monkeypatch.setattr(policy, "staging_slots", lambda _slots: 0)
    nowhere = reused(HostAdmission.ADAPTIVE)
    assert adaptive > 0.95 * everything
    assert nowhere < 0.7 * everything


def test_without_room_there_is_no_remote_tier() -> None:
    made = generate("small", 3)
    shape = made.shape.model_copy(update={"blocks_host": 60, "host_tier": HostTierKind.CONNECTOR})
    assert Replay(made.workload, shape).run().tokens.remote == 0


def test_a_store_keeps_what_was_put_or_asked_for_last() -> None:
    store = KeyStore(3)
    a, b, c, d = (bytes([number]) for number in range(4))
    store.put([a, b, c])
    assert store.leading([a, b]) == 2
    store.put([d])
    assert store.leading([c]) == 0
    assert store.leading([a, b, c, d]) == 2
    assert store.leading([d]) == 1
