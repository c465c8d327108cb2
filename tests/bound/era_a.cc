#include "bind_manager.h"
#include "bind_request.h"
#include "bind_schedulers.h"

namespace bound {

template void bind_request<EraA>(nb::module_&);
template void bind_manager<EraA>(nb::module_&);
template void bind_schedulers<EraA>(nb::module_&);

}  // namespace bound
