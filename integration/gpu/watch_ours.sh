#!/bin/sh
# Runs `verify`, the stand-in's loop and the engine under `watch` on this machine's GPU, every arm in its own process:
#   integration/gpu/watch_ours.sh RESULTS_DIR [arguments of ours.py]
# Needs what run.sh needs, because it builds the extension with its kernels. Writes rows to watch_ours.csv in
# RESULTS_DIR.
set -eu
cd "$(dirname "$0")/../.."
results=$(realpath "${1:?usage: watch_ours.sh RESULTS_DIR [arguments]}")
shift
. integration/gpu/install.sh
into_site ./watch
# The checkout must not shadow what was installed.
cp -r integration bench tests watch "$site"/
cd "$site"
exec timeout 150 python3 -m integration.gpu.watch.ours "$results/watch_ours.csv" "$@"
