#include "fuzz/world/prompts.h"

#include <algorithm>
#include <string>

namespace kvfix::world {
namespace {

constexpr std::size_t kRemembered = 24;
constexpr std::uint64_t kPromptBeam = 0;

std::uint64_t content_of_text(std::uint64_t kind, const std::string& text) {
    std::uint64_t content = mixed(kind);
    for (const char letter : text) {
        content = mixed(content, static_cast<std::uint8_t>(letter));
    }
    return content;
}

std::uint64_t content_of_tenant(const Prompt& prompt) {
    std::uint64_t salt = 0;
    if (const auto* text = std::get_if<std::string>(&prompt.salt)) {
        salt = content_of_text(1, *text);
    } else if (const auto* bytes = std::get_if<std::vector<std::uint8_t>>(&prompt.salt)) {
        salt = content_of_text(2, {bytes->begin(), bytes->end()});
    } else if (const auto* number = std::get_if<std::int64_t>(&prompt.salt)) {
        salt = mixed(3, static_cast<std::uint64_t>(*number));
    }
    return mixed(prompt.lora_id ? mixed(4, static_cast<std::uint64_t>(*prompt.lora_id)) : 0, salt);
}

}  // namespace

void extend_contents(std::vector<std::uint64_t>& contents, const Prompt& prompt) {
    std::uint64_t before = contents.empty() ? content_of_tenant(prompt) : contents.back();
    for (auto position = static_cast<std::uint32_t>(contents.size()); position < prompt.tokens.size(); ++position) {
        before = mixed(before, static_cast<std::uint64_t>(prompt.tokens[position]));
        for (const ExtraKey& span : prompt.spans) {
            if (span.begin <= position && position < span.end) {
                before = mixed(before, mixed(content_of_text(5, span.digest), position - span.begin));
            }
        }
        contents.push_back(before);
    }
}

std::vector<std::uint64_t> contents_of(const Prompt& prompt) {
    std::vector<std::uint64_t> contents;
    contents.reserve(prompt.tokens.size());
    extend_contents(contents, prompt);
    return contents;
}

// Tokens after the prompt differ from beam to beam.
std::uint64_t Live::content(std::uint32_t position, std::uint32_t beam) const {
    return beams() > 1 && position >= prompt_length() ? mixed(contents[position], beam + kPromptBeam + 1)
                                                      : contents[position];
}

PromptSource::PromptSource(Random& random, const BlockManagerConfig& config)
    : random_(random),
      tokens_per_block_(config.tokens_per_block),
      alphabet_(random.pick(std::vector<std::uint32_t>{1, 2, 3, 10, 2'000'000'000})),
      tenants_(random.one_in(2)),
      spans_(random.one_in(3)) {}

TokenId PromptSource::token() { return static_cast<TokenId>(random_.below(alphabet_)); }

void PromptSource::draw_tenant(Prompt& prompt) {
    if (!tenants_) {
        return;
    }
    prompt.lora_id = random_.one_in(3)
                         ? std::optional<std::int64_t>(random_.pick(std::vector<std::int64_t>{0, 1, -1, 1LL << 62}))
                         : std::nullopt;
    switch (random_.below(8)) {
        case 0:
            prompt.salt = std::string(1, static_cast<char>('0' + random_.below(2)));
            break;
        case 1:
            prompt.salt = std::vector<std::uint8_t>{static_cast<std::uint8_t>('0' + random_.below(2))};
            break;
        case 2:
            prompt.salt = static_cast<std::int64_t>('0' + random_.below(2));
            break;
        case 3:
            prompt.salt = std::string();
            break;
        default:
            prompt.salt = std::monostate();
    }
}

void PromptSource::add_tokens(Prompt& prompt, std::uint32_t count) {
    const auto begin = static_cast<std::uint32_t>(prompt.tokens.size());
    for (; count > 0; --count) {
        prompt.tokens.push_back(token());
    }
    add_spans(prompt, begin);
}

void PromptSource::add_spans(Prompt& prompt, std::uint32_t begin) {
    const auto end = static_cast<std::uint32_t>(prompt.tokens.size());
    while (spans_ && begin < end && random_.one_in(2)) {
        const std::uint32_t from = begin + random_.small(end - begin - 1);
        const std::uint32_t to = random_.between(from + 1, std::min(end, from + 2 * tokens_per_block_));
        prompt.spans.push_back({from, to, std::string(1, static_cast<char>('a' + random_.below(2)))});
        begin = to;
    }
}

Prompt PromptSource::prompt(std::uint32_t longest) {
    if (!remembered_.empty() && !random_.one_in(4)) {
        return variation(random_.pick(remembered_), longest);
    }
    Prompt fresh;
    draw_tenant(fresh);
    add_tokens(fresh, random_.between(1, longest));
    return fresh;
}

Prompt PromptSource::variation(const Prompt& prompt, std::uint32_t longest) {
    Prompt varied = prompt;
    const auto size = static_cast<std::uint32_t>(prompt.tokens.size());
    std::uint32_t kept = std::min(longest, random_.one_in(2) ? size : random_.between(1, size));
    if (random_.one_in(4)) {
        kept = std::max(kept - kept % tokens_per_block_, 1U);
    }
    varied.tokens.resize(kept);
    std::erase_if(varied.spans, [&](const ExtraKey& span) { return span.begin >= kept; });
    if (!varied.spans.empty()) {
        varied.spans.back().end = std::min(varied.spans.back().end, kept);
        if (random_.one_in(8)) {
            varied.spans[random_.below(varied.spans.size())].digest.assign(1, 'c');
        }
    }
    if (random_.one_in(16)) {
        draw_tenant(varied);
    }
    if (kept < longest && !random_.one_in(4)) {
        add_tokens(varied, random_.small(longest - kept));
    }
    return varied;
}

std::optional<Retention> PromptSource::retention(std::uint32_t tokens) {
    if (!random_.one_in(3)) {
        return std::nullopt;
    }
    const auto priority = [&] {
        return static_cast<Priority>(
            random_.one_in(3) ? random_.pick(std::vector<std::uint32_t>{0, 29, 30, 35, 36, 100}) : random_.below(101));
    };
    const auto duration = [&]() -> std::optional<std::uint32_t> {
        return random_.one_in(2) ? std::nullopt
                                 : std::optional(random_.pick(std::vector<std::uint32_t>{0, 1, 5, 50, ~0U}));
    };
    Retention retention{.ranges = {}, .decode_priority = priority(), .decode_duration_ms = duration()};
    for (std::uint32_t begin = random_.small(tokens); begin < tokens && !random_.one_in(4);) {
        const std::uint32_t end = random_.between(begin + 1, tokens + 2);
        const bool open = random_.one_in(4);
        retention.ranges.push_back({begin, open ? std::nullopt : std::optional(end), priority(), duration()});
        begin = open ? tokens : end + random_.small(3);
    }
    return retention;
}

void PromptSource::remember(const Prompt& prompt) {
    if (remembered_.size() < kRemembered) {
        remembered_.push_back(prompt);
    } else {
        remembered_[random_.below(kRemembered)] = prompt;
    }
}

}  // namespace kvfix::world
