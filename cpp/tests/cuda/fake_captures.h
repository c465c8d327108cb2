// Calls that a thread forbids to the others while it captures a CUDA graph as torch does by default.
#pragma once

#include <string>

namespace kvfix::fake {

// Calls that leave the captures of others, or that ask what no capture touches.
inline bool is_for_everybody(const std::string& name) {
    return name.starts_with("cuCtx") || name.starts_with("cuDevice") || name == "cuInit" ||
           name == "cuThreadExchangeStreamCaptureMode";
}

// The calls that a default capture forbids to other threads, unless these have left it.
inline bool may_disturb_captures(const std::string& name) {
    return name == "cuEventQuery" || name == "cuEventSynchronize" || name == "cuStreamSynchronize" ||
           name == "cuMemAlloc" || name == "cuMemFree" || name == "cuMemHostAlloc" || name == "cuMemHostRegister" ||
           name == "cuMemHostUnregister";
}

}  // namespace kvfix::fake
