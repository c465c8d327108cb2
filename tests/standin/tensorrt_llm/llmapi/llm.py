"""The server's handle on its workers."""

from typing import Any

from .._standin.variant import since
from ..executor.worker import worker_main
from .llm_args import TorchLlmArgs
from .mpi_session import MpiPoolSession, SingleProcessSession
from .utils import enable_worker_single_process_for_tp1


class BaseLLM:
    """Refuses arguments that it does not know, so nobody can bring keys of their own (surface 7.1)."""

    def __init__(self, model: str, **kwargs: Any) -> None:
        known = {*TorchLlmArgs.model_fields, "_mpi_session", "backend"}
        if not since("D"):
            known -= {"env_overrides"}
        for key in kwargs:
            if key not in known:
                raise ValueError(f"{type(self).__name__} got invalid argument: {key}")
        session = kwargs.pop("_mpi_session", None)
        self.args = TorchLlmArgs(model=model, **kwargs)
        self.mpi_session = session if session is not None else self._make_session()

    def _make_session(self) -> Any:
        ranks = self.args.tensor_parallel_size
        if ranks == 1 and enable_worker_single_process_for_tp1():
            return SingleProcessSession()
        return MpiPoolSession(ranks, env_overrides=self.args.env_overrides)

    def generate(self, prompts: list[list[int]], max_tokens: int) -> list[Any]:
        """Every rank answers all prompts; one report of each."""
        return list(self.mpi_session.submit_sync(worker_main, self.args, prompts, max_tokens))

    def shutdown(self) -> None:
        self.mpi_session.shutdown()


class LLM(BaseLLM):
    """Users construct this."""
