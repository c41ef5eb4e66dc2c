// Reads the values that say how a rule carries its connections.
//
// Each function reports what is wrong with its value and then answers without one.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "policy/document.h"
#include "policy/report.h"
#include "policy/settings.h"

namespace ringroad::policy {

// Whether the value is a string; `example` is the statement as it should be.
bool expect_string(const Value& value, std::string_view key, const std::string& example,
                   Report& report);

std::optional<std::uint8_t> read_traffic_class(const Value& value, Report& report);
std::optional<std::uint32_t> read_ring(const Value& value, Report& report);
std::optional<std::chrono::nanoseconds> read_spin(const Value& value, Report& report);
std::optional<std::chrono::nanoseconds> read_wait(const Value& value, Report& report);
std::optional<std::chrono::nanoseconds> read_idle(const Value& value, Report& report);
std::optional<std::chrono::nanoseconds> read_detect(const Value& value, Report& report);
PromoteAfter read_promote_after(const Value& value, Report& report);

}  // namespace ringroad::policy
