#!/bin/sh
# Measures what protecting pages takes on this machine, with or without a GPU, in less than a minute:
#   watch/gpu/protect.sh RESULTS_DIR
# Needs a C++ compiler. Appends to watch_protect.csv in RESULTS_DIR.
set -eu
cd "$(dirname "$0")/../.."
results=$(realpath "${1:?usage: protect.sh RESULTS_DIR}")
scratch=$(mktemp -d)
c++ -O2 -std=c++20 -o "$scratch/protect" watch/gpu/protect.cc -lpthread
exec timeout 55 python3 -m watch.gpu.protect "$scratch/protect" "$results/watch_protect.csv"
