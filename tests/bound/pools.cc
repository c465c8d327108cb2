#include "pools.h"

#include <nanobind/stl/string.h>

namespace bound {

namespace {

// Leaked on purpose, because a static object would be released after the interpreter is gone.
nb::object& factory() {
    static auto* held = new nb::object();
    return *held;
}

nb::object by_numpy(const nb::tuple& shape, const std::string& dtype) {
    // numpy has neither of these. Only their size counts here.
    const std::string known = dtype == "bfloat16" ? "uint16" : dtype == "float8_e4m3fn" ? "uint8" : dtype;
    return nb::module_::import_("numpy").attr("zeros")(shape, known);
}

}  // namespace

void set_tensor_factory(nb::object made) { factory() = made.is_none() ? nb::object() : std::move(made); }

nb::object make_tensor(const std::vector<std::size_t>& shape, const std::string& dtype, bool pinned) {
    nb::list sides;
    for (std::size_t side : shape) sides.append(side);
    const nb::tuple form(sides);
    return factory().is_valid() ? nb::object(factory()(form, dtype, pinned)) : by_numpy(form, dtype);
}

const char* dtype_name(DataType dtype) {
    constexpr const char* kNames[] = {"float32", "float16",       "int8",     "int32", "bool",
                                      "uint8",   "float8_e4m3fn", "bfloat16", "int64", "int8"};
    return kNames[int(dtype)];
}

std::size_t dtype_bytes(DataType dtype) {
    constexpr std::size_t kBytes[] = {4, 2, 1, 4, 1, 1, 1, 2, 8, 1};
    return kBytes[int(dtype)];
}

void* host_data(const nb::ndarray<>& array, std::size_t bytes_each, const char* what) {
    const std::string name = what;
    check(array.device_type() == nb::device::cpu::value, name + " must be memory of the host");
    check(array.dtype().code == std::uint8_t(nb::dlpack::dtype_code::Int) && array.itemsize() == bytes_each,
          name + " has the wrong element type");
    std::int64_t expected = 1;
    for (std::size_t i = array.ndim(); i > 0; --i) {
        check(array.shape(i - 1) == 1 || array.stride(i - 1) == expected, name + " must be contiguous");
        expected *= std::int64_t(array.shape(i - 1));
    }
    return array.data();
}

Pools::Pools(const Books& books)
    : books_(books), kv_factor_(books.config().cache_type == CacheType::SELFKONLY ? 1 : 2) {
    const Config& config = books.config();
    const auto window_of = [&config](std::size_t layer) {
        return config.max_attention_window_vec[layer % config.max_attention_window_vec.size()];
    };
    layers_.resize(config.heads_per_layer.size());
    // Windows ascend, and within a window the head counts do.
    std::map<std::pair<int, int>, std::vector<std::size_t>> groups;
    for (std::size_t layer = 0; layer < config.heads_per_layer.size(); ++layer) {
        groups[{window_of(layer), config.heads_per_layer[layer]}].push_back(layer);
    }
    for (const auto& [group, members] : groups) {
        const auto head_size = std::size_t(config.head_size_per_layer.at(members[0]));
        const std::size_t block = std::size_t(group.second) * std::size_t(config.tokens_per_block) * head_size;
        for (std::size_t i = 0; i < members.size(); ++i) layers_[members[i]] = {int(shapes_.size()), int(i)};
        shapes_.push_back({group.first, group.second, int(members.size()), block});
    }
}

void Pools::allocate() {
    release();
    for (const PoolShape& shape : shapes_) {
        const Window& window = books_.window(shape.window);
        const auto make = [&](int blocks, bool pinned) {
            return make_tensor(
                {std::size_t(blocks), std::size_t(shape.layers), std::size_t(kv_factor_), shape.block_size},
                dtype_name(books_.config().dtype), pinned);
        };
        primary_.push_back(make(window.primary(), false));
        host_.push_back(window.host() > 0 ? make(window.host(), true) : nb::object(nb::none()));
    }
}

void Pools::release() {
    primary_.clear();
    host_.clear();
}

std::size_t Pools::bytes() const {
    std::size_t sum = 0;
    for (const PoolShape& shape : shapes_) {
        const std::size_t slot = std::size_t(shape.layers) * std::size_t(kv_factor_) * shape.block_size;
        sum += std::size_t(books_.window(shape.window).primary()) * slot * dtype_bytes(books_.config().dtype);
    }
    return allocated() ? sum : 0;
}

nb::object Pools::pointers() const {
    if (!allocated()) return nb::none();
    nb::object table = make_tensor({shapes_.size(), 2}, "int64", true);
    auto* cells = static_cast<std::int64_t*>(host_data(nb::cast<nb::ndarray<>>(table), 8, "the pointer table"));
    const auto address = [](const nb::object& tensor) -> std::int64_t {
        if (tensor.is_none()) return 0;
        // numpy and torch name it differently, and not every torch tensor can be exported.
        if (nb::hasattr(tensor, "data_ptr")) return nb::cast<std::int64_t>(tensor.attr("data_ptr")());
        return nb::cast<std::int64_t>(tensor.attr("ctypes").attr("data"));
    };
    for (std::size_t i = 0; i < shapes_.size(); ++i) {
        cells[2 * i] = address(primary_[i]);
        cells[2 * i + 1] = address(host_[i]);
    }
    return table;
}

nb::object Pools::scale_pointers() const { return allocated() ? make_tensor({0, 2}, "int64", true) : nb::none(); }

nb::object Pools::layer_mapping() const {
    if (!allocated()) return nb::none();
    nb::object table = make_tensor({layers_.size(), 2}, "int32", true);
    auto* cells = static_cast<std::int32_t*>(host_data(nb::cast<nb::ndarray<>>(table), 4, "the layer table"));
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
        cells[2 * layer] = layers_[layer].first;
        cells[2 * layer + 1] = layers_[layer].second;
    }
    return table;
}

