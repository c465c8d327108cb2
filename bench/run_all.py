"""Run every benchmark beside this file, one after another, and append to bench/results/*.csv.

Each explains itself with --help.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from measure import RESULTS

HERE = Path(__file__).parent
REPLAYING = ("bench_replay.py", "bench_host_admission.py", "bench_exclusive_tier.py", "bench_inclusive_tier.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="about a minute, for a look; not for figures to quote")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    parser.add_argument("--peers", type=Path, metavar="DIR", help="drivers of other managers, for bench_admission.py")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="a request trace, for the programs that replay one")
    arguments = parser.parse_args()
    failed = []
    for script in sorted(HERE.glob("bench_*.py")):
        command = [sys.executable, str(script), "--results", str(arguments.results)]
        command += ["--quick"] if arguments.quick else []
        if script.name == "bench_admission.py" and arguments.peers is not None:
            command += ["--peers", str(arguments.peers)]
        if script.name in REPLAYING and arguments.trace is not None:
            command += ["--trace", str(arguments.trace)]
        print(f"\n{script.stem}", flush=True)
        if subprocess.run(command, check=False).returncode != 0:
            failed.append(script.name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
