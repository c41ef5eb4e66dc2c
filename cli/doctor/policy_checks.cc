// The policy itself.

#include "cli/doctor/check.h"

namespace ringroad::cli::doctor {

void check_policy(Context& context, Findings& findings) {
  constexpr const char* kAllTcp = "everything stays on TCP";
  const policy::LoadResult& loaded = context.loaded();
  for (const policy::Error& error : loaded.errors) {
    findings.fail(error.file, to_string(error), std::string(kAllTcp) + ": it is refused whole",
                  error.remedy.empty() ? "ringroad policy check" : error.remedy);
  }
  if (!loaded) {
    if (loaded.errors.empty()) findings.fail("", "out of memory", kAllTcp, "");
    return;
  }
  for (const policy::Error& warning : loaded.policy->warnings()) {
    findings.warn(warning.file, to_string(warning, "warning"),
                  "the policy may not do what is meant",
                  warning.remedy.empty() ? "ringroad policy check" : warning.remedy);
  }
  const std::vector<const policy::Rule*> rules = context.rdma_rules();
  for (const policy::Rule* rule : rules) {
    const std::string& device = rule->settings.device;
    bool found = device.empty();
    for (const RdmaDevice& there : context.devices()) found = found || there.name == device;
    if (!found) {
      findings.fail("rule " + rule->settings.name, "there is no device " + device,
                    "its streams stay on TCP (no_rdma_device)",
                    "in " + rule->settings.file + ":" + std::to_string(rule->settings.line) +
                        ": leave device out, or name one that rdma link show lists");
    }
  }
  const std::size_t count = loaded.policy->rule_count();
  if (count == 0) {
    findings.warn("", loaded.policy->sources().empty() ? "there is no policy" : "it has no rule",
                  kAllTcp,
                  "write /etc/ringroad/policy.toml (man ringroad-policy), or name one with "
                  "--policy");
  } else if (rules.empty()) {
    findings.warn("", "no rule says via = \"rdma\" or \"auto\"", "nothing runs over RDMA",
                  "ringroad policy check");
  } else {
    findings.ok("", std::to_string(count) + (count == 1 ? " rule, " : " rules, ") +
                        std::to_string(rules.size()) + " of them for RDMA, in " +
                        joined(loaded.policy->sources()));
  }
}

}  // namespace ringroad::cli::doctor
