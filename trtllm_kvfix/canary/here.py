"""The canaries of servers in this process, for whoever shows them. It loads nothing that a canary needs."""

from typing import Any, Protocol

from trtllm_kvfix.living import Living


class Attesting(Protocol):
    def attested(self) -> dict[str, Any]: ...


serving: Living[Attesting] = Living()


def attested() -> list[dict[str, Any]]:
    return [each.attested() for each in serving.all()]
