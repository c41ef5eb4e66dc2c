// What must hold for any bytes in the place of a policy file.
#pragma once

#include <string>
#include <string_view>

#include "policy/policy.h"

namespace ringroad::policy {

// Empty, or what is wrong.
inline std::string complaint_about(std::string_view text) {
  const LoadResult loaded = Policy::load_text(text, "fuzz.toml");
  if (loaded) {
    if (!loaded.errors.empty()) {
      return "a valid policy with errors";
    }
    Process process("mariadbd");
    process.comm = "mariadbd";
    process.cgroup = "/system.slice/mariadb.service";
    process.labels = "app=mysql";
    const Endpoint local{*Address::parse("10.9.0.1"), 3306};
    for (const char* remote_text : {"10.9.1.1", "fd00::1"}) {
      const Endpoint remote{*Address::parse(remote_text), 4567};
      for (const Role role : {Role::kConnect, Role::kAccept}) {
        const Settings* settings = loaded.policy->match(role, process, local, remote);
        if (loaded.policy->explain(role, process, local, remote).decision != settings) {
          return "match and explain disagree";
        }
      }
    }
    for (std::size_t i = 0; i < loaded.policy->rule_count(); ++i) {
      const Settings& rule = loaded.policy->rule(i);
      const bool sound =
          !rule.name.empty() && rule.line >= 1 && rule.index == i &&
          rule.ring_bytes >= kSmallestRingBytes && rule.ring_bytes <= kLargestRingBytes &&
          (rule.ring_bytes & (rule.ring_bytes - 1)) == 0 && rule.spin.count() >= 0 &&
          rule.spin <= kLongestSpin && rule.wait.count() >= 0 && rule.wait <= kLongestWait &&
          (rule.promote_after.messages || rule.promote_after.bytes);
      if (!sound) {
        return "a rule with impossible settings";
      }
    }
    loaded.policy->warnings();
    return {};
  }
  if (loaded.errors.empty()) {
    return "refused without an error";
  }
  for (const Error& error : loaded.errors) {
    const bool whole_file = text.size() > Policy::kLargestFileBytes;
    if (error.file != "fuzz.toml" || error.message.empty() ||
        (!whole_file && (error.line < 1 || error.column < 1))) {
      return "an error without file, line, column or message: " + to_string(error);
    }
    // An error is a line of a log.
    const std::string line = to_string(error);
    for (std::size_t i = 0; i < line.size(); ++i) {
      const auto byte = static_cast<unsigned char>(line[i]);
      const bool c1 = byte == 0xc2 && static_cast<unsigned char>(line[i + 1]) < 0xa0;
      if (byte < 0x20 || byte == 0x7f || c1) {
        return "a control character in an error: " + line;
      }
    }
    if (line.size() > 1000) {
      return "an error that is not one line: " + line;
    }
  }
  return {};
}

}  // namespace ringroad::policy
