#include "tests/byte_program.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/errors.h"

namespace kvfix::testing {
namespace {

constexpr RequestId kNobody = 999'999'999;

}  // namespace

ByteProgram::ByteProgram(std::span<const std::uint8_t> bytes)
    : bytes_(bytes), manager_(make_config(bytes_)), memory_(manager_.config()) {}

void ByteProgram::step() {
    using Call = void (ByteProgram::*)();
    static constexpr auto kCalls = std::to_array<std::pair<Call, std::uint32_t>>({
        {&ByteProgram::admit, 8},
        {&ByteProgram::remove, 6},
        {&ByteProgram::grow, 6},
        {&ByteProgram::end_ticket, 6},
        {&ByteProgram::store_context, 4},
        {&ByteProgram::unpin, 4},
        {&ByteProgram::run_copies_and_compute, 2},
        {&ByteProgram::rewind, 2},
        {&ByteProgram::pin_ids, 3},
        {&ByteProgram::pin_request, 2},
        {&ByteProgram::pass_time, 2},
        {&ByteProgram::read, 1},
        {&ByteProgram::misuse, 1},
        {&ByteProgram::name_blocks, 1},
        {&ByteProgram::truncate, 1},
        {&ByteProgram::suspend, 3},
        {&ByteProgram::resume, 3},
        {&ByteProgram::remove_suspended, 1},
        {&ByteProgram::misuse_suspended, 1},
    });
    static constexpr std::uint32_t kWeights = std::accumulate(
        kCalls.begin(), kCalls.end(), 0U, [](std::uint32_t sum, const auto& call) { return sum + call.second; });
    std::uint32_t weight = bytes_.below(kWeights);
    for (const auto& [call, share] : kCalls) {
        if (weight < share) {
            (this->*call)();
            break;
        }
        weight -= share;
    }
    manager_.check_invariants();
}

void ByteProgram::wind_up() {
    run_copies_and_compute();
    for (const Ticket ticket : std::exchange(tickets_, {})) {
        complete(ticket);
    }
    for (const auto& [id, sequence] : sequences_) {
        verify(sequence);
    }
    for (const Pinned& pinned : std::exchange(pins_, {})) {
        memory_.unpin(pinned.place);
        manager_.unpin_blocks_by_id({&pinned.id, 1}, pinned.place.tier);
    }
    for (const auto& [id, sequence] : sequences_) {
        manager_.remove_sequence(id, true, false, std::nullopt);
    }
    for (const auto& [id, sequence] : suspended_) {
        manager_.remove_sequence(id, true, false, std::nullopt);
    }
    manager_.reset_reuse_state();
    manager_.check_invariants();
    for (const WindowStats& window : stats().windows) {
        promise(window.primary.free == window.primary.blocks, "a primary slot is lost");
        promise(window.host.free == window.host.blocks, "a host slot is lost");
    }
}

bool ByteProgram::attempt(const std::function<void()>& call) {
    const std::uint64_t before = manager_.digest();
    std::string refusal;
    try {
        call();
        return true;
    } catch (const OutOfBlocks& error) {
        promise(error.blocks_needed > error.blocks_free, "refused though there is room: " + std::string(error.what()));
        refusal = error.what();
    } catch (const UnknownRequest& error) {
        refusal = error.what();
    } catch (const BlockInFlight& error) {
        refusal = error.what();
    } catch (const std::invalid_argument& error) {
        refusal = error.what();
    }
    promise(manager_.digest() == before, "a refused call changed the digest: " + refusal);
    return false;
}

RequestId ByteProgram::any_request() {
    if (sequences_.empty() || bytes_.one_in(16)) {
        return kNobody;
    }
    return std::next(sequences_.begin(), bytes_.below(static_cast<std::uint32_t>(sequences_.size())))->first;
}

std::uint32_t ByteProgram::reported(RequestId id) {
    const auto found = sequences_.find(id);
    const std::uint32_t written = found == sequences_.end() ? 0 : found->second.written;
    if (bytes_.one_in(32)) {
        return (found == sequences_.end() ? 0 : found->second.length()) + 1;
    }
    return bytes_.one_in(4) ? bytes_.below(written + 1) : written;
}

// -------------------------------------------------------------------------------------------------------- sequences

void ByteProgram::admit() {
    std::vector<OwnedSequence> batch;
    std::vector<RequestPtr> requests;
    std::vector<std::uint64_t> promised;
    for (std::uint32_t count = bytes_.pick(std::array<std::uint32_t, 5>{1, 1, 2, 3, 4}); count > 0; --count) {
        batch.push_back(make_request(bytes_, next_id_++, manager_.config()));
        requests.push_back(batch.back().request);
        promised.push_back(manager_.analyze_prefix_reuse(requests.back()).tokens);
    }
    const auto budget = bytes_.one_in(3) ? std::optional<std::uint64_t>(bytes_.below(40)) : std::nullopt;
    BatchAdmission result;
    if (!attempt([&] { result = manager_.add_sequence_batch(requests, budget); })) {
        make_room();
        return;
    }
    for (std::size_t i = 0; manager_.config().copy_on_partial_reuse && i < result.admitted.size(); ++i) {
        // Beside others, a request may find no room for the source of a copy. Alone it gets what it was promised.
        const std::uint64_t whole = promised[i] - promised[i] % manager_.config().tokens_per_block;
        const std::uint64_t reused = result.admitted[i].tokens_reused;
        promise(reused == promised[i] || (promised.size() > 1 && reused == whole),
                "reuse in a batch is not what analyze_prefix_reuse said");
    }
    expect_admitted(result, batch, budget);
}

// Frees blocks when no request is admitted any more, so that the program does not spend its bytes on refusals.
void ByteProgram::make_room() {
    remove();
    if (!tickets_.empty()) {
        end_ticket();
    }
    if (!pins_.empty()) {
        unpin();
    }
}

void ByteProgram::expect_admitted(const BatchAdmission& result, std::span<OwnedSequence> batch,
                                  std::optional<std::uint64_t> budget) {
    promise(result.admitted.size() + result.deferred.size() == batch.size(),
            "a request is neither admitted nor deferred");
    promise(budget || result.deferred.empty(), "deferred without a budget");
    std::uint64_t tokens_new = 0;
    for (std::size_t i = 0; i < result.admitted.size(); ++i) {
        const Admission& admission = result.admitted[i];
        promise(admission.request_id == batch[i].request->id, "admissions are out of order");
        promise(admission.tokens_reused + admission.tokens_new == batch[i].length(),
                "reused and new tokens are not the prompt");
        promise(admission.tokens_new > 0, "a prompt without a token to compute");
        tokens_new += admission.tokens_new;
        batch[i].written = static_cast<std::uint32_t>(admission.tokens_reused);
        sequences_.emplace(admission.request_id, std::move(batch[i]));
    }
    promise(!budget || tokens_new <= *budget, "the budget is exceeded");
}

void ByteProgram::grow() {
    if (!bytes_.one_in(3)) {  // otherwise positions are reserved before the existing ones are computed
        run_copies_and_compute();
    }
    std::vector<RequestId> ids;
    std::vector<std::uint32_t> counts;
    std::vector<std::uint32_t> computed;
    std::vector<TokenId> tokens;
    for (std::uint32_t requests = bytes_.between(1, 3); requests > 0; --requests) {
        ids.push_back(any_request());
        computed.push_back(reported(ids.back()));
        counts.push_back(bytes_.one_in(64) ? kNone : bytes_.pick(std::array<std::uint32_t, 6>{1, 1, 2, 3, 9, 0}));
        for (std::uint32_t i = 0; counts.back() != kNone && i < counts.back(); ++i) {
            tokens.push_back(bytes_.pick(std::array<TokenId, 3>{0, 1, 2}));
        }
    }
    const auto told = bytes_.one_in(3) ? std::nullopt : std::optional<std::span<const TokenId>>(tokens);
    const auto done = bytes_.one_in(4) ? std::nullopt : std::optional<std::span<const std::uint32_t>>(computed);
    if (!attempt([&] { manager_.add_tokens(ids, counts, told, done); })) {
        return;
    }
    for (std::size_t i = 0; done && i < ids.size(); ++i) {
        promise(computed[i] <= sequences_.at(ids[i]).length(), "more than there is has been computed");
    }
    auto next = tokens.begin();
    for (std::size_t i = 0; i < ids.size(); ++i) {
        const auto end = next + counts[i];
        std::for_each(next, end, [&](TokenId token) { sequences_.at(ids[i]).append(token); });
        next = end;
    }
}

void ByteProgram::rewind() {
    const RequestId id = any_request();
    const std::uint32_t count = bytes_.below(6);
    if (attempt([&] { manager_.rewind_kv_cache(id, count); })) {
        sequences_.at(id).rewind(count);
    }
}

void ByteProgram::store_context() {
    run_copies_and_compute();
    const RequestId id = any_request();
    const auto found = sequences_.find(id);
    const std::uint32_t prompt = found == sequences_.end() ? 1 : found->second.request->num_tokens();
    const std::uint32_t computed = bytes_.one_in(2) ? bytes_.below(prompt + 2) : prompt;
    attempt([&] { manager_.store_context_blocks(id, computed); });
}

void ByteProgram::remove() {
    const RequestId id = any_request();
    const auto found = sequences_.find(id);
    if (found == sequences_.end()) {
        promise(!attempt([&] { manager_.remove_sequence(id, true, false, std::nullopt); }),
                "an unknown request is removed");
        return;
    }
    const OwnedSequence& sequence = found->second;
    if (!bytes_.one_in(4)) {
        run_copies_and_compute();
    }
    if (sequence.written == sequence.length() && !bytes_.one_in(3)) {
        manager_.store_context_blocks(id, sequence.request->num_tokens());
    }
    const bool store = !bytes_.one_in(4);
    const bool pin = bytes_.one_in(8);
    const auto whole = make_whole_tokens(bytes_, sequence);
    const auto tokens = whole ? std::optional<std::span<const TokenId>>(*whole) : std::nullopt;
    const std::optional<std::uint32_t> computed = bytes_.one_in(3) ? std::nullopt : std::optional(reported(id));
    const std::vector<Held> held = held_by(sequence);
    std::vector<BlockId> pinned;
    if (attempt([&] { pinned = manager_.remove_sequence(id, store, pin, tokens, computed); })) {
        promise(computed.value_or(0) <= sequence.length(), "more than there is has been computed");
        remember_pins(pinned, held);
        sequences_.erase(found);
    }
}

}  // namespace kvfix::testing
