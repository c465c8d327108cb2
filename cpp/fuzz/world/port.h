// The one place where a world touches the manager. Each call that changes something goes to two managers of the same
// configuration. If the first refuses a call, the second never hears of it. As long as their answers agree, a refused
// call changed nothing that a later call can see, and the same calls give the same state.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/block_manager.h"
#include "fuzz/world/broken.h"

namespace kvfix::world {

using Words = std::vector<std::uint64_t>;

enum class Refusal { argument, out_of_blocks, unknown_request, in_flight };

struct Refused {
    Refusal why;
    std::string text;
    std::uint64_t needed = 0;  // out_of_blocks only
    std::uint64_t free = 0;
};

struct Nothing {};

template <class Answer>
struct Outcome {
    Answer answer{};
    std::optional<Refused> refused;
    explicit operator bool() const { return !refused; }
};

// Turns answers into words, so that two of them can be compared.
void append(Words& words, const Nothing& nothing);
void append(Words& words, const BatchAdmission& batch);
void append(Words& words, const TransferBatch& batch);
void append(Words& words, const std::vector<std::uint64_t>& numbers);
void append(Words& words, const std::vector<BlockId>& ids);
void append(Words& words, const std::vector<PinnedSlot>& slots);
void append(Words& words, const std::vector<BlockEvent>& events);

class Twins {
  public:
    explicit Twins(const BlockManagerConfig& config) : first_(config), second_(config), digest_(first_.digest()) {}

    // `call` takes a manager and returns its answer.
    template <class Call>
    auto change(const Call& call) {
        using Answer = decltype(call(first_));
        Outcome<Answer> outcome;
        outcome.refused = refusal_of([&] { outcome.answer = call(first_); });
        if (outcome.refused) {
            ++refused_;
            promise(first_.digest() == digest_,
                    [&] { return "a refused call changed the digest: " + outcome.refused->text; });
            return outcome;
        }
        Words answer;
        Words again;
        append(answer, outcome.answer);
        append(again, call(second_));
        promise(answer == again, "a manager that never heard of what was refused gives another answer");
        digest_ = first_.digest();
        if (++changes_ % kChangesPerDigest == 0) {  // it must not matter when the digest is asked for
            promise(second_.digest() == digest_, "a manager that never heard of what was refused has another digest");
        }
        return outcome;
    }

    // Makes a call that must change nothing, on the first manager alone.
    template <class Call>
    auto look(const Call& call) {
        Outcome<decltype(call(first_))> outcome;
        outcome.refused = refusal_of([&] { outcome.answer = call(first_); });
        refused_ += outcome.refused ? 1 : 0;
        promise(first_.digest() == digest_, "a call that only looks changed the digest");
        return outcome;
    }

    const BlockManagerConfig& config() const { return first_.config(); }
    std::uint64_t refused() const { return refused_; }
    void check_invariants() const { first_.check_invariants(); }

  private:
    static constexpr std::uint64_t kChangesPerDigest = 16;

    // Anything else that is thrown is not a refusal, and ends the world.
    template <class Call>
    static std::optional<Refused> refusal_of(const Call& call) {
        try {
            call();
            return std::nullopt;
        } catch (const OutOfBlocks& error) {
            return Refused{Refusal::out_of_blocks, error.what(), error.blocks_needed, error.blocks_free};
        } catch (const UnknownRequest& error) {
            return Refused{Refusal::unknown_request, error.what()};
        } catch (const BlockInFlight& error) {
            return Refused{Refusal::in_flight, error.what()};
        } catch (const std::invalid_argument& error) {
            return Refused{Refusal::argument, error.what()};
        }
    }

    BlockManager first_;
    BlockManager second_;
    std::uint64_t digest_;
    std::uint64_t changes_ = 0;
    std::uint64_t refused_ = 0;
};

}  // namespace kvfix::world
