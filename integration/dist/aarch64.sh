#!/bin/bash
# Compile the C++ tests for aarch64 Linux and run them under QEMU, and the programs that must run as without hostrace:
# make test-aarch64
# Debian and Ubuntu: apt install g++-aarch64-linux-gnu qemu-user libgtest-dev
set -euo pipefail
cd "$(dirname "$0")/../.."
build=build/aarch64
for needed in /usr/bin/aarch64-linux-gnu-g++ /usr/bin/qemu-aarch64 /usr/src/googletest; do
  [ -e "$needed" ] || { echo "$needed is missing: apt install g++-aarch64-linux-gnu qemu-user libgtest-dev"; exit 1; }
done

target=(-G Ninja --log-level=NOTICE -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64
  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DCMAKE_BUILD_TYPE=RelWithDebInfo)
# The installed GoogleTest is this machine's, so its source is compiled once more. It asks for a CMake of long ago.
cmake -S /usr/src/googletest -B "$build-gtest" -Wno-deprecated "${target[@]}" -DBUILD_GMOCK=OFF \
  -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc -DCMAKE_INSTALL_PREFIX="$PWD/$build-gtest/installed"
cmake --build "$build-gtest" --target install -- --quiet >/dev/null
cmake -S . -B "$build" "${target[@]}" -DKVFIX_BUILD_TESTS=ON -DKVFIX_KERNELS=OFF \
  "-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64;-L;/usr/aarch64-linux-gnu" \
  -DGTest_DIR="$PWD/$build-gtest/installed/lib/cmake/GTest" "$@"
cmake --build "$build" --target all hostrace -- --quiet
ctest --test-dir "$build" --output-on-failure --no-tests=error -j "${JOBS:-2}"
PYTHONPATH=.:watch/src python3 -m watch.harm.emulated "$(find "$build" -name libhostrace.so)"
