// Reads what a policy says about the process as a whole: the keys above the first rule.
#pragma once

#include <span>
#include <string_view>

#include "policy/document.h"
#include "policy/report.h"
#include "policy/settings.h"

namespace ringroad::policy {

// The keys that read_process_key() knows.
std::span<const std::string_view> process_keys() noexcept;

bool is_process_key(std::string_view key) noexcept;

// Puts the entry's value into `limits`, or complains. False: it is no such key.
bool read_process_key(const Entry& entry, Report& report, Limits& limits);

}  // namespace ringroad::policy
