#include "watch/graphs.h"

#include <utility>

#include "watch/copies.h"

namespace kvfix::watch {

Graphs::Sides Graphs::of(const cuda::Copy3d& copy) const {
    Sides sides;
    const auto [src, dst] = sides_of(copy);
    if (!src.empty() && !ranges_.find(src.begin).empty()) {
        sides.push_back({src, Kind::graph_copy, false, true});
    }
    if (!dst.empty() && !ranges_.find(dst.begin).empty()) {
        sides.push_back({dst, Kind::graph_copy, true, true});
    }
    return sides;
}

Graphs::Sides Graphs::of(const cuda::MemsetNode& memset) const {
    const Shape shape = side_of(memset);
    return ranges_.find(shape.begin).empty() ? Sides{} : Sides{{shape, Kind::graph_memset, true, true}};
}

Graphs::Sides Graphs::of(const cuda::KernelNode& kernel) {
    Sides sides;
    cuda::Handle function = kernel.function != nullptr ? kernel.function : kernel.kernel;
    for (const std::uintptr_t address : kernels_.pinned(function, kernel.params, kernel.extra, ranges_)) {
        sides.push_back({line(address, 1), Kind::graph_kernel, true, false});
    }
    return sides;
}

Graphs::Sides Graphs::read_node(cuda::Handle node) {
    int type = -1;
    if (driver_.node_type(node, &type) != cuda::kSuccess) {
        return {};
    }
    if (type == cuda::kNodeMemcpy) {
        cuda::Copy3d copy{};
        return driver_.memcpy_node(node, &copy) == cuda::kSuccess ? of(copy) : Sides{};
    }
    if (type == cuda::kNodeMemset) {
        cuda::MemsetNode memset{};
        return driver_.memset_node(node, &memset) == cuda::kSuccess ? of(memset) : Sides{};
    }
    if (type == cuda::kNodeKernel) {
        cuda::KernelNode kernel{};
        return driver_.kernel_node(node, &kernel) == cuda::kSuccess ? of(kernel) : Sides{};
    }
    cuda::Handle child = nullptr;
    const bool has_child = type == cuda::kNodeGraph && driver_.child_graph(node, &child) == cuda::kSuccess;
    return has_child ? read_child(child) : Sides{};
}

Graphs::Sides Graphs::read_child(cuda::Handle graph) {
    Sides sides;
    for (const Node& inner : read(graph)) {
        sides.insert(sides.end(), inner.sides.begin(), inner.sides.end());
    }
    return sides;
}

std::vector<Graphs::Node> Graphs::read(cuda::Handle graph) {
    std::vector<Node> nodes;
    std::size_t count = 0;
    if (!driver_.reads_graphs() || driver_.graph_nodes(graph, nullptr, &count) != cuda::kSuccess) {
        return nodes;
    }
    std::vector<cuda::Handle> handles(count);
    if (driver_.graph_nodes(graph, handles.data(), &count) != cuda::kSuccess) {
        return nodes;
    }
    nodes.reserve(count);
    for (cuda::Handle handle : handles) {
        nodes.push_back({handle, read_node(handle)});
    }
    return nodes;
}

void Graphs::instantiated(cuda::Handle executable, cuda::Handle graph) {
    std::vector<Node> nodes = read(graph);
    const std::lock_guard held(mutex_);
    executables_[executable] = std::move(nodes);
}

// The nodes of the other graph stand in the same order; later calls name those of the first.
void Graphs::updated(cuda::Handle executable, cuda::Handle graph) {
    std::vector<Node> nodes = read(graph);
    const std::lock_guard held(mutex_);
    std::vector<Node>& known = executables_[executable];
    for (std::size_t at = 0; at < nodes.size() && nodes.size() == known.size(); ++at) {
        nodes[at].handle = known[at].handle;
    }
    known = std::move(nodes);
}

void Graphs::destroyed(cuda::Handle executable) {
    const std::lock_guard held(mutex_);
    executables_.erase(executable);
}

void Graphs::launched(cuda::Handle executable, Enqueued& enqueued) {
    const std::lock_guard held(mutex_);
    const auto found = executables_.find(executable);
    if (found == executables_.end()) {
        return;
    }
    for (const Node& node : found->second) {
        for (const Side& side : node.sides) {
            if (side.certain) {
                enqueued.add(side.shape, side.kind, side.device_writes, true);
            } else {
                enqueued.pointer(side.shape.begin, side.kind);
            }
        }
    }
}

void Graphs::set_sides(cuda::Handle executable, cuda::Handle node, Sides sides) {
    const std::lock_guard held(mutex_);
    for (Node& known : executables_[executable]) {
        if (known.handle == node) {
            known.sides = std::move(sides);
            return;
        }
    }
}

void Graphs::set_child(cuda::Handle executable, cuda::Handle node, cuda::Handle graph) {
    set_sides(executable, node, read_child(graph));
}

}  // namespace kvfix::watch
