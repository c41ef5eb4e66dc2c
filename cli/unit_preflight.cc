#include "cli/unit_preflight.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "cli/doctor/unit.h"
#include "cli/preflight.h"
#include "cli/unit_preload.h"

namespace ringroad::cli {
namespace {

constexpr const char* kHelpers[] = {"ExecCondition", "ExecStartPre", "ExecStartPost",
                                    "ExecReload",    "ExecStop",     "ExecStopPost"};

// { path=/usr/sbin/mariadbd ; argv[]=/usr/sbin/mariadbd --x ; ... }; { path=... }
void add_paths(std::vector<std::string>& out, const std::string& value) {
  constexpr std::string_view kBegin = "{ path=";
  for (std::size_t at = value.find(kBegin); at != std::string::npos; at = value.find(kBegin, at)) {
    at += kBegin.size();
    const std::string path = value.substr(at, value.find(" ;", at) - at);
    if (!path.empty() && std::ranges::find(out, path) == out.end()) out.push_back(path);
  }
}

}  // namespace

UnitCommands read_unit_commands(doctor::Host& host, const std::string& name,
                                const std::string& environment_file) {
  const doctor::CommandResult result = host.run(
      {"systemctl", "show", "--no-pager", "--property",
       "LoadState,RootDirectory,Environment,ExecCondition,ExecStartPre,ExecStart,ExecStartPost,"
       "ExecReload,ExecStop,ExecStopPost,FragmentPath,DropInPaths,EnvironmentFiles",
       "--", name});
  UnitCommands commands;
  if (!result) {
    commands.problem = "systemctl show " + name + ": " + result.problem();
    return commands;
  }
  const doctor::Unit unit = doctor::parse_unit(result.out);
  if (unit["LoadState"] != "loaded") {
    commands.problem = "there is no such unit";
    return commands;
  }
  if (!unit["RootDirectory"].empty()) commands.root = unit["RootDirectory"];
  commands.preload = read_unit_preload(host, unit, environment_file);
  // Of a unit whose files cannot be read.
  if (commands.preload.value.empty()) find_preload(unit["Environment"], commands.preload.value);
  add_paths(commands.main, unit["ExecStart"]);
  for (const char* property : kHelpers) add_paths(commands.helpers, unit[property]);
  return commands;
}

UnitVerdict judge_unit(const std::string& name, const UnitCommands& commands,
                       const std::string& library) {
  const Root root(commands.root);
  const auto without = [&](const ProgramFacts& facts) {
    return UnitVerdict{true, name + " is started without the library, on TCP: " + facts.file + " " +
                                 reason_of(facts) + "; what helps: " + remedy_of(facts)};
  };
  std::string seen;
  for (const std::string& program : commands.main) {
    const ProgramFacts facts = inspect_program(program, root, library);
    if (obstacle_of(facts) != Obstacle::kNone) return without(facts);
    const std::string versions = versions_of(facts);
    if (facts.error != 0) {
      seen = program + ": " + strerrordesc_np(facts.error);
    } else {
      seen = facts.file + (versions.empty() ? "" : ", " + versions);
    }
  }
  for (const std::string& program : commands.helpers) {
    const ProgramFacts facts = inspect_program(program, root, library);
    // What the others do to a helper does not keep the service from its start.
    if (ends_program(obstacle_of(facts))) return without(facts);
  }
  const std::string others = without_library(commands.preload.value, library);
  return {false, name + " is preloaded" + (others.empty() ? "" : " besides " + others) +
                     (seen.empty() ? "" : ": " + seen)};
}

std::string without_library(const std::string& preload, const std::string& library, bool* had_it) {
  std::string result;
  for (std::size_t begin = 0; begin < preload.size();) {
    const std::size_t end = std::min(preload.find_first_of(": ", begin), preload.size());
    const std::string entry = preload.substr(begin, end - begin);
    begin = end + 1;
    const bool is_library = entry == library || doctor::last_part(entry) == "libringroad.so";
    if (is_library && had_it != nullptr) *had_it = true;
    if (entry.empty() || is_library) continue;
    result += (result.empty() ? "" : ":") + entry;
  }
  return result;
}

bool write_environment_file(const std::string& path, const UnitCommands& commands,
                            const UnitVerdict& verdict, const std::string& library,
                            std::string& why) {
  bool has_library = false;
  const std::string others = without_library(commands.preload.value, library, &has_library);
  const bool is_added = !verdict.left_out && !others.empty() && !commands.preload.stays && !has_library;
  if (!verdict.left_out && !is_added) {
    if (unlink(path.c_str()) == 0 || errno == ENOENT) return true;
    why = path + ": " + strerrordesc_np(errno);
    return false;
  }
  const std::string folder = path.substr(0, path.rfind('/'));
  if (!folder.empty() && folder != path) mkdir(folder.c_str(), 0755);
  // Under another name first: systemd never reads half of it.
  const std::string draft = path + ".new";
  const std::string text = "LD_PRELOAD=\"" + others + (is_added ? ":" + library : "") + "\"\n";
  const int fd = open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
  const bool written =
      fd >= 0 && write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (fd >= 0) close(fd);
  if (written && rename(draft.c_str(), path.c_str()) == 0) return true;
  why = path + ": " + strerrordesc_np(errno);
  return false;
}

}  // namespace ringroad::cli
