// Sizes ("256KiB") and durations ("20us"), as the policy file writes them.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "policy/complaint.h"

namespace ringroad::policy {

// A whole number and B, KiB, MiB or GiB; at most 2^62 bytes. On failure fills in the complaint.
std::optional<std::uint64_t> parse_size(std::string_view text, Complaint& complaint);

// A whole number and ns, us, ms or s; at most 2^62 nanoseconds.
std::optional<std::chrono::nanoseconds> parse_duration(std::string_view text, Complaint& complaint);

// The shortest exact spelling that the parsers above accept.
std::string format_size(std::uint64_t bytes);
std::string format_duration(std::chrono::nanoseconds duration);

}  // namespace ringroad::policy
