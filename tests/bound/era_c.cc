#include "bind_manager.h"
#include "bind_request.h"
#include "bind_schedulers.h"

namespace bound {

template void bind_request<EraC>(nb::module_&);
template void bind_manager<EraC>(nb::module_&);
template void bind_schedulers<EraC>(nb::module_&);

}  // namespace bound
