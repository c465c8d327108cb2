#!/bin/sh
# Measures what hostrace costs on this machine's GPU, and where, in less than a minute:
#   watch/gpu/cost.sh RESULTS_DIR [arguments of cost.py]
# Needs torch, CUPTI, a C++ compiler, cmake, and what the package itself imports. Appends to watch_cost.csv in
# RESULTS_DIR. If watch/src/hostrace/ already has a built library, that one is used as it is. KVFIX_COMMIT=<hash> names
# the commit.
set -eu
cd "$(dirname "$0")/../.."
results=$(realpath "${1:?usage: cost.sh RESULTS_DIR [arguments]}")
shift
. watch/gpu/layers.sh
exec timeout 55 python3 -m watch.gpu.cost "$layers" "$results/watch_cost.csv" "$@"
