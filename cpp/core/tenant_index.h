// The identities of a tree's roots by what they are made of, so that all of one adapter or one salt is found without a look at
// the others. Ordered: nobody can make it slow by what he calls himself.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/request.h"

namespace kvfix {

class TenantIndex {
  public:
    void add(const std::string& identity) {
        auto [lora, salt] = split_identity(identity);
        by_salt_.emplace(salt, lora);
        by_lora_.emplace(std::move(lora), std::move(salt));
    }
    void remove(const std::string& identity) {
        auto [lora, salt] = split_identity(identity);
        by_salt_.erase({salt, lora});
        by_lora_.erase({std::move(lora), std::move(salt)});
    }
    // Serialised, ascending. Of an adapter whatever the salt where none is given, and the other way round.
    std::vector<std::string> find(std::optional<std::int64_t> lora_id, const Salt& salt) const {
        const std::string lora = serialise_identity(lora_id, {});
        const std::string salted = serialise_identity(std::nullopt, salt);
        std::vector<std::string> out;
        if (lora_id && !salted.empty()) {
            if (by_lora_.contains({lora, salted})) {
                out.push_back(lora + salted);
            }
        } else if (lora_id) {
            for (auto at = by_lora_.lower_bound({lora, ""}); at != by_lora_.end() && at->first == lora; ++at) {
                out.push_back(at->first + at->second);
            }
        } else {
            for (auto at = by_salt_.lower_bound({salted, ""}); at != by_salt_.end() && at->first == salted; ++at) {
                out.push_back(at->second + at->first);
            }
        }
        return out;
    }

  private:
    std::set<std::pair<std::string, std::string>> by_lora_;  // and then by salt
    std::set<std::pair<std::string, std::string>> by_salt_;  // and then by LoRA adapter
};

}  // namespace kvfix
