#!/bin/sh
# Runs the planted programs on this machine's GPU, 20 fresh processes of each, all of which must be caught, and the
# tests of hostrace. It takes less than eight minutes on 16 cores, which run two programs at a time, with eight processes
# each.
#   watch/gpu/rows.sh RESULTS_DIR [driver|torch|all]
# Needs what cost.sh needs; torch's programs also need CuPy. Writes rows to watch_rows.csv in RESULTS_DIR. A run
# that did not find the time for all of them says so. Another run with the same folder continues where it ended.
set -eu
cd "$(dirname "$0")/../.."
results=$(realpath "${1:?usage: rows.sh RESULTS_DIR [driver|torch|all]}")
. watch/gpu/library.sh
status=0
timeout 415 python3 -m watch.gpu.rows "$results/watch_rows.csv" --but "$results/watch_rows.csv" \
  --programs "${2:-all}" --times 0 --seconds 0 --fresh 20 --at-once $(($(nproc) / 8 + ($(nproc) < 8))) --within 360 || status=1
timeout 60 python3 -m pytest -q -p no:cacheprovider watch/gpu/test_on_gpu.py || status=1
exit $status