nb::object Pools::unique_primary() const {
    check(shapes_.size() == 1, "there are several pools");
    check(allocated(), "the pools are not allocated");
    return primary_[0];
}

nb::object Pools::primary_of(int layer) const {
    check(allocated(), "the pools are not allocated");
    check(layer >= 0 && layer < int(layers_.size()), "there is no layer " + std::to_string(layer));
    const auto [pool, place] = layers_[std::size_t(layer)];
    const nb::object all = nb::steal(PySlice_New(nullptr, nullptr, nullptr));
    return primary_[std::size_t(pool)][nb::make_tuple(all, place)];
}

int Pools::copy_offsets(const nb::ndarray<>& table, int row, RequestId id) const {
    auto* cells = static_cast<std::int32_t*>(host_data(table, 4, "the offset table"));
    check(table.ndim() == 4 && table.shape(2) == 2, "the offset table must be [pools, rows, 2, blocks]");
    const std::size_t rows = table.shape(1);
    const std::size_t width = table.shape(3);
    check(table.shape(0) >= shapes_.size(), "the offset table has too few pools");
    int longest = 0;
    books_.visit(id, [&](int window, int beam, int place, int slot, bool host) {
        check(row >= 0 && std::size_t(row + beam) < rows && std::size_t(place) < width,
              "the offset table is too small");
        longest = std::max(longest, place + 1);
        for (std::size_t pool = 0; pool < shapes_.size(); ++pool) {
            if (shapes_[pool].window != window) continue;
            const int first = slot * shapes_[pool].layers * kv_factor_;
            // The top bit says that the block lies in the host tier.
            const auto tier = host ? std::int32_t(0x80000000U) : 0;
            std::int32_t* at = cells + ((pool * rows + std::size_t(row + beam)) * 2) * width + std::size_t(place);
            at[0] = first | tier;
            at[width] = (first + kv_factor_ - 1) | tier;
        }
    });
    return longest;
}

}  // namespace bound
