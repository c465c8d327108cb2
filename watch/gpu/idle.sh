#!/bin/sh
# Runs the programs that race on an idle device, their clean twins, and each clean program of others for five seconds, on
# this machine's GPU. It takes less than ten minutes.
#   watch/gpu/idle.sh RESULTS_DIR
# Needs what rows.sh needs. Writes watch_idle.csv and watch_idle_clean.csv in RESULTS_DIR. The exit code is 1 where a row
# is not as it has to be: a racy program has to be reported in 299 of 300 rounds, a clean one in none.
set -eu
cd "$(dirname "$0")/../.."
results=$(realpath "${1:?usage: idle.sh RESULTS_DIR}")
. watch/gpu/library.sh
status=0
timeout 290 python3 -m watch.gpu.idle "$results/watch_idle.csv" || status=1
timeout 290 python3 -m watch.gpu.rows "$results/watch_idle_clean.csv" --times 0 --seconds 5 --within 150 || status=1
exit $status
