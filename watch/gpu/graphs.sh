#!/bin/sh
# Measures what a CUDA graph of up to 3,000 nodes costs under hostrace on this machine's GPU, and how much of that CUPTI
# takes, in less than two minutes:
#   watch/gpu/graphs.sh RESULTS_DIR [arguments of graphs.py]
# Needs what cost.sh needs. Appends to watch_graphs.csv in RESULTS_DIR. The exit code is 1 where a step of 1,000 nodes
# takes more than 3 % longer.
set -eu
cd "$(dirname "$0")/../.."
results=$(realpath "${1:?usage: graphs.sh RESULTS_DIR [arguments]}")
shift
. watch/gpu/layers.sh
exec timeout 110 python3 -m watch.gpu.graphs "$layers" "$results/watch_graphs.csv" "$@"
