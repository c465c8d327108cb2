"""The pipeline loop, with upstream's own input preparation on both ranks.

The loop knows the tokens of a step before it prepares the next one of the same requests, so the host ships them.
"""

from typing import Any

from integration.upstream.input_server import InputServer
from integration.upstream.judging import InputBatch, Judge
from integration.upstream.pipeline import Carried, RankEngine, RankServer


class RankJudge(RankEngine, Judge):
    def launched(self, *given: Any, **named: Any) -> InputBatch:
        batch = Judge.launched(self, *given, **named)
        self.under_way.append(batch)
        return batch


class RankInputServer(RankServer, InputServer):
    engine: RankJudge
    engine_class = RankJudge

    def _model_engine(self) -> Any:
        engine = super()._model_engine()
        forward = engine.forward

        def carried(*given: Any, **named: Any) -> dict[str, Any]:
            batch = Carried(forward(*given, **named)["batch"])
            return {"logits": batch, "batch": batch}

        engine.forward = carried
        return engine
