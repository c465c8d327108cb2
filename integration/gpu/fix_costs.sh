#!/bin/sh
# Measures what batched-admission and graph-inputs cost a server, in less than a minute after the build:
#   integration/gpu/fix_costs.sh RESULTS_DIR [--quick]
# Needs what run.sh needs. Appends to loop.csv and overlay.csv. If the tree has no history, KVFIX_COMMIT=<hash> names
# its commit.
set -eu
cd "$(dirname "$0")/../.."
results=$(realpath "${1:?usage: fix_costs.sh RESULTS_DIR [--quick]}")
. integration/gpu/install.sh
# The checkout must not shadow what was installed.
cp -r bench tests "$site"/
cd "$site"
python3 bench/bench_arrivals.py --results "$results" ${2:-}
python3 bench/bench_loop.py --results "$results" --loops B D-lora ${2:-}
