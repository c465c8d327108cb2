// What the library reads of Python frames, for a test that loads it into several interpreters.
#include "hostrace/python.h"

namespace {

const hostrace::Python& python() {
    static const hostrace::Python found = [] {
        hostrace::Python made;
        made.find();
        return made;
    }();
    return found;
}

}  // namespace

#define API extern "C" __attribute__((visibility("default")))

API void* own_state() { return python().unknown() ? nullptr : python().state(); }

API int print_frames(void* state, char* to, int bytes) {
    hostrace::Text text(to, static_cast<std::size_t>(bytes));
    python().print(state, text);
    return static_cast<int>(text.size());
}
