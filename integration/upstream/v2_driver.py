"""Doubles of what the V2 runtime of upstream imports: CUDA's driver, the copies that C++ makes, references without a
count. Memory has addresses and no bytes. What is enqueued runs late, in any order that streams and events allow.
"""

import ctypes
import enum
import importlib
import itertools
import logging
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

from integration.upstream.v2_storage import CopyTask, Handle, LinkedList, Node, core

Ready = Callable[[], bool]
Work = Callable[[], None]


class Op(NamedTuple):
    ready: Ready
    run: Work


class MemToMemTask(NamedTuple):
    dst: int
    src: int


class Timeline:
    """Streams and events. Whoever waits for one, the host included, lets run what stands before it."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._streams: dict[int, deque[Op]] = {}
        self._recorded: dict[int, int] = {}  # by event: how often
        self._reached: dict[int, int] = {}
        self._numbers = itertools.count(1 << 20)
        self.host_waits: Callable[[], object] = lambda: None  # lets go of work that is held elsewhere

    def new(self) -> int:
        return next(self._numbers)

    def enqueue(self, stream: int, run: Work, ready: Ready = lambda: True) -> None:
        self._streams.setdefault(int(stream), deque()).append(Op(ready, run))

    def record(self, event: int, stream: int) -> None:
        number = self._recorded[event] = self._recorded.get(event, 0) + 1

        def reach() -> None:
            self._reached[event] = max(number, self._reached.get(event, 0))

        self.enqueue(stream, reach)

    def wait(self, stream: int, event: int) -> None:
        number = self._recorded.get(event, 0)
        self.enqueue(stream, lambda: None, lambda: self._reached.get(event, 0) >= number)

    def is_done(self, event: int) -> bool:
        return self._reached.get(event, 0) >= self._recorded.get(event, 0)

    def finish(self, is_over: Ready) -> None:
        """The host waits."""
        while not is_over():
            if not self.step():
                self.host_waits()
                assert self.step(), "the host waits for what nobody will do"

    def finish_all(self) -> None:
        self.finish(lambda: not any(self._streams.values()))

    def finish_stream(self, stream: int) -> None:
        self.finish(lambda: not self._streams.get(int(stream)))

    def step(self) -> bool:
        """Lets one stream go on, if any can."""
        can = [stream for stream, queue in self._streams.items() if queue and queue[0].ready()]
        if can:
            self._streams[self._chosen(can)].popleft().run()
        return bool(can)

    def _chosen(self, can: list[int]) -> int:
        return self._random.choice(can)


class Reference:
    """It counts for nothing, so the object may end before it; the object's own end says so."""

    __slots__ = ("_address",)

    def __new__(cls, target: Any) -> "Reference":
        known = getattr(target, "__rawref__", None)
        if known is not None and known.is_valid:
            return known  # type: ignore[no-any-return]
        made = object.__new__(cls)
        made._address = id(target)
        target.__rawref__ = made
        return made

    __class_getitem__ = classmethod(lambda cls, _: cls)

    @property
    def is_valid(self) -> bool:
        return self._address != 0

    def __call__(self) -> Any:
        return ctypes.cast(self._address, ctypes.py_object).value if self._address else None

    def __hash__(self) -> int:
        if not self._address:
            raise RuntimeError("the reference is invalid")
        return hash(self._address)

    def __eq__(self, other: object) -> bool:
        return self is other

    def invalidate(self) -> None:
        self._address = 0


def _no_reference() -> Reference:
    made = object.__new__(Reference)
    made._address = 0
    return made


