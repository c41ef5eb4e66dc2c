// What systemd's sandboxing takes from a service that Ringroad needs.

#include <fnmatch.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "cli/doctor/check.h"
#include "cli/doctor/running_preload.h"
#include "cli/doctor/unit.h"
#include "cli/library_file.h"
#include "cli/unit_preload.h"

namespace ringroad::cli::doctor {
namespace {

constexpr const char* kNoDevice = "its RDMA streams stay on TCP (no_rdma_device)";

class Judge {
 public:
  Judge(Findings& findings, std::string unit) : findings_(findings), unit_(std::move(unit)) {}

  // `lines`: what stands below [Service] in a drop-in.
  void fail(const std::string& evidence, const std::string& consequence, const std::string& lines) {
    ++count_;
    findings_.fail(unit_, evidence, consequence, drop_in(lines));
  }
  void warn(const std::string& evidence, const std::string& consequence, const std::string& lines) {
    ++count_;
    findings_.warn(unit_, evidence, consequence, drop_in(lines));
  }
  void fail_with(const std::string& evidence, const std::string& consequence, const std::string& remedy) {
    ++count_;
    findings_.fail(unit_, evidence, consequence, remedy);
  }
  bool clean() const noexcept { return count_ == 0; }

 private:
  std::string drop_in(const std::string& lines) const {
    return "systemctl edit " + unit_ + "; systemctl restart " + unit_ + "\n[Service]\n" + lines;
  }

