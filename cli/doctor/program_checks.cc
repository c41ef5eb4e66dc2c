// What is to be preloaded.

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "cli/doctor/check.h"
#include "cli/doctor/unit.h"

namespace ringroad::cli::doctor {
namespace {

constexpr const char* kOnTcp = "it runs on TCP: the library is never in it";

// The program in question, and the root below which its loader looks; no name: it is not known.
ProgramPlace place_of_program(Context& context) {
  const Questions& about = context.about();
  ProgramPlace place;
  place.library = about.library;
  place.name = about.program;
  if (place.name.empty() && !about.unit.empty()) {
    const Unit unit = read_unit(context.host(), about.unit);
    place.name = unit.program();
    if (!unit["RootDirectory"].empty()) place.root = unit["RootDirectory"];
  }
  if (place.name.empty() && about.pid != 0) {
    const std::string folder = "/proc/" + std::to_string(about.pid);
    place.name = context.host().link(folder + "/exe").text;
    place.root = folder + "/root";
    // A chroot of this very mount namespace is part of both names.
    const std::string outside = context.host().link(place.root).text;
    if (outside.size() > 1 && place.name.starts_with(outside + "/")) {
      place.name.erase(0, outside.size());
    }
  }
  return place;
}

}  // namespace

void check_program(Context& context, Findings& findings) {
  const ProgramPlace place = place_of_program(context);
  const std::string& path = place.name;
  if (path.empty() && context.about().pid != 0) {
    const std::string process = std::to_string(context.about().pid);
    if (context.host().link("/proc/" + process + "/exe").error == EACCES) {
      findings.unknown("process " + process, std::string("exe: ") + strerrordesc_np(EACCES),
                       "whether its program can be preloaded", "run this as root");
    }
  }
  if (path.empty()) return;
  const ProgramFacts facts = context.host().program(place);
  if (facts.error != 0) {
    findings.unknown(path, strerrordesc_np(facts.error), "whether it can be preloaded",
                     facts.error == EACCES && place.root != "/"
                         ? "run this as root"
                         : "name the program's file with --program");
    return;
  }
  std::string why;
  const std::optional<User> user = context.user(why);
  const std::string file = facts.file == path ? "" : facts.file + ": ";
  const bool other_user = facts.set_user && (!user || facts.owner != user->real_uid);
  const Obstacle obstacle = obstacle_of(facts);
  const std::string versions = versions_of(facts);
  if (!facts.is_elf) {
    findings.unknown(path, file + "no ELF file", "whether it can be preloaded", "");
  } else if (facts.own_machine && facts.go) {
    findings.fail(path, file + "a Go program" + (facts.loader.empty() ? ", linked statically" : ""),
                  "its connections stay on TCP: Go makes its system calls without libc",
                  "nothing: leave it on TCP");
  } else if (obstacle != Obstacle::kNone) {
    findings.fail(path, file + reason_of(facts),
                  ends_program(obstacle)
                      ? "with the library in LD_PRELOAD the loader ends it before it starts; "
                        "ringroad run leaves it out"
                      : kOnTcp,
                  remedy_of(facts));
  } else if (other_user || facts.set_group || facts.capabilities) {
    findings.fail(path,
                  file + (facts.capabilities ? "has file capabilities" : "is setuid or setgid"),
                  "the loader drops the preloaded library: " + std::string(kOnTcp),
                  facts.capabilities
                      ? "setcap -r " + facts.file + "; give them in the unit: AmbientCapabilities="
                      : "start it as the user that it changes to");
  } else {
    findings.ok(path, file + "linked dynamically, loader " + facts.loader +
                          (versions.empty() ? "" : "; " + versions));
  }
}

void check_process(Context& context, Findings& findings) {
  const pid_t pid = context.about().pid;
  if (pid == 0) return;
  Host& host = context.host();
  const std::string folder = "/proc/" + std::to_string(pid);
  const std::string name = host.text(folder + "/comm");
  const std::string subject = std::to_string(pid) + (name.empty() ? "" : " " + name);
  const FileText maps = host.read(folder + "/maps");
  if (!maps) {
    findings.add(maps.error == ENOENT ? Level::kFail : Level::kUnknown, subject,
                 folder + "/maps: " + strerrordesc_np(maps.error), "whether it is preloaded",
                 maps.error == ENOENT ? "ps -p " + std::to_string(pid) : "run this as root");
    return;
  }
  const bool gone = maps.text.find("libringroad.so (deleted)") != std::string::npos;
  if (maps.text.find("/libringroad.so") == std::string::npos) {
    findings.fail(subject, "libringroad.so is not mapped in it", "its connections stay on TCP",
                  "start it with ringroad run, or with LD_PRELOAD in its unit, and see the check "
                  "program");
  } else if (gone) {
    findings.warn(subject, "the libringroad.so that it has was replaced on disk",
                  "it may speak another version than what is installed (version)", "restart it");
  } else {
    findings.ok(subject, "libringroad.so is mapped in it");
  }
}

}  // namespace ringroad::cli::doctor
