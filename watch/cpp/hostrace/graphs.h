// What each executable graph does with pinned memory: its nodes are read when it is instantiated or updated, and taken
// for in flight from every launch until the stream is past it.
#pragma once

#include <algorithm>
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
        changed(executable) = std::move(nodes);
    }

    // The nodes of the other graph stand in the same order; later calls name those of the first.
    void updated(cuda::Handle executable, cuda::Handle graph) {
        std::vector<Node> nodes = read(graph);
        const std::lock_guard held(mutex_);
        std::vector<Node>& known = changed(executable);
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
        for (Node& known : changed(executable)) {
            if (known.handle == node) {
                known.sides = std::move(sides);
                return;
            }
        }
    }

    // A node of a child is not known by its name: all of them are taken for disabled.
    void enable(cuda::Handle executable, cuda::Handle node, bool enabled) {
        const std::lock_guard held(mutex_);
        std::vector<Node>& nodes = changed(executable);
        const auto same = [&](const Node& known) { return known.handle == node; };
        const auto found = std::find_if(nodes.begin(), nodes.end(), same);
        if (found != nodes.end()) {
            found->enabled = enabled;
        } else {
            nodes.clear();
        }
    }

    void destroyed(cuda::Handle executable) {
        const std::lock_guard held(mutex_);
        executables_.erase(executable);
    }

    // The driver tells the bodies of a conditional node to whom adds it; newer ones tell them again.
    void added(cuda::Handle node, cuda::Handle graph, const cuda::NodeParams& params) {
        if (params.type == cuda::kNodeConditional) {
            const std::lock_guard held(mutex_);
            bodies_[graph][node] = bodies_of(params);
        }
    }
    void forget(cuda::Handle graph) {
        const std::lock_guard held(mutex_);
        bodies_.erase(graph);
    }

    // What a launch of it means to others. Where the host takes part, nodes may be ordered by it, and none is guarded.
    struct Ends {
        bool with_host = false;
        bool unread_bodies = false;
        std::vector<cuda::Handle> events;  // that it records
    };
    bool with_host(cuda::Handle executable) {
        const std::lock_guard held(mutex_);
        const auto found = executables_.find(executable);
        return found != executables_.end() && found->second.looked_at().ends.with_host;
    }
    Ends launched(cuda::Handle executable, Enqueued& behind) {
        const std::lock_guard held(mutex_);
        const auto found = executables_.find(executable);
        if (found == executables_.end()) {
            return {};
        }
        const Executable& known = found->second.looked_at();
        for (const std::size_t at : known.guarded) {
            for (const Side& side : known.nodes[at].sides) {
                behind.add(side);
            }
        }
        return known.ends;
    }

  private:
    using Sides = std::vector<Side>;
    struct Node {
        cuda::Handle handle;
        Sides sides;
        bool with_host = false;
        std::vector<cuda::Handle> events;
        bool enabled = true;
        bool unread_bodies = false;
    };
    // Most of a thousand nodes use no pinned memory: a launch asks for what the others sum up to.
    struct Executable {
        std::vector<Node> nodes;
        bool current = false;  // what follows
        Ends ends;
        std::vector<std::size_t> guarded;

        const Executable& looked_at() {
            if (current) {
                return *this;
            }
            current = true;
            ends = {};
            guarded.clear();
            for (std::size_t at = 0; at < nodes.size(); ++at) {
                const Node& node = nodes[at];
                ends.with_host = ends.with_host || node.with_host;
                ends.unread_bodies = ends.unread_bodies || node.unread_bodies;
                ends.events.insert(ends.events.end(), node.events.begin(), node.events.end());
                if (node.enabled && !node.sides.empty()) {
                    guarded.push_back(at);
                }
            }
            if (ends.with_host) {
                guarded.clear();
            }
            return *this;
        }
    };
    std::vector<Node>& changed(cuda::Handle executable) {
        Executable& known = executables_[executable];
        known.current = false;
        return known.nodes;
    }
    using Bodies = std::vector<cuda::Handle>;  // graphs

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
            nodes.push_back(read_node(graph, handle));
        }
        return nodes;
    }

    Node read_node(cuda::Handle graph, cuda::Handle handle) {
        Node node;
        node.handle = handle;
        int type = -1;
        if (driver_.node_type(handle, &type) != cuda::kSuccess) {
            return node;
        }
        switch (type) {
            case cuda::kNodeMemcpy:
                node.sides = answered(driver_.memcpy_node, handle);
                break;
            case cuda::kNodeMemset:
                node.sides = answered(driver_.memset_node, handle);
                break;
            case cuda::kNodeKernel:
                node.sides = answered(driver_.kernel_node, handle);
                break;
            case cuda::kNodeGraph:
                read_child(node);
                break;
            case cuda::kNodeConditional:
                read_bodies(graph, node);
                break;
            case cuda::kNodeRecordEvent: {
                cuda::Handle event = nullptr;
                if (driver_.event_node != nullptr && driver_.event_node(handle, &event) == cuda::kSuccess) {
                    node.events.push_back(event);
                }
                node.with_host = true;
                break;
            }
            case cuda::kNodeHost:
            case cuda::kNodeWaitEvent:
            case cuda::kNodeSignalSemaphore:
            case cuda::kNodeWaitSemaphore:
            case cuda::kNodeMemOps:
                node.with_host = true;
                break;
            default:
                break;
        }
        return node;
    }
    void read_child(Node& node) {
        cuda::Handle graph = nullptr;
        if (driver_.child_graph(node.handle, &graph) != cuda::kSuccess) {
            return;
        }
        take_in(node, graph);
    }
    void take_in(Node& node, cuda::Handle graph) {
        for (Node& inner : read(graph)) {
            node.sides.insert(node.sides.end(), inner.sides.begin(), inner.sides.end());
            node.events.insert(node.events.end(), inner.events.begin(), inner.events.end());
            node.with_host = node.with_host || inner.with_host;
            node.unread_bodies = node.unread_bodies || inner.unread_bodies;
        }
    }
    void read_bodies(cuda::Handle graph, Node& node) {
        const Bodies bodies = bodies_of(graph, node.handle);
        node.unread_bodies = bodies.empty();
        for (cuda::Handle body : bodies) {
            take_in(node, body);
        }
        for (Side& side : node.sides) {
            side.kind = side.kind == Kind::graph_copy     ? Kind::conditional_copy
                        : side.kind == Kind::graph_memset ? Kind::conditional_memset
                                                          : side.kind;
        }
    }
    Bodies bodies_of(cuda::Handle graph, cuda::Handle node) {
        cuda::NodeParams params{};
        if (driver_.any_node != nullptr && driver_.any_node(node, &params) == cuda::kSuccess) {
            return bodies_of(params);
        }
        const std::lock_guard held(mutex_);
        const auto found = bodies_.find(graph);
        return found == bodies_.end() ? Bodies{} : found->second[node];
    }
    static Bodies bodies_of(const cuda::NodeParams& params) {
        const cuda::ConditionalNode& node = params.conditional;
        return node.bodies == nullptr ? Bodies{} : Bodies(node.bodies, node.bodies + node.bodies_count);
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
    std::unordered_map<cuda::Handle, Executable> executables_;
    // Of the conditional nodes of graphs that are alive.
    std::unordered_map<cuda::Handle, std::unordered_map<cuda::Handle, Bodies>> bodies_;
};

}  // namespace hostrace
