// The AppArmor profile that confines a program.

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "cli/doctor/check.h"
#include "cli/doctor/unit.h"
#include "cli/library_file.h"

namespace ringroad::cli::doctor {
namespace {

constexpr const char* kProfiles = "/sys/kernel/security/apparmor/profiles";

// A rule of packaging/apparmor/ringroad.in, and texts of which a profile that has it holds one.
struct ProfileRule {
  const char* rule;
  std::array<const char*, 3> texts;
};

constexpr ProfileRule kProfileRules[] = {
    {"/etc/ringroad/** r,", {"/etc/ringroad/", "/etc/** r", "/etc/** mr"}},
    {"/dev/shm/ringroad/** rw,", {"/dev/shm/ringroad/", "/dev/shm/** rw", "/dev/shm/** mrw"}},
    {"network unix seqpacket,", {"unix seqpacket", "network unix,", "network,"}},
    {"network netlink,", {"netlink dgram", "network netlink,", "network,"}},
    {"/dev/infiniband/* rw,", {"/dev/infiniband/", "/dev/** rw", "/dev/** mrw"}},
};

// The rules of a profile without its comments, of which an #include is none.
std::string without_comments(const std::string& text) {
  std::string rules;
  for (const std::string& line : split(text, "\n")) {
    const std::string rule = trimmed(line);
    if (!rule.starts_with('#') || rule.starts_with("#include")) rules += rule + "\n";
  }
  return rules;
}

bool has_text(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

bool includes_all(const std::string& rules) {
  return has_text(rules, "apparmor/ringroad\"") || has_text(rules, "abstractions/ringroad>");
}

// The line of `profiles` that is the program's, which its path or its last part names.
std::string profile_of(const std::string& profiles, const std::string& program) {
  for (const std::string& line : split(profiles, "\n")) {
    const std::string name = line.substr(0, line.rfind(" ("));
    if (name == program || name == last_part(program)) return line;
  }
  return {};
}

std::string rules_it_lacks(const std::string& rules) {
  std::string looked_at;
  const std::string library = find_library(looked_at);
  std::string missing;
  // abstractions/base allows what stands below /usr/lib.
  const bool by_base = library.starts_with("/usr/lib") && has_text(rules, "abstractions/base");
  if (!library.empty() && !by_base && !has_text(rules, "libringroad")) missing = library + " mr, ";
  for (const ProfileRule& wanted : kProfileRules) {
    bool there = false;
    for (const char* text : wanted.texts) there |= has_text(rules, text);
    if (!there) missing += std::string(wanted.rule) + " ";
  }
  return trimmed(missing);
}

void judge_profile(Context& context, Findings& findings, const std::string& subject,
                   const std::string& profile) {
  if (profile.empty() || profile == "unconfined" || has_text(profile, "(complain)") ||
      has_text(profile, "(unconfined)")) {
    findings.ok(subject, profile.empty() ? "no profile" : profile);
    return;
  }
  std::string file = profile.substr(0, profile.rfind(" ("));
  for (char& c : file) c = c == '/' ? '.' : c;
  if (file.starts_with('.')) file.erase(0, 1);
  const std::string folder = "/etc/apparmor.d/";
  const std::string rules = without_comments(context.host().text(folder + file) + "\n" +
                                             context.host().text(folder + "local/" + file));
  const std::string missing = includes_all(rules) ? "" : rules_it_lacks(rules);
  if (missing.empty()) {
    findings.ok(subject, "profile " + profile + " has the rules of the library");
    return;
  }
  findings.warn(subject, "profile " + profile + ", and " + folder + file + " lacks " + missing,
                "the library, its peers or the devices are refused: streams stay on TCP",
                "into " + folder + "local/" + file + ", then apparmor_parser -r " + folder + file +
                    ":\ninclude \"" + share_file("apparmor/ringroad") + "\"");
}

}  // namespace

void check_apparmor(Context& context, Findings& findings) {
  Host& host = context.host();
  const Questions& about = context.about();
  if (host.text("/sys/module/apparmor/parameters/enabled") != "Y") {
    findings.ok("", "no AppArmor");
    return;
  }
  if (about.pid != 0) {
    const std::string process = "process " + std::to_string(about.pid);
    const FileText current = host.read("/proc/" + std::to_string(about.pid) + "/attr/current");
    if (current) {
      judge_profile(context, findings, process, current.text);
    } else {
      findings.unknown(process, std::string("attr/current: ") + strerrordesc_np(current.error),
                       "its profile", "run this as root");
    }
  }
  std::string program = about.program;
  if (program.empty() && !about.unit.empty()) program = read_unit(host, about.unit).program();
  if (program.empty()) {
    if (about.pid == 0) findings.ok("", "AppArmor is on; name --pid, --unit or --program");
    return;
  }
  const FileText profiles = host.read(kProfiles);
  if (profiles) {
    judge_profile(context, findings, program, profile_of(profiles.text, program));
  } else {
    findings.unknown(program, std::string(kProfiles) + ": " + strerrordesc_np(profiles.error),
                     "whether a profile confines it", "run this as root");
  }
}

}  // namespace ringroad::cli::doctor
