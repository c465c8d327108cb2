#include "replay/requests.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

namespace kvfix::replay {

void Requests::add(Source source) {
    const auto is_known = [&](TokenId symbol) { return symbol >= 0 && std::cmp_less(symbol, spelling_.span); };
    const bool is_short = source.prompt_length > std::uint64_t{spelling_.tokens_per_symbol} * source.symbols.size();
    if (source.is_spelled && (is_short || !std::ranges::all_of(source.symbols, is_known))) {
        throw std::invalid_argument("replay, request " + std::to_string(size()) + ": " +
                                    std::to_string(source.symbols.size()) + " symbols, each 0 to " +
                                    std::to_string(spelling_.span - 1) + ", do not spell a prompt of " +
                                    std::to_string(source.prompt_length) + " tokens");
    }
    sources_.push_back(std::move(source));
}

std::vector<TokenId> Requests::prompt(RequestId index) const {
    const Source& source = sources_.at(index);
    if (!source.is_spelled) {
        return source.symbols;
    }
    std::vector<TokenId> tokens(source.prompt_length);
    auto to = tokens.begin();
    for (const TokenId symbol : source.symbols) {
        auto place = static_cast<std::uint32_t>(symbol);
        auto left = std::min<std::ptrdiff_t>(spelling_.tokens_per_symbol, tokens.end() - to);
        while (left > 0) {  // more than once only where the span wraps around
            const auto run = std::min<std::ptrdiff_t>(left, spelling_.span - place);
            std::iota(to, to + run, spelling_.base + static_cast<TokenId>(place));
            to += run;
            left -= run;
            place = 0;
        }
    }
    return tokens;
}

RequestPtr Requests::request(RequestId index) const {
    const Source& source = sources_[index];
    return std::make_shared<const Request>(index, prompt(index), 1, source.lora_id, source.salt,
                                           std::vector<ExtraKey>{}, std::nullopt);
}

}  // namespace kvfix::replay
