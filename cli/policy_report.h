// What `ringroad policy` prints of policies and their decisions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/process_identity.h"
#include "policy/policy.h"

namespace ringroad::cli {

std::string plural(std::size_t count, const std::string& noun);
void print(const nlohmann::ordered_json& json);

nlohmann::ordered_json to_json(const std::vector<policy::Error>& errors);
nlohmann::ordered_json to_json(const policy::Settings& rule);
nlohmann::ordered_json to_json(const policy::Explanation& explanation);
nlohmann::ordered_json to_json(const std::vector<policy::Consideration>& considered);
nlohmann::ordered_json to_json(const ProcessIdentity& process, const policy::Policy& policy);

// Why every connection of the process stays on TCP, whatever its policy says; "" where nothing says so.
std::string why_left_alone(const ProcessIdentity& process);

void print_process(pid_t pid, const ProcessIdentity& process, const policy::Policy& policy);
void print_explanation(const policy::Explanation& explanation);
// For a process whose connection is not given.
void print_rules_for_process(const std::vector<policy::Consideration>& considered);
// What print_explanation() and print_rules_for_process() end with, for a process that is left alone.
void print_left_alone(const std::string& why);

}  // namespace ringroad::cli
