// check_invariants() is only worth what it catches. So each kind of damage is done on purpose, to a sound window.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/hold.h"
#include "core/invariants.h"
#include "core/pin.h"
#include "core/store.h"
#include "core/transfer.h"
#include "tests/support.h"

namespace kvfix {
namespace {

using testing::config;

// A window with one block in every state.
class World {
  public:
    World() {
        only_host = cache(window.tree.open_root(std::string()), 100);
        both = cache(window.tree.open_root(std::string()), 200);
        flush();
        deliver();
        hold::claim(window, both);
        transfer::onboard(state_, window, both);
        deliver();
        hold::let_go(state_, window, both);
        parent = cache(window.tree.open_root(std::string()), 300);
        child = cache(parent, 400);
        owned = hold::allocate(state_, window, kPriorityDefault, std::nullopt);
        pinned = cache(window.tree.open_root(std::string("Sother")), 500);
        pin::add(state_, window, pinned, kPrimary);
        arriving = hold::allocate(state_, window, kPriorityDefault, std::nullopt);
        transfer::lock_source(state_, window, pinned, 1);
        transfer::copy_prefix(state_, window, pinned, arriving, 2);
        for (const BlockIndex block : window.blocks.all()) {
            owners.push_back(window.blocks[block].owners);
        }
    }

    void check() const { check_window_invariants(window, owners); }
    Block& operator[](BlockIndex block) { return window.blocks[block]; }

  private:
    State state_{config(7, 4)};

  public:
    Window& window = state_.windows[0];
    std::vector<std::uint32_t> owners;
    BlockIndex only_host = kNone;
    BlockIndex both = kNone;
    BlockIndex parent = kNone;
    BlockIndex child = kNone;
    BlockIndex owned = kNone;
    BlockIndex pinned = kNone;
    BlockIndex arriving = kNone;

  private:
    BlockIndex cache(ParentRef below, TokenId first) {
        const BlockIndex block = hold::allocate(state_, window, kPriorityDefault, std::nullopt);
        const testing::Tokens content = testing::tokens(testing::kTokensPerBlock, first);
        std::ranges::copy(content, window.blocks.tokens(block).begin());
        window.blocks[block].num_tokens = testing::kTokensPerBlock;
        window.blocks[block].key = window.tree.child_key(window.tree.key_of(below), {content, ""});
        store::enter(state_, window, block, below, *testing::request(1, content));
        hold::let_go(state_, window, block);
        return block;
    }
    void flush() {
        std::vector<BlockIndex> taken;
        while (window.allocatable() > 0) {
            taken.push_back(hold::allocate(state_, window, kPriorityDefault, std::nullopt));
        }
        for (const BlockIndex block : taken) {
            hold::let_go(state_, window, block);
        }
    }
    void deliver() { transfer::complete(state_, state_.ledger.take()); }
};

using Damage = std::pair<std::string, std::function<void(World&)>>;

const std::vector<Damage> kDamages{
    {"a cached block has an owner", [](World& w) { ++w[w.parent].owners; }},
    {"an owned block has lost its owner", [](World& w) { w[w.owned].owners = 0; }},
    {"a sequence holds a block that does not know it", [](World& w) { ++w.owners[number(w.owned)]; }},
    {"two blocks have one slot", [](World& w) { w[w.owned].slot[kPrimary] = w[w.parent].slot[kPrimary]; }},
    {"a slot is lost", [](World& w) { w.window.blocks.take_slot(kPrimary); }},
    {"a host slot is lost", [](World& w) { w.window.blocks.take_slot(kHost); }},
    {"a slot in use is free too", [](World& w) { w.window.blocks.give_slot(kPrimary, w[w.owned].slot[kPrimary]); }},
    {"a host slot in use is free too", [](World& w) { w.window.blocks.give_slot(kHost, w[w.both].slot[kHost]); }},
    {"a record is taken for nothing", [](World& w) { w.window.blocks.acquire(); }},
    {"a block has lost its slots", [](World& w) { w[w.only_host].slot[kHost] = kNone; }},
    {"a cached block is pinned", [](World& w) { ++w[w.parent].pins[kPrimary]; }},
    {"a pinned block has lost its pin, its lock and its queue",
     [](World& w) { w[w.pinned].pins[kPrimary] = w[w.pinned].locks[kPrimary] = 0; }},
    {"a block is pinned where it has no slot", [](World& w) { ++w[w.parent].pins[kHost]; }},
    {"a cached block is locked", [](World& w) { ++w[w.child].locks[kPrimary]; }},
    {"a host copy is locked and may be evicted", [](World& w) { ++w[w.both].locks[kHost]; }},
    {"a block only in host has an owner and may be evicted",
     [](World& w) { ++w[w.only_host].owners, ++w.owners[number(w.only_host)]; }},
    {"a cached block is in flight", [](World& w) { w[w.child].begin_flight(kPrimary); }},
    {"an arriving block has arrived unnoticed", [](World& w) { w[w.arriving].end_flight(kPrimary); }},
    {"a host copy is in flight", [](World& w) { w[w.both].begin_flight(kHost); }},
    {"a block has left the tree and its queue has not noticed", [](World& w) { w[w.child].in_tree = false; }},
    {"a private block claims to be in the tree", [](World& w) { w[w.owned].in_tree = true; }},
    {"a child has another parent", [](World& w) { w[w.child].parent = w.both; }},
    {"a root's child has another root", [](World& w) { w[w.parent].parent = w[w.pinned].parent; }},
    {"a parent has lost its children", [](World& w) { w[w.parent].children = kNone; }},
    {"a private block has children", [](World& w) { w[w.owned].children = w.child; }},
    {"a parent counts a child too many", [](World& w) { ++w[w.parent].children_primary; }},
    {"a parent counts a child too few", [](World& w) { w[w.parent].children_primary = 0; }},
    {"an incomplete block has children", [](World& w) { --w[w.parent].num_tokens; }},
    {"a tree block has no tokens", [](World& w) { w[w.child].num_tokens = 0; }},
    {"a tree block has too many tokens", [](World& w) { w[w.child].num_tokens = testing::kTokensPerBlock + 1; }},
    {"a block has another's key", [](World& w) { w[w.child].key ^= 1; }},
    {"a block's tokens have changed", [](World& w) { ++w.window.blocks.tokens(w.child)[0]; }},
    {"a block's extras have changed", [](World& w) { w.window.blocks.set_extras(w.child, "image"); }},
    {"a block queues under another priority", [](World& w) { ++w[w.parent].priority; }},
    {"a host copy queues under another priority", [](World& w) { ++w[w.only_host].priority; }},
    {"an undelivered block is in the tree", [](World& w) { w[w.child].undelivered = true; }},
    {"a free record says that it has extras",
     [](World& w) { w[w.window.blocks.free_records().back()].has_extras = true; }},
};

TEST(Invariants, HoldInASoundWorld) {
    const World world;
    EXPECT_NO_THROW(world.check());
}

TEST(Invariants, CatchEveryKindOfDamage) {
    for (const auto& [name, damage] : kDamages) {
        World world;
        damage(world);
        EXPECT_THROW(world.check(), InvariantViolation) << name;
    }
}

TEST(Invariants, AViolationNamesItsPlace) {
    World world;
    ++world[world.parent].owners;
    const std::string what = testing::message_of<InvariantViolation>([&] { world.check(); });
    EXPECT_NE(what.find(".cc:"), std::string::npos) << what;
}

}  // namespace
}  // namespace kvfix
