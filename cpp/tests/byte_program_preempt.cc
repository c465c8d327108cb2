// The calls of a ByteProgram that suspend sequences and resume them.
#include <utility>

#include "tests/byte_program.h"

namespace kvfix::testing {

std::map<RequestId, OwnedSequence>::iterator ByteProgram::any_suspended() {
    return std::next(suspended_.begin(), bytes_.below(static_cast<std::uint32_t>(suspended_.size())));
}

void ByteProgram::suspend() {
    run_copies_and_compute();  // positions not computed by now would be written while their block comes back
    const RequestId id = any_request();
    std::uint64_t queued = 0;
    if (!attempt([&] { queued = manager_.suspend_sequence(id); })) {
        return;
    }
    const auto found = sequences_.find(id);
    promise(found != sequences_.end(), "an unknown request is suspended");
    promise(queued <= ceil_div(found->second.length(), manager_.config().tokens_per_block) *
                          manager_.config().windows.size() * found->second.request->beam_width,
            "more blocks are copied than the request has");
    suspended_.insert(sequences_.extract(found));
}

void ByteProgram::resume() {
    if (suspended_.empty()) {
        return;
    }
    const auto found = any_suspended();
    if (!attempt([&] { manager_.resume_sequence(found->first); })) {
        return;
    }
    promise(!found->second.lost, "a request comes back, although bytes of it were lost");
    // its earlier writes stay valid, whatever happens to the copies that bring them back
    found->second.writer = next_writer_++;
    const RequestId id = found->first;
    sequences_.insert(suspended_.extract(found));
    held_by(sequences_.at(id));
}

void ByteProgram::remove_suspended() {
    if (suspended_.empty()) {
        return;
    }
    const auto found = any_suspended();
    const bool store = !bytes_.one_in(4);
    const bool pin = bytes_.one_in(8);
    const std::uint32_t computed = bytes_.below(found->second.length() + 2);
    const bool legal = !pin && computed <= found->second.length();
    promise(attempt([&] { manager_.remove_sequence(found->first, store, pin, std::nullopt, computed); }) == legal,
            legal ? "a suspended request cannot be ended" : "a suspended request is ended though it may not be");
    if (legal) {
        suspended_.erase(found);
    }
}

// Every call that would read or change its blocks is refused until it is back.
void ByteProgram::misuse_suspended() {
    if (suspended_.empty()) {
        return;
    }
    const auto found = any_suspended();  // clang 14 captures no structured bindings
    const RequestId id = found->first;
    const OwnedSequence& sequence = found->second;
    const std::uint32_t one = 1;
    const auto refused = [&](const std::function<void()>& call) { promise(!attempt(call), "misuse is accepted"); };
    refused([&] { manager_.suspend_sequence(id); });
    refused([&] { manager_.add_tokens({&id, 1}, {&one, 1}, std::nullopt); });
    refused([&] { manager_.rewind_kv_cache(id, 0); });
    refused([&] { manager_.store_context_blocks(id, 0); });
    refused([&] { manager_.get_batch_cache_block_ids({&id, 1}, any_window()); });
    refused([&] { manager_.add_sequence_batch({&sequence.request, 1}, std::nullopt); });
    promise(manager_.get_token_count(id) == sequence.length(), "a suspended request has another length");
    promise(manager_.blocks_to_resume(id).size() == manager_.config().windows.size(), "a window without an answer");
}

void ByteProgram::note_hurt(RequestId id) {
    if (const auto away = suspended_.find(id); away != suspended_.end()) {
        away->second.lost = true;
        return;
    }
    promise(sequences_.contains(id), "a failed transfer hurts a request that is not alive");
    sequences_.at(id).hurt = true;
    memory_.spoil(sequences_.at(id).writer);
}

}  // namespace kvfix::testing
