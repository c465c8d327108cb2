#!/bin/sh
# The planted programs on this machine's GPU: 20 fresh processes of each, all of which have to be caught, and the tests of
# `watch`. Two to three minutes on 16 cores.
#   integration/gpu/watch_rows.sh RESULTS_DIR driver|torch
# Needs what watch_cost.sh needs; `torch` needs CuPy, too. Rows go to watch_driver.csv or watch_torch.csv in RESULTS_DIR.
set -eu
cd "$(dirname "$0")/../.."
usage="usage: watch_rows.sh RESULTS_DIR driver|torch"
results=$(realpath "${1:?$usage}")
programs=${2:?$usage}
. integration/gpu/watch/library.sh
status=0
timeout 190 python3 -m integration.gpu.watch.rows "$results/watch_$programs.csv" --programs "$programs" \
  --times 0 --seconds 0 --fresh 20 --at-once 2 || status=1
[ "$programs" = torch ] || timeout 120 python3 -m pytest -q -p no:cacheprovider integration/gpu/test_watch.py || status=1
exit $status
