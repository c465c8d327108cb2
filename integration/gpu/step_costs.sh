#!/bin/sh
# Measures what each fix adds to a step at a batch of 8, and where that time goes, in less than two minutes after the build:
#   integration/gpu/step_costs.sh RESULTS_DIR [--quick]
# Needs what run.sh needs. Appends to seams.csv and loop.csv. If the tree has no history, KVFIX_COMMIT=<hash> names its
# commit.
set -eu
cd "$(dirname "$0")/../.."
results=$(realpath "${1:?usage: step_costs.sh RESULTS_DIR [--quick]}")
. integration/gpu/install.sh
# The checkout must not shadow what was installed.
cp -r bench tests "$site"/
cd "$site"
python3 bench/bench_seams.py --results "$results" ${2:-}
python3 bench/bench_loop.py --results "$results" --loops C D-lora --batches 8 --steps-ms 0 2 --host-servers 2 ${2:-}
