#include "watch/enqueued.h"

#include <algorithm>

#include "watch/thread.h"

namespace kvfix::watch {

void Enqueued::pointer(std::uintptr_t address, Kind kind) {
    const Range range = ranges_.find(address);
    if (range.empty()) {
        return;
    }
    std::size_t bytes = range.end - address;
    if (bytes > kKernelBytesMax) {
        bytes = kKernelBytesMax;
        ++watch_.report.numbers().trimmed;
    }
    Shape shape;
    shape.begin = address;
    shape.width = bytes;
    add(shape, kind, true, false);
}

void Enqueued::add(const Shape& shape, Kind kind, bool device_writes, bool certain) {
    if (shape.empty() || ranges_.find(shape.begin).empty()) {
        return;
    }
    if (!marked_) {
        marked_ = true;
        since_ns_ = now_ns();
        mark_ = streams_.mark(key_);
        if (mark_.flag == nullptr && !streams_.capturing(key_.stream)) {
            ++watch_.report.numbers().unwatched_streams;
        }
        stack_ = mark_.flag == nullptr ? 0 : watch_.stacks.take();
    }
    if (mark_.flag == nullptr) {
        return;
    }
    Use use;
    use.shape = shape;
    use.kind = kind;
    use.device_writes = device_writes;
    use.certain = certain;
    use.flag = mark_.flag;
    use.sequence = mark_.sequence;
    use.stack = stack_;
    use.thread = self().id;
    use.context = key_.context;
    use.stream = reinterpret_cast<std::uintptr_t>(key_.stream);
    use.since_ns = since_ns_;
    static_cast<void>(watch_.guard.add(use));
}

}  // namespace kvfix::watch
