// What the library reads of Python frames, for a test that loads it into several interpreters.
#include "watch/python.h"

namespace {

const kvfix::watch::Python& python() {
    static const kvfix::watch::Python found = [] {
        kvfix::watch::Python made;
        made.find();
        return made;
    }();
    return found;
}

}  // namespace

#define API extern "C" __attribute__((visibility("default")))

API void* own_state() { return python().unknown() ? nullptr : python().state(); }

API int print_frames(void* state, char* to, int bytes) {
    kvfix::watch::Text text(to, static_cast<std::size_t>(bytes));
    python().print(state, text);
    return static_cast<int>(text.size());
}
