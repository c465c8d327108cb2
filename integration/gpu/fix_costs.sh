#!/bin/sh
# What batched-admission and graph-inputs cost a server, in less than a minute behind the build:
#   integration/gpu/fix_costs.sh RESULTS_DIR [--quick]
# Needs what run.sh needs. Appends to loop.csv and overlay.csv. KVFIX_COMMIT=<hash> names the commit of a tree without its
# history.
set -eu
cd "$(dirname "$0")/../.."
results=$(realpath "${1:?usage: fix_costs.sh RESULTS_DIR [--quick]}")
. integration/gpu/install.sh
# The checkout must not shadow what was installed.
cp -r bench tests "$site"/
cd "$site"
python3 bench/bench_arrivals.py --results "$results" ${2:-}
python3 bench/bench_loop.py --results "$results" --loops B D-lora ${2:-}
