"""Start a command with the library in it: the environment that it needs, and whether it will work on this machine."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

import hostrace
from hostrace.errors import HostraceError
from hostrace.races import read

LIBRARY = "libhostrace.so"
ENV_FOLDER = "HOSTRACE_DIR"
ENV_HOLD_MS = "HOSTRACE_HOLD_MS"
ENV_ONLY_OBSERVED = "HOSTRACE_ONLY_OBSERVED"
ENV_GATES = "HOSTRACE_GATES"
ENV_CUPTI = "HOSTRACE_CUPTI"
ENV_INJECTION = "CUDA_INJECTION64_PATH"
ENV_PRELOAD = "LD_PRELOAD"
SEPARATORS = " :"  # of the dynamic linker, which knows no way to quote them
ENV_PID = "HOSTRACE_PID"
ENV_ASAN = "ASAN_OPTIONS"
OF_THE_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
# Starts the driver, and with it the library, to see whether both work.
PROBE = """
import ctypes, sys
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    sys.exit(f"no CUDA driver: {error}; usual causes: no GPU here, or a container that was started without --gpus")
refused = cuda.cuInit(0)
count = ctypes.c_int()
if refused or cuda.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
    sys.exit(
        f"the CUDA driver refuses: error {refused}, {count.value} devices; usual causes: CUDA_VISIBLE_DEVICES hides "
        "every GPU, or the driver was updated and its kernel module was not loaded anew"
    )
"""


def library() -> Path:
    """Beside this module. An editable install has what it compiled in another folder of the package."""
    for folder in hostrace.__path__:
        if (Path(folder) / LIBRARY).exists():
            return Path(folder) / LIBRARY
    raise HostraceError(f"{LIBRARY} is not installed; it is built for x86-64 and aarch64 Linux alone")


def prepared(hold_ms: int | None, settings: Sequence[str] = ()) -> tuple[Path, dict[str, str]]:
    """A folder for the reports, which the caller has to remove, and an environment in which programs are watched.

    Each of `settings` is a variable that turns something on."""
    folder = Path(tempfile.mkdtemp(prefix="hostrace-"))
    folder.chmod(0o1733)  # a command may change its user; each process writes files of its own
    try:
        inherited = dict(os.environ)
        environ = {**inherited, **variables(inherited, folder, hold_ms), **dict.fromkeys(settings, "1")}
        probe(environ, folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder, environ


def variables(environ: Mapping[str, str], folder: Path, hold_ms: int | None) -> dict[str, str]:
    """The variables with which a command is watched, to be added to `environ`."""
    path = str(library())
    if any(sign in path for sign in SEPARATORS):
        raise HostraceError(
            f"{path} has a space or a colon in its path, which end a name in {ENV_PRELOAD}: install hostrace in a "
            "folder without them"
        )
    injected = environ.get(ENV_INJECTION)
    if injected not in (None, "", path):
        raise HostraceError(
            f"{ENV_INJECTION} is {injected}: another tool is to be loaded into the program, and only one can be"
        )
    preloaded = [name for name in environ.get(ENV_PRELOAD, "").replace(":", " ").split() if name != path]
    places = [environ[ENV_CUPTI]] if environ.get(ENV_CUPTI) else []
    places += map(str, cupti_libraries(environ))
    return {
        ENV_INJECTION: path,
        ENV_PRELOAD: ":".join([path, *preloaded]),
        ENV_FOLDER: str(folder),
        ENV_PID: str(os.getpid()),
        ENV_CUPTI: ":".join(dict.fromkeys(places)),
        ENV_HOLD_MS: "" if hold_ms is None else str(hold_ms),
        # AddressSanitizer wants to be the first library, and ends the program before it begins. It works as the second.
        ENV_ASAN: ":".join(filter(None, [environ.get(ENV_ASAN), "verify_asan_link_order=0"])),
    }


def cupti_libraries(environ: Mapping[str, str]) -> Iterator[Path]:
    """Places where CUPTI may be installed: NVIDIA's wheels beside this Python, and toolkits."""
    for place in sys.path:
        for package in ("nvidia/cu13/lib", "nvidia/cuda_cupti/lib"):
            yield from sorted(Path(place).glob(f"{package}/libcupti.so.1?"))
    toolkits = [Path(environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if environ.get(name)]
    for toolkit in (*toolkits, Path("/usr/local/cuda")):
        for folder in ("extras/CUPTI/lib64", "lib64", "lib"):
            yield from sorted((toolkit / folder).glob("libcupti.so.1?"))


def probe(environ: Mapping[str, str], folder: Path) -> None:
    """Raise an error with the reason if a program in this environment could not be watched."""
    asked = subprocess.run([sys.executable, "-c", PROBE], env=environ, capture_output=True, text=True, check=False)
    found = read(folder)
    for path in folder.iterdir():
        path.unlink()
    if asked.returncode != 0:
        raise HostraceError((asked.stderr.strip().splitlines() or [f"a trial ended with {asked.returncode}"])[-1])
    if not found:
        raise HostraceError(
            f"the CUDA driver did not load {LIBRARY}, which {ENV_INJECTION} names; usual cause: the libcuda.so.1 in "
            "the library path is a stub of the toolkit's"
        )
    if found[0].refused is not None:
        raise HostraceError(found[0].refused)


def run(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """The command's status: negative is the number of the signal that ended it."""
    try:
        # It gets the files that we were given: those of a shell's <(...), of a job server, or of an activated socket.
        child = subprocess.Popen(command, env=environ, close_fds=False)
    except OSError as error:
        raise HostraceError(f"command {command[0]!r} cannot be run: {error.strerror}") from error

    def forward(number: int, _frame: FrameType | None) -> None:
        child.send_signal(number)

    # A terminal sends these to both of us; only the command decides what they mean.
    before = {number: signal.signal(number, signal.SIG_IGN) for number in OF_THE_TERMINAL}
    before |= {number: signal.signal(number, forward) for number in FORWARDED}
    try:
        return child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_as(status: int) -> int:
    """End with the exit code; a signal that ended the command ends this process, too."""
    if status < 0:
        if -status != signal.SIGKILL:  # for which nothing can be installed
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status if status >= 0 else 128 - status
