#!/bin/sh
# Compares which tools see the planted races: hostrace, all tools of compute-sanitizer, and PyTorch's CUDA sanitizer.
#   watch/gpu/others.sh RESULTS_DIR
# Needs what cost.sh needs. Writes rows to watch_others.csv in RESULTS_DIR, which also names missing tools.
set -eu
cd "$(dirname "$0")/../.."
results=$(realpath "${1:?usage: others.sh RESULTS_DIR}")
. watch/gpu/library.sh
exec timeout 195 python3 -m watch.gpu.others "$results/watch_others.csv"
