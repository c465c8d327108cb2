// Sizes in pages of this machine, for memory that is mapped and pinned.
#pragma once

#include <unistd.h>

#include <cstddef>

namespace kvfix {

inline std::size_t page_bytes_here() { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

inline std::size_t rounded_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace kvfix
