// What a thread that captures a CUDA graph as torch does by default forbids to the others.
#pragma once

#include <string>

namespace kvfix::fake {

// What a thread calls to leave the captures of others, or to ask what no capture touches.
inline bool is_for_everybody(const std::string& name) {
    return name.starts_with("cuCtx") || name.starts_with("cuDevice") || name == "cuInit" ||
           name == "cuThreadExchangeStreamCaptureMode";
}

// The calls that a default capture forbids to other threads, unless these have left it.
inline bool may_disturb_captures(const std::string& name) {
    return name == "cuEventQuery" || name == "cuEventSynchronize" || name == "cuStreamSynchronize" ||
           name == "cuMemAlloc" || name == "cuMemFree" || name == "cuMemHostRegister" || name == "cuMemHostUnregister";
}

}  // namespace kvfix::fake
