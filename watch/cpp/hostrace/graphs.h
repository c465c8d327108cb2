// What each executable graph does with pinned memory: its nodes are read when it is instantiated or updated, and taken
// for in flight from every launch until the stream is past it.
#pragma once

#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hostrace/copies.h"
#include "hostrace/driver.h"
#include "hostrace/enqueued.h"
#include "hostrace/kernels.h"

namespace hostrace {

class Graphs {
  public:
    Graphs(const Driver& driver, Kernels& kernels, const Ranges& ranges)
        : driver_(driver), kernels_(kernels), ranges_(ranges) {}

    void instantiated(cuda::Handle executable, cuda::Handle graph) {
        std::vector<Node> nodes = read(graph);
        const std::lock_guard held(mutex_);
        executables_[executable] = std::move(nodes);
    }

    // The nodes of the other graph stand in the same order; later calls name those of the first.
    void updated(cuda::Handle executable, cuda::Handle graph) {
        std::vector<Node> nodes = read(graph);
        const std::lock_guard held(mutex_);
        std::vector<Node>& known = executables_[executable];
        for (std::size_t at = 0; at < nodes.size() && nodes.size() == known.size(); ++at) {
            nodes[at].handle = known[at].handle;
        }
        known = std::move(nodes);
    }

    // A node takes new parameters: a structure of the driver's, or a child graph.
    template <typename Params>
    void set(cuda::Handle executable, cuda::Handle node, const Params& params) {
        Sides sides = of(params);
        const std::lock_guard held(mutex_);
        for (Node& known : executables_[executable]) {
            if (known.handle == node) {
                known.sides = std::move(sides);
                return;
            }
        }
    }

    void destroyed(cuda::Handle executable) {
        const std::lock_guard held(mutex_);
        executables_.erase(executable);
    }

    void launched(cuda::Handle executable, Enqueued& behind) {
        const std::lock_guard held(mutex_);
        const auto found = executables_.find(executable);
        if (found == executables_.end()) {
            return;
        }
        for (const Node& node : found->second) {
            for (const Side& side : node.sides) {
                behind.add(side);
            }
        }
    }

  private:
    using Sides = std::vector<Side>;
    struct Node {
        cuda::Handle handle;
        Sides sides;
    };

    std::vector<Node> read(cuda::Handle graph) {
        std::size_t count = 0;
        if (driver_.without_graphs != nullptr || driver_.graph_nodes(graph, nullptr, &count) != cuda::kSuccess) {
            return {};
        }
        std::vector<cuda::Handle> handles(count);
        if (driver_.graph_nodes(graph, handles.data(), &count) != cuda::kSuccess) {
            return {};
        }
        std::vector<Node> nodes;
        nodes.reserve(count);
        for (cuda::Handle handle : handles) {
            nodes.push_back({handle, read_node(handle)});
        }
        return nodes;
    }

    Sides read_node(cuda::Handle node) {
        int type = -1;
        if (driver_.node_type(node, &type) != cuda::kSuccess) {
            return {};
        }
        switch (type) {
            case cuda::kNodeMemcpy:
                return answered(driver_.memcpy_node, node);
            case cuda::kNodeMemset:
                return answered(driver_.memset_node, node);
            case cuda::kNodeKernel:
                return answered(driver_.kernel_node, node);
            case cuda::kNodeGraph:
                return answered(driver_.child_graph, node);
            default:
                return {};
        }
    }
    template <typename Params>
    Sides answered(cuda::Result (*ask)(cuda::Handle, Params*), cuda::Handle node) {
        Params params{};
        return ask(node, &params) == cuda::kSuccess ? of(params) : Sides{};
    }

    Sides of(const cuda::Copy3d& copy) const {
        const auto [src, dst] = sides_of(copy);
        return pinned({{src, Kind::graph_copy, false}, {dst, Kind::graph_copy, true}});
    }
    Sides of(const cuda::MemsetNode& memset) const { return pinned({{side_of(memset), Kind::graph_memset, true}}); }
    Sides of(const cuda::KernelNode& kernel) {
        Sides sides;
        cuda::Handle function = kernel.function != nullptr ? kernel.function : kernel.kernel;
        for (const std::uintptr_t address : kernels_.pinned(function, kernel.params, kernel.extra, ranges_)) {
            sides.push_back({line(address, 1), Kind::graph_kernel, true, false});
        }
        return sides;
    }
    Sides of(cuda::Handle child) {
        Sides sides;
        for (const Node& inner : read(child)) {
            sides.insert(sides.end(), inner.sides.begin(), inner.sides.end());
        }
        return sides;
    }
    Sides pinned(Sides sides) const {
        std::erase_if(sides, [&](const Side& each) { return ranges_.find(each.shape.begin).empty(); });
        return sides;
    }

    const Driver& driver_;
    Kernels& kernels_;
    const Ranges& ranges_;
    std::mutex mutex_;
    std::unordered_map<cuda::Handle, std::vector<Node>> executables_;
};

}  // namespace hostrace