  Findings& findings_;
  const std::string unit_;
  unsigned count_ = 0;
};

constexpr const char* kDevices =
    "DeviceAllow=char-infiniband_verbs rw\nDeviceAllow=char-infiniband_cm rw\n"
    "DeviceAllow=/dev/infiniband/rdma_cm rw";

bool reads_and_writes(const std::vector<std::string>& entry) {
  // Without a word for it: all of it.
  return entry.size() < 2 ||
         (entry[1].find('r') != std::string::npos && entry[1].find('w') != std::string::npos);
}

// Whether DeviceAllow= lets it read and write a node: by the node's path, or by a glob for its
// kind as /proc/devices names it. systemd knows no globs of paths (systemd.resource-control(5)),
// and rdma_cm is of the kind misc: infiniband_cm was the one of /dev/infiniband/ucm*.
bool grants(const std::string& allowed, const std::string& node, const char* kind) {
  for (const std::string& text : split(allowed, ";")) {
    const std::vector<std::string> entry = split(text);
    if (entry.empty() || !reads_and_writes(entry)) continue;
    const std::string& name = entry.front();
    if (name == node) return true;
    if (name.starts_with("char-") && fnmatch(name.c_str() + 5, kind, 0) == 0) return true;
  }
  return false;
}

// Where it is not known which nodes there are.
bool grants_some_verbs(const std::string& allowed) {
  constexpr std::string_view kNode = "/dev/infiniband/uverbs";
  for (const std::string& text : split(allowed, ";")) {
    const std::vector<std::string> entry = split(text);
    if (entry.empty() || !entry.front().starts_with(kNode)) continue;
    if (to_number(entry.front().substr(kNode.size())) && reads_and_writes(entry)) return true;
  }
  return grants(allowed, std::string(kNode), "infiniband_verbs");
}

// `nodes`: the host's /dev/infiniband/uverbsN, as far as they are known.
void judge_devices(const Unit& unit, const std::vector<std::string>& nodes, Judge& judge) {
  const bool is_private = unit["PrivateDevices"] == "yes";
  if (is_private) {
    judge.fail("PrivateDevices=yes: it has no /dev/infiniband", kNoDevice,
               "PrivateDevices=no\n" + std::string(kDevices));
  }
  const std::string policy = unit["DevicePolicy"];
  const std::string allowed = unit["DeviceAllow"];
  // With `auto`, everything is allowed unless something is named.
  const bool closed =
      policy == "closed" || policy == "strict" || (policy == "auto" && !allowed.empty());
  if (!closed || is_private) return;
  const bool cm = grants(allowed, "/dev/infiniband/rdma_cm", "misc");
  std::vector<std::string> refused;
  for (const std::string& node : nodes) {
    if (!grants(allowed, node, "infiniband_verbs")) refused.push_back(node);
  }
  if (nodes.empty() && !grants_some_verbs(allowed)) refused.emplace_back("/dev/infiniband/uverbs*");
  const bool no_verbs = !refused.empty() && refused.size() >= nodes.size();
  const std::string shown = allowed.empty() ? "DevicePolicy=" + policy
                                            : "DevicePolicy=" + policy + ", DeviceAllow=" + allowed;
  if (no_verbs && !cm) {
    judge.fail(shown + ": no access to /dev/infiniband", kNoDevice, kDevices);
  } else if (no_verbs) {
    judge.fail(shown + ": no access to " + joined(refused), kNoDevice,
               "DeviceAllow=char-infiniband_verbs rw");
  } else if (!cm) {
    judge.fail(shown + ": no access to /dev/infiniband/rdma_cm", kNoDevice,
               "DeviceAllow=/dev/infiniband/rdma_cm rw");
  } else if (!refused.empty()) {
    judge.warn(shown + ": no access to " + joined(refused),
               "streams of these devices stay on TCP (no_rdma_device)",
               "DeviceAllow=char-infiniband_verbs rw");
  }
}

void judge_families(const Unit& unit, Judge& judge) {
  const std::string value = unit["RestrictAddressFamilies"];
  if (value.empty() || value == "none") return;
  const bool denies = value.starts_with('~');
  const std::vector<std::string> listed = split(denies ? value.substr(1) : value);
  std::vector<std::string> missing;
  for (const char* family : {"AF_NETLINK", "AF_UNIX"}) {
    if (contains(listed, family) == denies) missing.emplace_back(family);
  }
  if (missing.empty()) return;
  const std::string evidence =
      "RestrictAddressFamilies=" + value + " keeps " + joined(missing) + " from it";
  const std::string lines =
      "RestrictAddressFamilies=" + (denies ? std::string() : value + " " + joined(missing, " ")) +
      (denies ? "\nRestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK" : "");
  if (missing.front() == "AF_NETLINK") {
    judge.fail(evidence, "libibverbs finds no devices: " + std::string(kNoDevice), lines);
  } else {
    judge.warn(evidence, "streams within this host do not run over shared memory", lines);
  }
}

void judge_environment(const Unit& unit, Judge& judge, const std::string& library) {
  const std::string environment = unit["Environment"];
  const std::string start = unit["ExecStart"];
  if (environment.find("libringroad.so") != std::string::npos ||
      start.find("ringroad run") != std::string::npos) {
    return;
  }
  judge.warn("neither LD_PRELOAD in its Environment= nor ringroad run in its ExecStart=",
             "it is not preloaded: everything stays on TCP",
             "Environment=LD_PRELOAD=" + library + "\nEnvironment=RINGROAD_LOG=syslog");
}

// Which file has the last word on LD_PRELOAD; "": none says anything.
std::string last_word(Host& host, const std::string& name) {
  const CommandResult shown = host.run({"systemctl", "show", "--no-pager", "--property",
                                        "FragmentPath,DropInPaths,EnvironmentFiles", "--", name});
  return shown ? read_unit_preload(host, parse_unit(shown.out), "").from : "";
}

// What its main process has, whatever the unit says.
void judge_running(Host& host, const std::string& name, const Unit& unit, Findings& findings, Judge& judge) {
  const std::string pid = unit["MainPID"];
  if (pid.empty() || pid == "0") return;
  const RunningPreload preload = read_running_preload(host, "/proc/" + pid);
  const std::string process = "process " + pid;
  const std::string evidence = process + " preloads " + preload.text();
  if (preload.error != 0) {
    findings.unknown(name, process + ": " + strerrordesc_np(preload.error), "which preloads have won",
                     preload.error == ENOENT ? "ask again: it has ended, or an older record lacks it"
                                             : "run this as root");
  } else if (preload.is_loaded) {
    findings.ok(name, evidence);
  } else if (preload.is_named) {
    judge.fail_with(evidence, "it runs on TCP: the loader or the program has dropped the library",
                    "ringroad run --check --unit " + name + " tells why; then systemctl restart " + name);
  } else if (unit["Environment"].find("libringroad.so") != std::string::npos) {
    const std::string file = last_word(host, name);
    judge.fail_with(evidence + ", not the library of its Environment=" +
                        (file.empty() ? "" : "; the last word has " + file),
                    "it runs on TCP",
                    (file.empty() ? "" : "systemctl enable ringroad@" + name + ", which adds the library; ") +
                        "systemctl restart " + name);
  }
}

// The value of a malloc-lib option, the last one of the text; "": there is none.
std::string malloc_library(const std::string& options) {
  std::string value;
  for (const std::string& word : split(options)) {
    for (const std::string_view name : {"--malloc-lib=", "--malloc_lib="}) {
      if (word.starts_with(name)) value = word.substr(name.size());
    }
  }
  return value;
}

// MySQL's mysqld_safe puts malloc-lib in front of LD_PRELOAD, and ends where no folder of its list has that.
void judge_wrapper(Host& host, const Unit& unit, const std::string& library, Judge& judge) {
  constexpr std::string_view kList = "malloc_dirs=\"";
  const std::string wrapper = unit.program();
  if (!wrapper.ends_with("_safe") && !wrapper.ends_with("-safe")) return;
  const std::string script = host.text(wrapper);
  const std::size_t list = script.find(kList);
  if (list == std::string::npos) return;  // MariaDB's has none
  const std::size_t begin = list + kList.size();
  const std::string allowed = script.substr(begin, script.find('"', begin) - begin);
  std::string value = malloc_library(unit["ExecStart"]);
  if (value.empty()) value = malloc_library(host.run({"my_print_defaults", "mysqld_safe"}).out);
  if (!value.starts_with('/') || contains(split(allowed), value.substr(0, value.rfind('/')))) return;
  const bool is_ours = last_part(value) == "libringroad.so";
  judge.fail_with(wrapper + ": malloc-lib=" + value + " is in none of the folders that it allows: " + allowed,
                  "it ends, and the server does not start",
                  "take malloc-lib out of its options; systemctl edit: Environment=LD_PRELOAD=" +
                      (is_ours ? value : value + ":" + library));
}

void judge_rest(const Unit& unit, Judge& judge) {
  if (unit["PrivateNetwork"] == "yes") {
    judge.fail("PrivateNetwork=yes", "it has no network but its own loopback, and no RDMA device",
               "PrivateNetwork=no");
  }
  if (!unit["RootDirectory"].empty() && unit["RootDirectory"] != "/") {
    judge.warn(
        "RootDirectory=" + unit["RootDirectory"],
        "library, policy, /dev/infiniband and /dev/shm must be in there too",
        "BindReadOnlyPaths=/etc/ringroad /usr/local/lib\nBindPaths=/dev/infiniband /dev/shm");
  }
  const std::string environment = unit["Environment"];
  const bool home = environment.find("=/home/") != std::string::npos ||
                    environment.find("=/root/") != std::string::npos;
  const std::string protect = unit["ProtectHome"];
  if (home && !protect.empty() && protect != "no") {
    judge.fail("ProtectHome=" + protect + ", and its Environment= names files below /home or /root",
               "the loader does not find the library or the policy: everything stays on TCP",
               "ProtectHome=no");
  }
  for (const char* property : {"InaccessiblePaths", "TemporaryFileSystem"}) {
    const std::string paths = unit[property];
    if (paths.find("/dev") == std::string::npos) continue;
    judge.warn(std::string(property) + "=" + paths,
               "the devices, or the statistics below /dev/shm, may be hidden from it",
               std::string(property) + "=");
  }
}

}  // namespace

void check_unit(Context& context, Findings& findings) {
  const std::string& name = context.about().unit;
  if (name.empty()) return;
  const Unit unit = read_unit(context.host(), name);
  if (!unit.problem.empty()) {
    findings.unknown(name, unit.problem, "what its sandboxing keeps from it",
                     "systemctl list-units --type=service");
    return;
  }
  Judge judge(findings, name);
  std::vector<std::string> nodes;
  for (const std::string& node : context.host().list("/sys/class/infiniband_verbs").names) {
    if (node.starts_with("uverbs")) nodes.push_back("/dev/infiniband/" + node);
  }
  judge_devices(unit, nodes, judge);
  judge_families(unit, judge);
  judge_rest(unit, judge);
  std::string looked_at;
  std::string library = context.about().library;
  if (library.empty()) library = find_library(looked_at);
  if (library.empty()) library = "/usr/local/lib/libringroad.so";
  judge_environment(unit, judge, library);
  judge_wrapper(context.host(), unit, library, judge);
  judge_running(context.host(), name, unit, findings, judge);
  if (judge.clean()) findings.ok(name, "nothing of its sandboxing is in the way");
}

}  // namespace ringroad::cli::doctor
