"""A load balancer asks this (surface 5, #13318)."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Response:
    status_code: int
    content: Any = None


class OpenAIServer:
    """Neither answer looks at the executor, so both stay green when its loop has died."""

    def __init__(self, model: str, executor: Any) -> None:
        self.model = model
        self.executor = executor

    async def health(self) -> Response:
        return Response(status_code=200)

    async def get_model(self) -> Response:
        return Response(200, {"object": "list", "data": [{"id": self.model, "object": "model"}]})
