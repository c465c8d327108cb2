# The scripts here source this file, from the root of the checkout. It builds layers.cc as the library $layers.
. watch/gpu/library.sh
layers=$(mktemp -d)/layers.so
c++ -O2 -std=c++20 -shared -fPIC -I watch/cpp watch/gpu/layers.cc -o "$layers" -ldl
