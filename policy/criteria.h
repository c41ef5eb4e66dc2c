// Reads the strings that say what a rule applies to. Each function answers with the value, or
// fills in the complaint.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "policy/complaint.h"
#include "policy/rule.h"

namespace ringroad::policy {

// "192.168.100.0/24", "fd00:100::/64". Host bits must be zero. A prefix inside ::ffff:0:0/96
// becomes the IPv4 prefix that it stands for.
std::optional<Prefix> parse_subnet(std::string_view text, Complaint& complaint);

// "3306" or "4567-4568".
std::optional<PortRange> parse_ports(std::string_view text, Complaint& complaint);
std::optional<PortRange> port_from_number(std::int64_t number, Complaint& complaint);

// A pattern that a base name can match.
bool check_glob(std::string_view glob, Complaint& complaint);

// A pattern that a process' comm can match, a part of a cgroup's path that is a unit of systemd, a whole
// cgroup, and a label.
bool check_comm(std::string_view glob, Complaint& complaint);
bool check_unit(std::string_view glob, Complaint& complaint);
bool check_cgroup(std::string_view glob, Complaint& complaint);
bool check_label(std::string_view glob, Complaint& complaint);

// Rule names stand in one column of `ringroad ss` and in metric labels.
bool check_name(std::string_view name, Complaint& complaint);

// What the kernel takes as a verbs device name.
bool check_device(std::string_view device, Complaint& complaint);

}  // namespace ringroad::policy
