// IndexMapper and the native launch, which reads late.
#include <nanobind/stl/vector.h>

#include <cstring>

#include "index_mapper.h"
#include "manager.h"

namespace bound {

namespace {

nb::object& launcher() {
    // Leaked on purpose: a static object would be released after the interpreter is gone.
    static auto* held = new nb::object();
    return *held;
}

// The copy index is one tensor for the mapper's whole life, so the next call overwrites what the last one returned.
template <class E>
struct Mapper : IndexMapper {
    Mapper(int max_batch_size, int max_beam_width)
        : IndexMapper(max_batch_size, max_beam_width),
          copy_index(make_tensor({std::size_t(capacity())}, "int32", true)) {}

    nb::object get_copy_index(const std::vector<RequestId>& ids, int num_contexts, int beam_width) {
        const std::vector<std::int32_t> wanted = rows(ids, num_contexts, beam_width);
        void* cells = host_data(nb::cast<nb::ndarray<>>(copy_index), 4, "the copy index");
        std::memcpy(cells, wanted.data(), wanted.size() * 4);
        const nb::object end = nb::int_(wanted.size());
        return copy_index[nb::steal(PySlice_New(nullptr, end.ptr(), nullptr))];
    }

    void gather(const nb::ndarray<>& source, const nb::ndarray<>& target, const std::vector<RequestId>& ids,
                int num_blocks) {
        const auto* from = static_cast<const std::int32_t*>(host_data(source, 4, "source"));
        auto* to = static_cast<std::int32_t*>(host_data(target, 4, "destination"));
        check(source.ndim() == 4 && target.ndim() >= 2, "source must be [pools, rows, 2, blocks]");
        const std::size_t pools = source.shape(0);
        const std::size_t width = source.shape(3);
        std::size_t stride = target.shape(target.ndim() - 1);
        check(std::size_t(num_blocks) <= std::min(width, stride), "num_blocks is too large");
        for (std::size_t i = 2; i + 1 < target.ndim(); ++i) stride *= target.shape(i);
        const std::size_t slots = target.ndim() == 2 ? target.shape(0) : target.shape(1);
        check(ids.size() <= slots, "destination has too few rows");
        check(target.ndim() == 2 ? pools == 1 : target.shape(0) >= pools, "destination has too few pools");
        for (std::size_t pool = 0; pool < pools; ++pool) {
            for (std::size_t i = 0; i < ids.size(); ++i) {
                const std::size_t row = std::size_t(get(ids[i]) * beam_width());
                check(row < source.shape(1), "source has too few rows");
                std::memcpy(to + (pool * slots + i) * stride, from + (pool * source.shape(1) + row) * 2 * width,
                            std::size_t(num_blocks) * 4);
            }
        }
    }

    nb::object copy_index;
};

std::int32_t* cells(const nb::ndarray<>& array, const char* what) {
    return static_cast<std::int32_t*>(host_data(array, 4, what));
}

Launch make_launch(const nb::ndarray<>& input, const nb::ndarray<>& output, const nb::ndarray<>& index) {
    Launch launch;
    launch.input = cells(input, "input");
    launch.output = cells(output, "output");
    launch.copy_index = cells(index, "copy_index");
    check(input.ndim() == 4 && output.ndim() == 4 && input.shape(2) == 2 && output.shape(2) == 2,
          "input and output must be [pools, rows, 2, blocks]");
    launch.pools = input.shape(0);
    launch.input_rows = input.shape(1);
    launch.output_rows = output.shape(1);
    launch.count = index.size();
    launch.blocks = input.shape(3);
    launch.output_blocks = output.shape(3);
    check(output.shape(0) >= launch.pools && launch.output_rows >= launch.count, "output is too small");
    check(launch.blocks % 4 == 0, "the number of blocks must be a multiple of 4");
    return launch;
}

void hand_over(Launch launch, std::vector<nb::ndarray<>> tensors, std::uintptr_t stream) {
    const nb::gil_scoped_acquire gil;
    if (!launcher().is_valid()) {
        launch.run();
        return;
    }
    // The tensors stay alive, as an allocator's memory would. Their contents may change until the thunk runs.
    launcher()(stream, nb::cpp_function([launch, kept = std::move(tensors)]() { launch.run(); }));
}

void launch_early(nb::ndarray<> input, nb::ndarray<> output, nb::ndarray<> copy_index, bool copy_v_idx,
                  std::uintptr_t stream) {
    Launch launch = make_launch(input, output, copy_index);
    launch.copy_v = copy_v_idx;
    hand_over(launch, {input, output, copy_index}, stream);
}

void launch_late(nb::ndarray<> input, nb::ndarray<> output, nb::ndarray<> copy_index, nb::ndarray<> index_scales,
                 nb::ndarray<> kv_offset, std::uintptr_t stream) {
    Launch launch = make_launch(input, output, copy_index);
    launch.scales = cells(index_scales, "index_scales");
    launch.v_offset = cells(kv_offset, "kv_offset");
    check(index_scales.size() >= launch.pools && kv_offset.size() >= launch.pools, "one scale for each pool is needed");
    hand_over(launch, {input, output, copy_index, index_scales, kv_offset}, stream);
}

template <class E>
void bind_era(nb::module_& era) {
    using M = Mapper<E>;
    nb::class_<M> mapper(era, "IndexMapper");
    mapper.def(nb::init<int, int>(), nb::arg("max_batch_size"), nb::arg("max_beam_width"))
        .def("add_new_sequence", &M::add)
        .def("get_index", &M::get)
        .def("remove_sequence", &M::remove)
        .def("get_copy_index", &M::get_copy_index);
    const nb::call_guard<nb::gil_scoped_release> released;
    if constexpr (E::is_late) {
        mapper
            .def("gather_k_block_offsets", &M::gather, nb::arg("source"), nb::arg("destination"),
                 nb::arg("request_ids"), nb::arg("num_blocks"))
            .def("size", &M::size)
            .def("num_free_slots", &M::num_free);
        era.def("copy_batch_block_offsets_to_device", &launch_late, nb::arg("input"), nb::arg("output"),
                nb::arg("copy_index"), nb::arg("index_scales"), nb::arg("kv_offset"), nb::arg("stream"), released);
    } else {
        era.def("copy_batch_block_offsets_to_device", &launch_early, nb::arg("input"), nb::arg("output"),
                nb::arg("copy_index"), nb::arg("copy_v_idx"), nb::arg("stream"), released);
    }
}

}  // namespace

void bind_launch(nb::module_& top) {
    const auto era = [&top](const char* name) { return nb::cast<nb::module_>(top.attr(name)); };
    nb::module_ s = era("S");
    nb::module_ b2 = era("B2");
    nb::module_ c = era("C");
    nb::module_ d = era("D");
    bind_era<EraS>(s);
    bind_era<EraB2>(b2);
    bind_era<EraC>(c);
    bind_era<EraD>(d);
    top.def(
        "set_launcher", [](nb::object made) { launcher() = made.is_none() ? nb::object() : std::move(made); },
        nb::arg("launcher").none());
}

}  // namespace bound
