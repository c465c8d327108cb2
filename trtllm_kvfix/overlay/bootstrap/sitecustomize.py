"""Python runs this module first below `trtllm-kvfix run`, whose PYTHONPATH begins with this folder.

It registers the import hook, then runs the `sitecustomize` that it stands in front of. An interpreter without this
package is left alone until it imports TensorRT-LLM; that is refused, because it would run without the fixes, unless
they are switched off.
"""

import os
import sys


class Refusal:
    def __init__(self, cause: ImportError) -> None:
        self.cause = cause

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:  # noqa: ARG002  its interface
        if name == "tensorrt_llm":
            raise RuntimeError(
                f"started by `trtllm-kvfix run`, but {sys.executable} cannot import trtllm_kvfix ({self.cause}): "
                "install it next to TensorRT-LLM, or start without `run`"
            ) from self.cause


def register() -> None:
    try:
        from trtllm_kvfix.overlay import import_hook  # noqa: PLC0415  it may be missing here
    except ImportError as error:
        if os.environ.get("TRTLLM_KVFIX_ENABLED", "").lower() not in ("false", "no", "off"):
            sys.meta_path.insert(0, Refusal(error))
    else:
        import_hook.install()


def run_the_other() -> None:
    """The next `sitecustomize` on the path, as if this folder were not on it."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  pathlib is slow to import
    sys.path[:] = [place for place in sys.path if os.path.abspath(place) != here]  # noqa: PTH100
    candidates = (os.path.join(place, name) for place in sys.path for name in ("sitecustomize.py", "sitecustomize"))  # noqa: PTH118
    if not any(os.path.exists(candidate) for candidate in candidates):  # noqa: PTH110
        return
    from importlib.machinery import PathFinder  # noqa: PLC0415
    from importlib.util import module_from_spec  # noqa: PLC0415

    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


register()
run_the_other()
