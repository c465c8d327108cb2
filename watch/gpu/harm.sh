#!/bin/sh
# Runs the programs of watch/harm on this machine's GPU, plain and watched in turns, each ten times, and half of them
# with --hold. Four programs run at a time, since more wait for one another. It takes about eight minutes:
#   watch/gpu/harm.sh RESULTS_DIR
# Needs what cost.sh needs. Writes what was seen to harm.txt in RESULTS_DIR.
set -eu
cd "$(dirname "$0")/../.."
results=$(realpath "${1:?usage: harm.sh RESULTS_DIR}")
. watch/gpu/library.sh
build=$(mktemp -d)
c++ -std=c++20 -O1 -Wno-stringop-overflow -o "$build/programs" watch/harm/programs.cc watch/harm/programs_of_*.cc -ldl -lpthread
{
  "$build/programs" | sed "s|^|$build/programs |"
  python3 -c 'from watch.harm.programs import PROGRAMS; print(*PROGRAMS, sep="\n")' |
    sed 's|^|python3 -m watch.harm.programs |'
} >"$build/commands"
for kind in '' '--hold'; do
  xargs -P 4 -I '{}' sh -c 'said=$(timeout 100 python3 -m watch.harm -n 5 '"$kind"' -- {} 2>&1) || said="HARMED $said"
    echo "{} '"$kind"': $said"' <"$build/commands"
done | sed "s|$build/||" | tee "$results/harm.txt"
! grep -q HARMED "$results/harm.txt"
