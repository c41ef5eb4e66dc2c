// The checks, by name.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cli/doctor/context.h"
#include "cli/doctor/finding.h"

namespace ringroad::cli::doctor {

struct Check {
  const char* name;
  const char* group;
  const char* looks_at;  // for --list
  void (*run)(Context&, Findings&);
};

// In the order in which they are shown; checks of a group stand together.
std::span<const Check> all_checks() noexcept;

// Runs those that are named, or all. One that throws leaves `unknown` behind, and the others run.
std::vector<Finding> run_checks(Context& context, const std::vector<std::string>& only);
std::vector<Finding> run_checks(Context& context, std::span<const Check> checks,
                                const std::vector<std::string>& only);

// The route to one address, and the GID that packets for it have. `partly`: other networks of the
// path's subnet are reached by RDMA.
void judge_route(Context& context, Findings& findings, const Path& path, bool partly);
void judge_gid(Context& context, Findings& findings, const Path& path);

void check_policy(Context&, Findings&);
void check_device(Context&, Findings&);
void check_modules(Context&, Findings&);
void check_access(Context&, Findings&);
void check_library(Context&, Findings&);
void check_iommu(Context&, Findings&);
void check_pcie(Context&, Findings&);
void check_port(Context&, Findings&);
void check_speed(Context&, Findings&);
void check_mtu(Context&, Findings&);
void check_route(Context&, Findings&);
void check_gid(Context&, Findings&);
void check_traffic_class(Context&, Findings&);
void check_trust(Context&, Findings&);
void check_pfc(Context&, Findings&);
void check_ecn(Context&, Findings&);
void check_firewall(Context&, Findings&);
void check_listener(Context&, Findings&);
void check_memlock(Context&, Findings&);
void check_huge_pages(Context&, Findings&);
void check_fork(Context&, Findings&);
void check_numa(Context&, Findings&);
void check_interrupts(Context&, Findings&);
void check_governor(Context&, Findings&);
void check_tuned(Context&, Findings&);
void check_program(Context&, Findings&);
void check_process(Context&, Findings&);
void check_unit(Context&, Findings&);
void check_apparmor(Context&, Findings&);
void check_selinux(Context&, Findings&);
void check_counters(Context&, Findings&);

}  // namespace ringroad::cli::doctor
