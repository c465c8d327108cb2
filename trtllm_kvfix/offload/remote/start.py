"""The two sides of a connector with a remote tier, or the reason why there can be none."""

from importlib.util import find_spec
from typing import Any

from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.log import offload_log as log
from trtllm_kvfix.offload.link import Link
from trtllm_kvfix.offload.remote.arguments import Unnameable, parts_of
from trtllm_kvfix.offload.remote.scheduler import RemoteScheduler
from trtllm_kvfix.offload.remote.worker import RemoteWorker
from trtllm_kvfix.offload.switches import Switches
from trtllm_kvfix.offload_section import OffloadSettings

REMEDY = "pip install 'trtllm-kvfix[mooncake]', or mooncake-transfer-engine-non-cuda where there is no CUDA"


def scheduler_of(settings: OffloadSettings, tokens_per_block: int, link: Link, switches: Switches) -> RemoteScheduler:
    return RemoteScheduler(settings, tokens_per_block, link, switches)


def worker_of(llm_args: Any, settings: OffloadSettings, *args: Any, **kwargs: Any) -> RemoteWorker:
    """A master that does not answer is no reason to refuse: it may come, and until then there is no remote tier."""
    require_store(settings)
    try:
        identity = parts_of(llm_args, settings.remote)
    except Unnameable as error:
        log.error("there is no remote tier, since its blocks would have no name: %s", error)
        return RemoteWorker(settings, *args, identity=None, **kwargs)
    return RemoteWorker(settings, *args, identity=identity, **kwargs)


def require_store(settings: OffloadSettings) -> None:
    remote = settings.remote
    if remote.master is None:
        raise SettingsError(
            "kvfix.offload.remote.kind is mooncake, but kvfix.offload.remote.master is not set; write where "
            "mooncake_master listens, such as 10.0.0.5:50051"
        )
    if find_spec("mooncake") is None:
        raise SettingsError(f"kvfix.offload.remote.kind is mooncake, and its client is not installed; {REMEDY}")
