// What SELinux lets the domain of a program do: the kernel itself is asked, by selinuxfs.

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "cli/doctor/check.h"
#include "cli/doctor/unit.h"
#include "cli/library_file.h"

namespace ringroad::cli::doctor {
namespace {

constexpr const char* kFolder = "/sys/fs/selinux/";
// The type that the module defines: where the kernel does not know it, the module is not loaded.
constexpr const char* kRuntimeType = "ringroad_runtime_t";

enum class Needs : unsigned char { kStart, kPolicy, kStatistics, kShm, kRdma };

// Rules of packaging/selinux/ringroad.te; `source` and `target`: a type, or
//   domain  the program's        init  that of process 1
//   memfd   what the domain's memory files have
struct NeededRule {
  Needs needs;
  const char* source;
  const char* target;
  const char* object_class;
  const char* permissions;
};

constexpr NeededRule kNeeded[] = {
    {Needs::kStart, "init", "domain", "process", "noatsecure rlimitinh"},
    {Needs::kPolicy, "domain", "etc_t", "dir", "getattr open read search watch"},
    {Needs::kPolicy, "domain", "etc_t", "file", "getattr open read watch"},
    {Needs::kStatistics, "domain", kRuntimeType, "dir",
     "add_name getattr open read remove_name search write"},
    {Needs::kStatistics, "domain", kRuntimeType, "file",
     "create getattr map open read rename setattr unlink write"},
    {Needs::kStatistics, "domain", kRuntimeType, "sock_file", "create getattr setattr unlink"},
    {Needs::kShm, "domain", "domain", "unix_stream_socket",
     "accept bind connect connectto create listen setopt"},
    {Needs::kShm, "domain", "memfd", "file", "getattr lock map read write"},
    {Needs::kShm, "domain", "domain", "netlink_tcpdiag_socket", "create nlmsg_read read write"},
    {Needs::kShm, "domain", "nsfs_t", "file", "getattr"},
    {Needs::kRdma, "domain", "sysfs_t", "dir", "getattr open read search"},
    {Needs::kRdma, "domain", "sysfs_t", "file", "getattr open read"},
    {Needs::kRdma, "domain", "device_t", "dir", "getattr open read search watch"},
    {Needs::kRdma, "domain", "infiniband_device_t", "chr_file", "getattr ioctl map open read write"},
    {Needs::kRdma, "domain", "domain", "netlink_rdma_socket", "bind create getattr read setopt write"},
};

const char* consequence_of(Needs needs) noexcept {
  switch (needs) {
    case Needs::kStart:
      return "systemd's start of it drops LD_PRELOAD or its memlock limit: it runs on TCP";
    case Needs::kPolicy:
      return "the policy or its edits are not read: streams stay on TCP";
    case Needs::kStatistics:
      return "ringroad ss and set do not see it";
    case Needs::kShm:
      return "no shared memory: streams within the host stay on TCP (peer_unproven)";
    case Needs::kRdma:
      break;
  }
  return "no RDMA: streams stay on TCP (no_rdma_device)";
}

// Third field of user:role:type:level.
std::string type_of(const std::string& security_context) {
  const std::vector<std::string> fields = split(security_context, ":");
  return fields.size() > 2 ? fields[2] : "";
}

class Kernel {
 public:
  explicit Kernel(Host& host)
      : host_(host), has_levels_(host.text(std::string(kFolder) + "mls") == "1") {}

  // The context of a file or device of this type.
  std::string object(const std::string& type) const {
    return "system_u:object_r:" + type + (has_levels_ ? ":s0" : "");
  }
  // Empty: this policy has no such class.
  std::string class_number(const std::string& name) const {
    return host_.text(std::string(kFolder) + "class/" + name + "/index");
  }
  // What a new object of the class is called that `source` makes beside `target`; a process: that it
  // becomes when it executes `target`.
  FileText created(const std::string& source, const std::string& target,
                   const std::string& object_class) const {
    return host_.ask(std::string(kFolder) + "create",
                     source + " " + target + " " + class_number(object_class));
  }

  struct Access {
    int error = 0;  // EINVAL: it knows no such type
    unsigned allowed = 0;
    bool permissive = false;
  };
  Access access(const std::string& source, const std::string& target, const std::string& number) const {
    const FileText answer =
        host_.ask(std::string(kFolder) + "access", source + " " + target + " " + number);
    Access access;
    access.error = answer.error;
    unsigned flags = 0;
    if (answer && std::sscanf(answer.text.c_str(), "%x %*x %*x %*x %*u %x", &access.allowed, &flags) < 1) {
      access.error = EIO;
    }
    access.permissive = (flags & 1) != 0;
    return access;
  }
  // 0: this policy has no such permission.
  unsigned bit_of(const std::string& object_class, const std::string& permission) const {
    const std::string number =
        host_.text(std::string(kFolder) + "class/" + object_class + "/perms/" + permission);
    unsigned place = 0;
    if (std::sscanf(number.c_str(), "%u", &place) != 1 || place < 1 || place > 32) return 0;
    return 1U << (place - 1);
  }

