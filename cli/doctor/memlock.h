// Lockable memory, in bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "policy/rule.h"

namespace ringroad::cli::doctor {

constexpr std::uint64_t kUnlimited = UINT64_MAX;

// The soft limit that a text like /proc/PID/limits names; none: it does not.
std::optional<std::uint64_t> memlock_of_limits(const std::string& text);
// Whether the CapEff of a text like /proc/PID/status holds CAP_IPC_LOCK, which lifts the limit.
bool may_lock_everything(const std::string& status);
// "infinity" or a number of bytes, as systemctl shows it.
std::optional<std::uint64_t> memlock_of_unit(const std::string& value);

// What one stream of these rules locks at most: twice its ring, and 64 KiB.
std::uint64_t stream_bytes(const std::vector<const policy::Rule*>& rules);

std::string bytes_text(std::uint64_t bytes);  // "576 KiB", "unlimited"

}  // namespace ringroad::cli::doctor
