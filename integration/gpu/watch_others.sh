#!/bin/sh
# Compares which tools see the planted races: `watch`, all tools of compute-sanitizer, and PyTorch's CUDA sanitizer.
#   integration/gpu/watch_others.sh RESULTS_DIR
# Needs what watch_cost.sh needs. Writes rows to watch_others.csv in RESULTS_DIR, which also names missing tools.
set -eu
cd "$(dirname "$0")/../.."
results=$(realpath "${1:?usage: watch_others.sh RESULTS_DIR}")
. integration/gpu/watch/library.sh
exec timeout 195 python3 -m integration.gpu.watch.others "$results/watch_others.csv"
