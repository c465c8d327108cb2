"""This process pretends to have one variant of upstream installed (surface 0). "mangled" is C with seams that nobody
knows."""

import os

ORDER = ("A", "B", "B2", "C", "D", "F")
NAMES = (*ORDER, "mangled")

# Workers get no variable that does not begin with TRTLLM or TLLM (surface 7.2).
VARIABLE_FOR_WORKERS = "TLLM_STANDIN_VARIANT"

NAME = os.environ.get("STANDIN_VARIANT") or os.environ.get(VARIABLE_FOR_WORKERS) or "B"
if NAME not in NAMES:
    raise ImportError(f"STANDIN_VARIANT is {NAME!r}; the stand-in knows {', '.join(NAMES)}")

MANGLED = NAME == "mangled"  # asked wherever a seam gets another name or signature
_BASE = "C" if MANGLED else NAME

# The fork that shares its host tier with other machines: pins by block, from threads of its own (surface 7.3).
REMOTE_G2 = _BASE == "C"

# 1.2.1 caches the computed part of a prompt, as later builds do; no name distinguishes it from 1.2.0.
COMPUTED_ONLY = bool(os.environ.get("STANDIN_COMPUTED_ONLY"))


def since(name: str) -> bool:
    """Whether the variant is `name` or a later one."""
    return ORDER.index(_BASE) >= ORDER.index(name)


def before(name: str) -> bool:
    return not since(name)


# Source that is newer than F's skips a V2 launch which it has made before. No release is known to have it.
STEP_PROLOGUE_TRIM = since("F") and bool(os.environ.get("STANDIN_STEP_PROLOGUE_TRIM"))


# Files that upstream did not have, or had elsewhere.
_EXISTS = {
    "_torch.attention": since("F"),
    "_torch.attention_backend.trtllm": before("F"),
    "_torch.peft.lora.cuda_graph_lora_params": since("D") or MANGLED,
    "_torch.attention_backend.sparse.deepseek_v4": since("D"),
    "_torch.attention_backend.sparse.minimax_m3": since("D"),
    "_torch.cute_dsl_kernels": since("F"),
    "_torch.pyexecutor.connectors": since("C"),
    "_torch.pyexecutor.connectors.registry": since("D"),
    "_torch.pyexecutor.connectors.remote_g2_raw_nixl_adapter": REMOTE_G2 or since("F"),
    "_torch.pyexecutor.connectors.remote_g2_source_setup": REMOTE_G2,
    "_torch.pyexecutor.kv_cache": since("D"),
    "_torch.pyexecutor.kv_cache_connector": before("C"),
    "_torch.pyexecutor.kv_cache_manager_v2": since("B2") and before("D"),
    "_torch.pyexecutor.scheduler_v2": since("B"),
    "_torch.pyexecutor.step_prologue_trim": STEP_PROLOGUE_TRIM,
    "bindings.internal.batch_manager.kv_cache_manager_v2_utils": since("B"),
    "llmapi.rlhf_utils": since("B"),
    "runtime.kv_cache_manager_v2": since("B"),
}


class Hides:
    """A finder that comes before the others and knows what is not there."""

    hidden = frozenset(f"tensorrt_llm.{name}" for name, exists in _EXISTS.items() if not exists)

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        del path, target
        if fullname in self.hidden:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
