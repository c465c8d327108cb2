"""A server with a draft model's KV-cache manager beside the target's: both hold the same requests."""

from typing import Any

from integration.upstream.server import Outcome, Server


class DraftServer(Server):
    """The draft's manager comes before the target's, as upstream orders them. No draft model runs."""

    def _managers(self, types: Any) -> dict[Any, Any]:
        self.draft = self._v1_manager(is_draft=True)
        return {types.DRAFT_KV_CACHE_MANAGER: self.draft, **super()._managers(types)}

    def _look(self, outcome: Outcome) -> None:
        super()._look(outcome)
        of_target, of_draft = admitted(self.manager.impl), admitted(self.draft.impl)
        if of_target != of_draft:
            outcome.remarks.append(f"the target's manager admits {of_target}, the draft's {of_draft}")
        windows = set(self.draft.max_attention_window_vec)
        if any(self.draft.impl.witness_free(window) != self.shape.blocks for window in windows):
            outcome.remarks.append("blocks of the draft's manager are not released")


def admitted(impl: Any) -> list[str]:
    """Requests in the order in which the bound manager was given them."""
    return [words for method, words in impl.witness_calls() if method.startswith("add_sequence")]