class CUresult(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_INVALID_DEVICE = 101
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_NOT_PERMITTED = 800
    CUDA_ERROR_NOT_SUPPORTED = 801


class Constants:
    """Flags and kinds, which mean nothing here."""

    def __getattr__(self, name: str) -> int:
        return 0


def _properties() -> SimpleNamespace:
    return SimpleNamespace(location=SimpleNamespace(), allocFlags=SimpleNamespace())


DONE = (CUresult.CUDA_SUCCESS,)


def _done(*_: Any) -> tuple[CUresult]:
    return DONE


class Driver:
    """cuda.bindings.driver, as far as the runtime calls it."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline, self._memory = timeline, itertools.count(1 << 40, 1 << 40)
        kinds = ("CUmemAllocationType", "CUmemLocationType", "CUmemAllocationHandleType", "CUmemAccess_flags",
                 "CUevent_flags", "CUstream_flags")  # fmt: skip
        handles = ("CUdeviceptr", "CUevent", "CUstream", "CUmemGenericAllocationHandle")
        nothing = ("cuInit", "cuMemRelease", "cuMemAddressFree", "cuMemMap", "cuMemUnmap", "cuMemSetAccess",
                   "cuMemHostRegister", "cuMemHostUnregister", "cuEventDestroy", "cuStreamDestroy")  # fmt: skip
        self.names: dict[str, Any] = (
            {kind: Constants() for kind in kinds}
            | {kind: type(kind, (Handle,), {}) for kind in handles}
            | dict.fromkeys(nothing, _done)
            | {name: getattr(self, name) for name in dir(self) if name.startswith("cu")}
            | {"CUresult": CUresult, "CUmemAllocationProp": type("Prop", (), {"__new__": lambda _: _properties()})}
            | {"CUmemAccessDesc": type("Access", (), {"__new__": lambda _: _properties()})}
            | {"CU_MEMHOSTREGISTER_PORTABLE": 1, "CU_MEMHOSTREGISTER_DEVICEMAP": 2, "CU_STREAM_WAIT_VALUE_COMPLETED": 0}
        )

    def cuCtxGetDevice(self) -> tuple[CUresult, int]:  # noqa: N802
        return (*DONE, 0)

    def cuMemCreate(self, *_: Any) -> tuple[CUresult, Handle]:  # noqa: N802
        return (*DONE, self.names["CUmemGenericAllocationHandle"](self._timeline.new()))

    def cuMemAddressReserve(self, *_: Any) -> tuple[CUresult, Handle]:  # noqa: N802
        return (*DONE, self.names["CUdeviceptr"](next(self._memory)))

    def cuCtxSynchronize(self) -> tuple[CUresult]:  # noqa: N802
        self._timeline.finish_all()
        return DONE

    def cuStreamSynchronize(self, stream: int) -> tuple[CUresult]:  # noqa: N802
        self._timeline.finish_stream(stream)
        return DONE

    def cuStreamCreate(self, _: Any) -> tuple[CUresult, Handle]:  # noqa: N802
        return (*DONE, self.names["CUstream"](self._timeline.new()))

    def cuStreamWaitEvent(self, stream: int, event: int, _: Any) -> tuple[CUresult]:  # noqa: N802
        self._timeline.wait(stream, event)
        return DONE

    def cuEventCreate(self, _: Any) -> tuple[CUresult, Handle]:  # noqa: N802
        return (*DONE, self.names["CUevent"](self._timeline.new()))

    def cuEventRecord(self, event: int, stream: int) -> tuple[CUresult]:  # noqa: N802
        self._timeline.record(event, stream)
        return DONE

    def cuEventQuery(self, event: int) -> tuple[CUresult]:  # noqa: N802
        self._timeline.step()
        return DONE if self._timeline.is_done(event) else (CUresult.CUDA_ERROR_NOT_READY,)

    def cuEventSynchronize(self, event: int) -> tuple[CUresult]:  # noqa: N802
        self._timeline.finish(lambda: self._timeline.is_done(event))
        return DONE


Copied = Callable[[str, int, int], None]  # from where to where, and both addresses


def _copier(kind: str, timeline: Timeline, copied: Copied) -> Any:
    def copy(tasks: Sequence[MemToMemTask], _nbytes: int, stream: int) -> CUresult:
        def run() -> None:
            for task in tasks:
                copied(kind, task.src, task.dst)

        timeline.enqueue(stream, run)
        return CUresult.CUDA_SUCCESS

    return copy


def _module(name: str, names: dict[str, Any]) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(names)
    return made


FOLDER = Path("tensorrt_llm", "runtime", "kv_cache_manager_v2")
NAME = "upstream_v2"  # what it is imported as: `tensorrt_llm` may be the stand-in
UTILS = "tensorrt_llm.bindings.internal.batch_manager.kv_cache_manager_v2_utils"
TASKS = ("DiskAddress", "DiskToDiskTask", "DiskToHostTask", "HostToDiskTask")


class PageIndexMode(enum.Enum):
    SHARED = 0
    PER_LAYER = 1


# The files may be of several commits. Names that one expects of another, and that this one lacks, are ours.
LACKING: dict[str, dict[str, Any]] = {
    "_common": {"BAD_BLOCK_ORDINAL": -1, "CACHE_LEVEL1": 1, "PageIndexMode": PageIndexMode},
}


@contextmanager
def runtime_of(tree: Path, timeline: Timeline, copied: Copied) -> Iterator[Any]:
    """Upstream's runtime in this tree, as a module."""
    folder = tree / FOLDER
    before = set(sys.modules)
    try:
        with mock.patch.dict(sys.modules, _doubles(timeline, copied)):
            package = _imported(folder)
            kept = {name: module for name, module in sys.modules.items() if name.split(".")[0] == NAME}
        sys.modules.update(kept)  # it imports parts of itself later
        yield package
    finally:
        for name in [each for each in sys.modules if each not in before and each.split(".")[0] == NAME]:
            del sys.modules[name]


def _doubles(timeline: Timeline, copied: Copied) -> dict[str, ModuleType]:
    kinds = ("device", "host", "disk")
    copies = {f"copy_{a}_to_{b}": _copier(f"{a} to {b}", timeline, copied) for a in kinds for b in kinds}
    tasks = {"MemToMemTask": MemToMemTask} | {name: type(name, (), {}) for name in TASKS}
    hashes = type("Hashes", (ModuleType,), {"__getattr__": lambda _, name: type(name, (Exception,), {})})
    found = {name: ModuleType(name) for name in [*_parents(UTILS), "tensorrt_llm.runtime", "cuda", "cuda.bindings"]}
    runtime = {"cudaFree": lambda _: (0,), "cudaError_t": SimpleNamespace(cudaSuccess=0)}
    found |= {
        UTILS: _module(UTILS, copies | tasks),
        "cuda.bindings.driver": _module("cuda.bindings.driver", Driver(timeline).names),
        "cuda.bindings.runtime": _module("cuda.bindings.runtime", runtime),
        "llist": _module("llist", {"dllist": LinkedList, "dllistnode": Node}),
        "tensorrt_llm.envs": _module("tensorrt_llm.envs", {"get_env": lambda _: False}),  # so it checks itself
        "tensorrt_llm.logger": _module("tensorrt_llm.logger", {"logger": logging.getLogger("tensorrt_llm")}),
        "tensorrt_llm.runtime.kv_cache_hash": hashes("tensorrt_llm.runtime.kv_cache_hash"),
    }
    for name, module in found.items():
        parent, _, own = name.rpartition(".")
        if parent:
            vars(found[parent])[own] = module
    return found


def _imported(folder: Path) -> Any:
    """Without its own `__init__`, which only names what is in its parts."""
    package: Any = ModuleType(NAME)
    package.__path__ = [str(folder)]
    sys.modules[NAME] = package
    references = {"ref": Reference, "ReferenceType": Reference, "NULL": _no_reference()}
    package.rawref = sys.modules[f"{NAME}.rawref"] = _module(f"{NAME}.rawref", references)
    for module, names in LACKING.items():
        found = _part(module)
        vars(found).update({name: value for name, value in names.items() if not hasattr(found, name)})
    if not hasattr(_part("_config").AttentionLayerConfig, "cache_domain"):
        _part("_config").AttentionLayerConfig.cache_domain = "target"
    _without_storage(folder)
    # It measures loads, and would have sizes of pools from the storage. Here a caller sizes them.
    _part("_core._kv_cache_manager").KVCacheManager._try_update_target_ratios = lambda _: None
    for module in ("_config", "_block_radix_tree", "_core._kv_cache_manager", "_exceptions"):
        vars(package).update({name: value for name, value in vars(_part(module)).items() if name[0].isupper()})
    return package


def _part(name: str) -> Any:
    return importlib.import_module(f"{NAME}.{name}")


def _without_storage(folder: Path) -> None:
    """The lowest part is ours: memory, slots and copies."""
    names = core(_part("_common"), _part("_exceptions").OutOfPagesError, _part("_utils").CachedCudaEvent.NULL)
    package = sys.modules[f"{NAME}._storage"] = _module(f"{NAME}._storage", {})
    package.__path__ = [str(folder / "_storage")]
    sys.modules[f"{NAME}._storage._core"] = _module(f"{NAME}._storage._core", names)
    vars(package).update(CacheLevelStorage=names["CacheLevelStorage"], BufferId=_part("_storage._config").BufferId)
    copy = {"CopyTask": CopyTask, "batched_copy": partial(_batched_copy, sys.modules[UTILS])}
    sys.modules[f"{NAME}._copy_engine"] = _module(f"{NAME}._copy_engine", copy)


def _batched_copy(utils: Any, to: int, origin: int, nbytes: int, tasks: Sequence[Any], stream: int) -> None:
    kinds = ("device", "host", "disk")
    getattr(utils, f"copy_{kinds[origin]}_to_{kinds[to]}")(tasks, nbytes, stream)


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]
