// BlockManager's class in Python: too many methods for one file, so each topic adds its own.
#pragma once

#include <nanobind/nanobind.h>

#include "core/block_manager.h"

namespace kvfix::bindings {

using ManagerClass = nanobind::class_<BlockManager>;

void bind_verbs(ManagerClass& manager);

}  // namespace kvfix::bindings
