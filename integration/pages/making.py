"""The pages that are looked at: `verify`'s and `demo`'s as the commands write them, `watch`'s of a report made by hand.

Those for screenshots are made from records, so that they are the same in every run.
"""

import json
import subprocess
import sys
from pathlib import Path

from hostrace import page as watch_page
from hostrace.races import NUMBERS, Frame, Race, Stack
from hostrace.report import Report
from tools.docs.pictures import CASES, RECORD, SCENES
from trtllm_kvfix.tools.demo import report as demo
from trtllm_kvfix.tools.verify import report as verify

NAMES = ("verify", "demo", "watch")


def written(name: str, folder: Path) -> Path:
    """The page as its command writes it."""
    file = folder / f"{name}.html"
    if name == "watch":  # needs a CUDA driver
        file.write_text(watch_page.page(races()), encoding="utf-8")
        return file
    more = ["--iterations", "2"] if name == "verify" else []
    command = [sys.executable, "-m", "trtllm_kvfix", name, "--device", "cpu", *more, "--html", str(file)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return file


def recorded(name: str, folder: Path) -> Path:
    """The page of what was recorded, which is the same whenever it is made, but for its date."""
    record = json.loads(RECORD.read_text())
    if name == "verify":
        device = verify.DeviceInfo(
            name="simulated", simulated=True, has_kernels=True, has_batched_copy=True, passed_over=None
        )
        cases = [verify.CaseOutcome.model_validate(record[key]) for key in CASES]
        report = verify.VerifyReport(
            version="1.2.3", device=device, iterations=20, seed=0, cases=cases, not_shown=[], cases_planned=len(cases)
        )
        text = verify.page(report)
    elif name == "demo":
        scenes = [demo.SceneOutcome.model_validate(record[key]) for key in SCENES]
        played = demo.DemoReport(
            version="1.2.3", device="simulated", simulated=True, seed=0, scenes=scenes, scenes_planned=len(scenes)
        )
        text = demo.page(played)
    else:
        text = watch_page.page(races())
    file = folder / f"{name}-recorded.html"
    file.write_text(text, encoding="utf-8")
    return file


def races() -> Report:
    """A race and a possible one, with frames long enough to break a narrow page."""
    module = "serving/workers/speculative/model_engine_with_a_long_name.py"
    ship = Stack(
        (Frame(module, 412, "prepare_inputs"), Frame(module, 97, "step")),
        (Frame("", None, "", "libtorch_cuda.so", 0x17ABB3B),),
    )
    refill = Stack((Frame(module, 455, "prepare_next_batch"), Frame("serving/loop.py", 31, "run_forever")), ())

    def race(*, grade: str, use: str) -> Race:
        return Race(
            grade=grade, touch="write", how="", use=use, device="reads", begin=0x7FBC3CA89000, bytes=65_536,
            at=20_000, width=65_536, rows=1, stream=0x55700C1DB960, age_us=98.0, since_us=3_204_511.0,
            use_thread=10_628, touch_thread=10_640, thread_name="python", pinned_stack=ship,
            use_stack=ship, touch_stack=refill, times=5, pids=[77],
        )  # fmt: skip

    return Report(
        command=["trtllm-serve", "meta-llama/Llama-3.1-8B-Instruct", "--config", "server.yaml"],
        status=0, held=False, races=[race(grade="race", use="copy")],
        unordered=[], possible=[race(grade="possible", use="kernel")],
        suppressed=[], notes=["one process had no Python"], numbers=dict.fromkeys(NUMBERS, 3), processes=1, refused=0,
    )  # fmt: skip
