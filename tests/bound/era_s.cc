#include "bind_manager.h"
#include "bind_request.h"
#include "bind_schedulers.h"

namespace bound {

template void bind_request<EraS>(nb::module_&);
template void bind_manager<EraS>(nb::module_&);
template void bind_schedulers<EraS>(nb::module_&);

}  // namespace bound
