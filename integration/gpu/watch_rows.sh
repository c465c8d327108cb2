#!/bin/sh
# The planted programs on this machine's GPU: 20 fresh processes of each, all of which have to be caught, and the tests of
# `watch`. Less than eight minutes on 16 cores, where two programs with eight processes each run side by side.
#   integration/gpu/watch_rows.sh RESULTS_DIR [driver|torch|all]
# Needs what watch_cost.sh needs; torch's programs need CuPy, too. Rows go to watch_rows.csv in RESULTS_DIR. A run that
# found no time for all of them says so; another one with the same folder goes on where it ended.
set -eu
cd "$(dirname "$0")/../.."
results=$(realpath "${1:?usage: watch_rows.sh RESULTS_DIR [driver|torch|all]}")
. integration/gpu/watch/library.sh
status=0
timeout 415 python3 -m integration.gpu.watch.rows "$results/watch_rows.csv" --but "$results/watch_rows.csv" \
  --programs "${2:-all}" --times 0 --seconds 0 --fresh 20 --at-once $(($(nproc) / 8 + ($(nproc) < 8))) --within 360 || status=1
timeout 60 python3 -m pytest -q -p no:cacheprovider integration/gpu/test_watch.py || status=1
exit $status
