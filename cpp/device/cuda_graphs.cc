#include "device/cuda_graphs.h"

namespace kvfix::cuda {
namespace {

// The captured graph only serves to make the one that is launched, and is then destroyed.
class CapturedGraph {
  public:
    explicit CapturedGraph(const Driver& driver) : driver_(driver) {}
    CapturedGraph(const CapturedGraph&) = delete;
    CapturedGraph& operator=(const CapturedGraph&) = delete;
    ~CapturedGraph() {
        if (graph != nullptr) {
            static_cast<void>(driver_.graph_destroy.result(graph));
        }
    }

    Graph graph = nullptr;

  private:
    const Driver& driver_;
};

// A stream of its own, on which nothing else is enqueued during the capture. A failed capture must be ended before its
// stream may be destroyed.
class CaptureStream {
  public:
    explicit CaptureStream(const Driver& driver) : driver_(driver) {
        driver.stream_create(&stream, kStreamNonBlocking);
    }
    CaptureStream(const CaptureStream&) = delete;
    CaptureStream& operator=(const CaptureStream&) = delete;
    ~CaptureStream() {
        if (capturing_) {
            CapturedGraph unfinished(driver_);
            static_cast<void>(driver_.end_capture.result(stream, &unfinished.graph));
        }
        static_cast<void>(driver_.stream_destroy.result(stream));
    }

    void begin() {
        driver_.begin_capture(stream, kCaptureThreadLocal);
        capturing_ = true;
    }
    void end(CapturedGraph& captured) {
        capturing_ = false;
        driver_.end_capture(stream, &captured.graph);
    }

    Stream stream = nullptr;

  private:
    const Driver& driver_;
    bool capturing_ = false;
};

}  // namespace

GraphExec capture_copies(const PrimaryContext& context, std::span<const CopySpan> spans) {
    const Driver& driver = context.driver;
    const CurrentContext current = context.use();
    CaptureStream on(driver);
    CapturedGraph captured(driver);
    on.begin();
    for (const CopySpan& span : spans) {
        driver.copy(span.dst, span.src, span.bytes, on.stream);
    }
    on.end(captured);
    GraphExec launchable = nullptr;
    driver.graph_instantiate(&launchable, captured.graph, 0);
    return launchable;
}

}  // namespace kvfix::cuda
