// What a rule may ask of a process: facts that are read once, and do not change for the policy.
//
// Only refers to the texts that it is made of: they outlive it.
#pragma once

#include <string>
#include <string_view>

#include "policy/program.h"

namespace ringroad::policy {

struct Process {
  constexpr Process(const Program& names) noexcept : program(names) {}
  constexpr Process(std::string_view name) noexcept : program(name) {}
  constexpr Process(const char* name) noexcept : program(name) {}
  Process(const std::string& name) noexcept : program(name) {}

  Program program;
  // Each is "" where it is not known; no rule that asks for it matches then.
  std::string_view comm = {};    // the name of the first thread, /proc/PID/comm
  std::string_view cgroup = {};  // "/system.slice/mariadb.service"
  std::string_view labels = {};  // the value of RINGROAD_LABELS: words between commas or blanks
};

// The process' cgroup, of the text of /proc/PID/cgroup: that of version 2, or of systemd's own hierarchy
// where the former says nothing. "" where no whole line names one.
std::string_view cgroup_of(std::string_view proc_cgroup) noexcept;

// The first part of `text` up to one of `separators`, which `text` loses with what is before it. Empty parts
// are passed over; "" at the end.
std::string_view take_part(std::string_view& text, std::string_view separators) noexcept;

// What separates two labels.
inline constexpr std::string_view kLabelSeparators = ", \t\n";

}  // namespace ringroad::policy
