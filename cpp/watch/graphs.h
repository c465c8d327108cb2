// What each executable graph does with pinned memory: its nodes are read when it is instantiated or updated, and taken
// for in flight from every launch until the stream is past it.
#pragma once

#include <mutex>
#include <unordered_map>
#include <vector>

#include "watch/driver.h"
#include "watch/enqueued.h"
#include "watch/kernels.h"

namespace kvfix::watch {

class Graphs {
  public:
    Graphs(const Driver& driver, Kernels& kernels, const Ranges& ranges)
        : driver_(driver), kernels_(kernels), ranges_(ranges) {}

    void instantiated(cuda::Handle executable, cuda::Handle graph);
    void updated(cuda::Handle executable, cuda::Handle graph);
    void destroyed(cuda::Handle executable);
    void launched(cuda::Handle executable, Enqueued& enqueued);
    template <typename Params>
    void set(cuda::Handle executable, cuda::Handle node, const Params& params) {
        set_sides(executable, node, of(params));
    }
    void set_child(cuda::Handle executable, cuda::Handle node, cuda::Handle graph);

  private:
    struct Side {
        Shape shape;
        Kind kind;
        bool device_writes;
        bool certain;
    };
    using Sides = std::vector<Side>;
    struct Node {
        cuda::Handle handle;
        Sides sides;
    };

    std::vector<Node> read(cuda::Handle graph);
    Sides read_node(cuda::Handle node);
    Sides read_child(cuda::Handle graph);
    Sides of(const cuda::Copy3d& copy) const;
    Sides of(const cuda::MemsetNode& memset) const;
    Sides of(const cuda::KernelNode& kernel);
    void set_sides(cuda::Handle executable, cuda::Handle node, Sides sides);

    const Driver& driver_;
    Kernels& kernels_;
    const Ranges& ranges_;
    std::mutex mutex_;
    std::unordered_map<cuda::Handle, std::vector<Node>> executables_;
};

}  // namespace kvfix::watch
