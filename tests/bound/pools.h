// The memory behind the slots, which the tests provide. The books know only slots.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "books.h"

namespace nb = nanobind;

namespace bound {

// Makes one tensor. Unless the harness has set a factory, it is a numpy array.
nb::object make_tensor(const std::vector<std::size_t>& shape, const std::string& dtype, bool pinned);
void set_tensor_factory(nb::object factory);
const char* dtype_name(DataType dtype);
std::size_t dtype_bytes(DataType dtype);

struct PoolShape {
    int window;
    int heads;
    int layers;
    std::size_t block_size;
};

// The address of contiguous int32 or int64 memory on the host. Anything else is an error.
void* host_data(const nb::ndarray<>& array, std::size_t bytes_each, const char* what);

class Pools {
  public:
    explicit Pools(const Books& books);

    void allocate();
    void release();
    bool allocated() const { return !primary_.empty(); }
    std::size_t bytes() const;
    int kv_factor() const { return kv_factor_; }
    const std::vector<PoolShape>& shapes() const { return shapes_; }

    nb::object pointers() const;
    nb::object scale_pointers() const;
    nb::object layer_mapping() const;
    nb::object unique_primary() const;
    nb::object primary_of(int layer) const;

    // Fills the rows of one sequence in a table [pools, rows, 2, blocks] and returns the length of the longest row.
    int copy_offsets(const nb::ndarray<>& table, int row, RequestId id) const;

  private:
    const Books& books_;
    int kv_factor_;
    std::vector<PoolShape> shapes_;
    std::vector<std::pair<int, int>> layers_;
    std::vector<nb::object> primary_;
    std::vector<nb::object> host_;
};

}  // namespace bound
