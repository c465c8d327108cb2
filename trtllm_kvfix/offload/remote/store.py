"""A store of blocks as the porter needs it, and Mooncake Store as one. Nothing here runs inside an engine."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol

from trtllm_kvfix.offload.remote.messages import Outcome

# Answers of Mooncake Store, seen with 0.3.13: what is there already is put with success, and costs no transfer.
NO_SPACE = -200
NOT_FOUND = -704
LEASE_OVER = -707  # all has come, but the store might have evicted it on the way: the seal knows
LOCAL_BUFFER_BYTES = 16 << 20  # of the client itself; blocks do not pass it
METADATA = "P2PHANDSHAKE"  # clients exchange the addresses of their memory; there is no further service


class StoreError(Exception):
    """There is no store to be asked."""


class Store(Protocol):
    """Every call may take as long as the store likes. Payloads lie in registered memory, all of one size."""

    def register(self, address: int, nbytes: int) -> None: ...
    def exist(self, names: Sequence[str]) -> list[bool]: ...
    def put(self, names: Sequence[str], addresses: Sequence[int], nbytes: int) -> list[Outcome]: ...
    def get(self, names: Sequence[str], addresses: Sequence[int], nbytes: int) -> list[Outcome]: ...


class MooncakeStore:
    """A client of Mooncake Store. With `segment_bytes` it brings memory that all clients may use."""

    def __init__(self, *, master: str, protocol: str, host: str, segment_bytes: int = 0) -> None:
        self._client: Any = import_module("mooncake.store").MooncakeDistributedStore()
        code = self._client.setup(host, METADATA, segment_bytes, LOCAL_BUFFER_BYTES, protocol, "", master)
        if code:
            raise StoreError(f"Mooncake's client does not reach the master at {master} over {protocol}: code {code}")

    def register(self, address: int, nbytes: int) -> None:
        code = self._client.register_buffer(address, nbytes)
        if code:
            raise StoreError(f"Mooncake does not register {nbytes} bytes of the host pool: code {code}")

    def exist(self, names: Sequence[str]) -> list[bool]:
        codes = self._client.batch_is_exist(list(names))
        if len(codes) != len(names):
            raise StoreError(f"Mooncake's master was asked about {len(names)} objects and answers for {len(codes)}")
        if any(code < 0 for code in codes):
            raise StoreError(f"Mooncake's master does not answer: code {min(codes)}")
        return [code == 1 for code in codes]

    def put(self, names: Sequence[str], addresses: Sequence[int], nbytes: int) -> list[Outcome]:
        codes = self._client.batch_put_from(list(names), list(addresses), [nbytes] * len(names))
        known = {0: Outcome.WHOLE, NO_SPACE: Outcome.FULL}
        return [known.get(code, Outcome.FAILED) for _, code in zip(names, codes, strict=True)]

    def get(self, names: Sequence[str], addresses: Sequence[int], nbytes: int) -> list[Outcome]:
        codes = self._client.batch_get_into(list(names), list(addresses), [nbytes] * len(names))
        return [outcome_of(code, nbytes) for _, code in zip(names, codes, strict=True)]


def outcome_of(code: int, nbytes: int) -> Outcome:
    if code in (nbytes, LEASE_OVER):
        return Outcome.WHOLE
    return Outcome.MISSING if code == NOT_FOUND else Outcome.FAILED
