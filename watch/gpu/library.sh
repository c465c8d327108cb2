# The scripts here source this file, from the root of the checkout. It builds the library if there is none yet.
if [ ! -e watch/src/hostrace/libhostrace.so ]; then
  build=$(mktemp -d)
  cmake -S watch -B "$build" -DCMAKE_BUILD_TYPE=RelWithDebInfo --log-level=WARNING
  cmake --build "$build" --parallel 8
  cp "$build/libhostrace.so" watch/src/hostrace/
fi
export PYTHONPATH="$PWD/watch/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
