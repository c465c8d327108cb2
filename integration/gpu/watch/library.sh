# The scripts of `watch` source this file, from the root of the checkout. It builds the library if there is none yet.
if [ ! -e trtllm_kvfix/libkvfix_watch.so ]; then
  build=$(mktemp -d)
  cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DKVFIX_KERNELS=OFF --log-level=WARNING
  cmake --build "$build" --target kvfix_watch --parallel 8
  cp "$build/libkvfix_watch.so" trtllm_kvfix/
fi
export PYTHONUNBUFFERED=1
