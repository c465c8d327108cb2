// Reads Python's integers into plain C++ values, with the GIL held, so that the core can work without it.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <vector>

namespace kvfix::bindings {

// Lists and tuples of ints, buffers (numpy, array.array, memoryview) and DLPack CPU tensors, all one-dimensional. Arrays may be
// strided. `field` names the argument in errors: TypeError for what is not integers, ValueError for a value that does not fit
// and for a list that changes while it is read.
template <class T>
std::vector<T> read_integers(nanobind::handle object, const std::string& field);

extern template std::vector<std::int32_t> read_integers(nanobind::handle, const std::string&);
extern template std::vector<std::uint32_t> read_integers(nanobind::handle, const std::string&);
extern template std::vector<std::uint64_t> read_integers(nanobind::handle, const std::string&);

}  // namespace kvfix::bindings
