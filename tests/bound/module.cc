#include "manager.h"

namespace bound {

namespace {

template <class E>
void add_era(nb::module_& top) {
    nb::module_ era = top.def_submodule(E::rules.era);
    share(top, era);
    bind_request<E>(era);
    bind_manager<E>(era);
    bind_schedulers<E>(era);
    if constexpr (E::is_late) era.attr("KvCacheIterationStats") = top.attr("KvCacheIterationStats");
    era.attr("inferred") = E::number == EraD::number;
}

}  // namespace

}  // namespace bound

NB_MODULE(kvfix_bound, top) {
    using namespace bound;
    // Test modules keep objects until the interpreter ends. That is not a leak.
    nb::set_leak_warnings(false);
    bind_shared(top);
    add_era<EraA>(top);
    add_era<EraS>(top);
    add_era<EraB2>(top);
    add_era<EraC>(top);
    add_era<EraD>(top);
    bind_launch(top);
    top.def("set_computed_only", [](bool on) {
        EraA::rules.computed_only = EraS::rules.computed_only = EraB2::rules.computed_only = on;
        EraC::rules.computed_only = EraD::rules.computed_only = on;
    });
    top.def("set_tensor_factory", &set_tensor_factory, nb::arg("factory").none());
}
