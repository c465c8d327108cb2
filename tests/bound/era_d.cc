#include "bind_manager.h"
#include "bind_request.h"
#include "bind_schedulers.h"

namespace bound {

template void bind_request<EraD>(nb::module_&);
template void bind_manager<EraD>(nb::module_&);
template void bind_schedulers<EraD>(nb::module_&);

}  // namespace bound
