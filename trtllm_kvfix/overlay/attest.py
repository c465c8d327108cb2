"""Each process writes down its fixes and the upstream below them: for `status`, and for other ranks to compare."""

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trtllm_kvfix import __version__, runtime_files
from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.overlay import prologue_trim
from trtllm_kvfix.overlay.registry import Statuses
from trtllm_kvfix.overlay.releases import distribution_version
from trtllm_kvfix.overlay.upstream import Upstream

FORMAT = 7
SUFFIX = ".json"


@dataclass(frozen=True, kw_only=True)
class Attestation:
    format: int
    package: str
    tensorrt_llm: str | None
    variant: str
    host: str
    job: str
    pid: int
    process_start: int  # distinguishes this process from a later one with its number
    command: str
    rank: int
    world_size: int
    started: bool  # an engine runs here; others only imported TensorRT-LLM
    fixes: dict[str, str]  # id: one of the words of `FixStatus.word`
    choices: dict[str, str]  # id: auto, on, off, observe
    seams: dict[str, str]  # attribute: hash of what was there
    enabled: bool  # False: the switch is off, and the process looks at nothing
    manager: str  # upstream or native
    other_seams: dict[str, str]  # the same, for replacements that belong to no fix
    displaced: dict[str, str]  # attribute of either: what upstream's calls come to instead
    aliases: list[str]
    prologue_trim: str  # one of the modes of upstream's step-prologue trim; "" where the build has none
    canaries: list[dict[str, Any]]  # state and findings of those that look at this process's caches
    refusal: str  # why this rank must not start, or nothing
    faults: dict[str, int]  # id: failures of its own code so far, where there were any
    first_errors: dict[str, str]

    @staticmethod
    def of(
        report: Statuses,
        *,
        variant: str,
        job: str,
        rank: int,
        world_size: int,
        started: bool,
        aliases: list[str],
        manager: str,
        canaries: list[dict[str, Any]],
        enabled: bool = True,
        refusal: str = "",
    ) -> "Attestation":
        return Attestation(
            format=FORMAT,
            package=__version__,
            tensorrt_llm=distribution_version("tensorrt_llm"),
            variant=variant,
            job=job,
            command=" ".join(sys.argv)[:200],
            rank=rank,
            world_size=world_size,
            started=started,
            fixes={status.id: status.word for status in report.fixes},
            choices={status.id: status.choice for status in report.fixes},
            seams={name: value for status in report.fixes for name, value in status.seams.items()},
            aliases=aliases,
            manager=manager,
            enabled=enabled,
            canaries=canaries,
            other_seams=report.others,
            displaced=report.displaced,
            prologue_trim=prologue_trim.mode(Upstream()),
            refusal=refusal,
            faults={status.id: status.faults for status in report.fixes if status.faults},
            first_errors={status.id: status.first_error for status in report.fixes if status.faults},
            **runtime_files.signature(),
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """The differences that keep two processes from being ranks of one engine. If only one of them has imported a fix's
    modules so far, that is no difference."""
    found = [
        f"{key} {ours[key]} / {theirs[key]}"
        for key in ("format", "package", "tensorrt_llm", "variant", "manager")
        if ours[key] != theirs[key]
    ]
    for kind, label in (("choices", "setting of"), ("fixes", "fix"), ("seams", "seam"), ("other_seams", "seam")):
        for name in sorted({*ours[kind], *theirs[kind]}):
            pair = (ours[kind].get(name, "waiting"), theirs[kind].get(name, "waiting"))
            if pair[0] != pair[1] and "waiting" not in pair:
                found.append(f"{label} {name} {pair[0]} / {pair[1]}")
    return found


def write(folder: Path, attestation: Attestation) -> Path:
    """Replace this process's entry."""
    try:
        return runtime_files.write(folder, SUFFIX, attestation.as_dict())
    except OSError as error:
        raise KvfixError(
            f"the attestation cannot be written: {error}; kvfix.runtime_dir names another place"
        ) from error


def confirm(folder: Path) -> bool:
    """This process has looked, and its entry holds. False: somebody has removed it."""
    try:
        runtime_files.confirm(folder, SUFFIX)
    except OSError:
        return False
    return True


def live(folder: Path) -> list[dict[str, Any]]:
    """Entries of processes that still run on this host; entries of ended ones are removed. `age_s`: so many seconds ago
    the process has looked whether its entry still holds, which an engine's does every few seconds."""
    entries = ({**entry, "age_s": age_s} for entry, age_s in runtime_files.live_and_age(folder, SUFFIX, FORMAT))
    return sorted(entries, key=lambda entry: (entry["job"], entry["rank"], entry["pid"]))


def live_of_other_versions(folder: Path) -> list[tuple[int, str]]:
    """Processes of this host that another version of this package has put the hook into, with that version."""
    found = runtime_files.live_of_other_versions(folder, SUFFIX, FORMAT)
    return sorted((entry["pid"], entry["package"]) for entry in found if isinstance(entry.get("package"), str))
