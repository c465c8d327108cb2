#include "bind_manager.h"
#include "bind_request.h"
#include "bind_schedulers.h"

namespace bound {

template void bind_request<EraB2>(nb::module_&);
template void bind_manager<EraB2>(nb::module_&);
template void bind_schedulers<EraB2>(nb::module_&);

}  // namespace bound