 private:
  Host& host_;
  const bool has_levels_;
};

// As the kernel writes it, with a zero at its end.
FileText context_of_process(Host& host, pid_t pid) {
  FileText text = host.read("/proc/" + std::to_string(pid) + "/attr/current");
  while (!text.text.empty() && text.text.back() == '\0') text.text.pop_back();
  return text;
}

// Of the process that was named, or that the unit runs; or what systemd's start of the program leads to.
FileText domain_of(Context& context, const Kernel& kernel, std::string& subject) {
  Host& host = context.host();
  const Questions& about = context.about();
  pid_t pid = about.pid;
  std::string program = about.program;
  if (pid == 0 && !about.unit.empty()) {
    const Unit unit = read_unit(host, about.unit);
    pid = std::atoi(unit["MainPID"].c_str());
    if (program.empty()) program = unit.program();
  }
  if (pid != 0) {
    subject = "process " + std::to_string(pid);
    return context_of_process(host, pid);
  }
  subject = program;
  if (program.empty()) return {ENOENT, {}};
  const CommandResult label = host.run({"stat", "--format", "%C", "--dereference", "--", program});
  if (!label) return {ENOENT, {}};
  return kernel.created(context_of_process(host, 1).text, trimmed(label.out), "process");
}

struct Missing {
  std::map<Needs, std::string> rules;  // as the policy's source has them
  bool module_is_loaded = true;
  bool permissive = false;
  int error = 0;
};

// What is left of the rule, as source; empty: it holds, or this policy knows nothing of it.
std::string rest_of(const Kernel& kernel, const NeededRule& rule, const std::string& source,
                    const std::string& target, Missing& missing) {
  const std::string number = kernel.class_number(rule.object_class);
  if (number.empty()) return {};
  const Kernel::Access access = kernel.access(source, target, number);
  const bool is_runtime = std::strcmp(rule.target, kRuntimeType) == 0;
  if (access.error != 0) {
    if (access.error != EINVAL) missing.error = access.error;
    if (access.error != EINVAL || !is_runtime) return {};
    missing.module_is_loaded = false;
  }
  missing.permissive |= access.permissive;
  std::string left;
  for (const std::string& permission : split(rule.permissions)) {
    const unsigned bit = kernel.bit_of(rule.object_class, permission);
    if (bit != 0 && (access.allowed & bit) == 0) left += permission + " ";
  }
  if (left.empty()) return {};
  const std::string self = source == target ? "self" : type_of(target);
  return "allow " + type_of(source) + " " + self + ":" + rule.object_class + " { " + left + "};";
}

Missing missing_rules(Context& context, const Kernel& kernel, const std::string& domain) {
  Missing missing;
  const bool wants_rdma = !context.rdma_rules().empty();
  const std::string init = context_of_process(context.host(), 1).text;
  const FileText memory = kernel.created(domain, kernel.object("tmpfs_t"), "file");
  for (const NeededRule& rule : kNeeded) {
    if (rule.needs == Needs::kRdma && !wants_rdma) continue;
    const std::map<std::string, std::string> named = {
        {"domain", domain}, {"init", init}, {"memfd", memory ? memory.text : kernel.object("tmpfs_t")}};
    const auto context_named = [&](const std::string& name) {
      const auto found = named.find(name);
      return found != named.end() ? found->second : kernel.object(name);
    };
    const std::string rest =
        rest_of(kernel, rule, context_named(rule.source), context_named(rule.target), missing);
    if (rest.empty()) continue;
    std::string& rules = missing.rules[rule.needs];
    rules += (rules.empty() ? "" : " ") + rest;
  }
  return missing;
}

std::string remedy_for(const Missing& missing, const std::string& type) {
  if (!missing.module_is_loaded) return share_file("selinux/ringroad-selinux") + " load";
  return "a module of these lines gives the domain the rules (" + share_file("selinux/README.md") +
         "):\nmodule ringroad-local 1.0;\nrequire { attribute ringroad_domain; type " + type +
         "; }\ntypeattribute " + type + " ringroad_domain;";
}

}  // namespace

void check_selinux(Context& context, Findings& findings) {
  Host& host = context.host();
  if (host.text(std::string(kFolder) + "enforce") != "1") {
    findings.ok("", "no SELinux that enforces");
    return;
  }
  const Questions& about = context.about();
  if (about.pid == 0 && about.unit.empty() && about.program.empty()) {
    findings.ok("", "SELinux enforces; name --pid, --unit or --program");
    return;
  }
  const Kernel kernel(host);
  std::string subject;
  const FileText domain = domain_of(context, kernel, subject);
  if (!domain || type_of(domain.text).empty()) {
    findings.unknown(subject,
                     std::string("SELinux enforces; its domain: ") +
                         (domain ? domain.text : strerrordesc_np(domain.error)),
                     "what its domain may do", "start it, and name --pid; as root");
    return;
  }
  const std::string type = type_of(domain.text);
  const Missing missing = missing_rules(context, kernel, domain.text);
  if (missing.error != 0) {
    findings.unknown(subject, std::string(kFolder) + "access: " + strerrordesc_np(missing.error),
                     "what " + type + " may do", "run this as root");
  } else if (missing.permissive) {
    findings.ok(subject, type + " is permissive");
  } else if (missing.rules.empty()) {
    findings.ok(subject, type + " may do what the library does");
  } else {
    for (const auto& [needs, rules] : missing.rules) {
      findings.add(needs == Needs::kStart ? Level::kFail : Level::kWarn, subject, "missing: " + rules,
                   consequence_of(needs), remedy_for(missing, type));
    }
  }
}

}  // namespace ringroad::cli::doctor
