// Memory of the host, and its limits.

#include "cli/doctor/check.h"
#include "cli/doctor/memlock.h"
#include "cli/doctor/unit.h"

namespace ringroad::cli::doctor {
namespace {

// A service should not meet its limit in the middle of a busy day.
constexpr std::uint64_t kFewStreams = 64;
constexpr std::size_t npos = std::string::npos;

void judge_memlock(Context& context, Findings& findings, const std::string& subject,
                   std::optional<std::uint64_t> limit, bool lifted, const std::string& mend) {
  const std::uint64_t one = stream_bytes(context.rdma_rules());
  const std::string needs = "; a stream locks " + bytes_text(one);
  if (lifted) {
    findings.ok(subject, "CAP_IPC_LOCK lifts the limit");
  } else if (!limit) {
    findings.unknown(subject, "no limit could be read", "whether rings can be registered", mend);
  } else if (*limit == kUnlimited) {
    findings.ok(subject, "unlimited");
  } else if (*limit < one) {
    findings.fail(subject, bytes_text(*limit) + needs,
                  "no stream's rings can be registered: all stay on TCP (memlock)", mend);
  } else {
    const std::uint64_t streams = *limit / one;
    const std::string evidence =
        bytes_text(*limit) + needs + ", so " + std::to_string(streams) + " fit";
    if (streams < kFewStreams) {
      findings.warn(subject, evidence, "further streams stay on TCP (memlock)", mend);
    } else {
      findings.ok(subject, evidence);
    }
  }
}

std::string limits_conf(const std::string& user) {
  return "echo '" + user +
         " - memlock unlimited' > /etc/security/limits.d/ringroad.conf; log in "
         "again";
}

}  // namespace

void check_memlock(Context& context, Findings& findings) {
  Host& host = context.host();
  const Questions& about = context.about();
  if (about.pid != 0) {
    const std::string folder = "/proc/" + std::to_string(about.pid);
    judge_memlock(context, findings, "process " + std::to_string(about.pid),
                  memlock_of_limits(host.text(folder + "/limits")),
                  may_lock_everything(host.text(folder + "/status")),
                  "prlimit --pid " + std::to_string(about.pid) +
                      " --memlock=unlimited   # and LimitMEMLOCK=infinity in its unit");
  }
  if (!about.unit.empty()) {
    const Unit unit = read_unit(host, about.unit);
    const std::string soft = unit["LimitMEMLOCKSoft"];
    const std::string user = unit["User"];
    const bool root =
        unit.problem.empty() && (user.empty() || user == "root") && unit["DynamicUser"] != "yes";
    const bool lifts = (root && unit["CapabilityBoundingSet"].find("cap_ipc_lock") != npos) ||
                       unit["AmbientCapabilities"].find("cap_ipc_lock") != npos;
    judge_memlock(context, findings, "unit " + about.unit,
                  memlock_of_unit(soft.empty() ? unit["LimitMEMLOCK"] : soft), lifts,
                  "systemctl edit " + about.unit + "\n[Service]\nLimitMEMLOCK=infinity");
  }
  if (about.user.empty()) {
    if (about.pid == 0 && about.unit.empty()) {
      judge_memlock(context, findings, "this user",
                    memlock_of_limits(host.text("/proc/self/limits")),
                    may_lock_everything(host.text("/proc/self/status")), limits_conf("USER"));
    }
    return;
  }
  // What a session of the user gets, PAM's limits included.
  const std::vector<std::string> ask = {"runuser", "-u",  about.user,
                                        "--",      "cat", "/proc/self/limits"};
  const CommandResult limits = host.run(ask);
  if (!limits) {
    findings.unknown("user " + about.user, "runuser -u " + about.user + ": " + limits.problem(),
                     "whether the user's programs can register rings", "run this as root");
    return;
  }
  const CommandResult status =
      host.run({"runuser", "-u", about.user, "--", "cat", "/proc/self/status"});
  judge_memlock(context, findings, "user " + about.user, memlock_of_limits(limits.out),
                may_lock_everything(status.out), limits_conf(about.user));
}

void check_huge_pages(Context& context, Findings& findings) {
  const std::string info = context.host().text("/proc/meminfo");
  const auto value = [&](const std::string& name) -> std::optional<unsigned long long> {
    const std::size_t at = info.find(name + ":");
    if (at == std::string::npos) return std::nullopt;
    const auto words = split(info.substr(at + name.size() + 1, 64));
    return words.empty() ? std::nullopt : to_number(words.front());
  };
  const auto total = value("HugePages_Total");
  const auto free = value("HugePages_Free");
  const auto reserved = value("HugePages_Rsvd");
  const auto kib = value("Hugepagesize");
  if (!total || !free || !kib) {
    findings.unknown("", "/proc/meminfo names no huge pages", "whether memory is set aside", "");
    return;
  }
  const std::string state = std::to_string(*total) + " of " + bytes_text(*kib << 10U) + ", " +
                            std::to_string(*free) + " free";
  if (*total == 0) {
    findings.ok("", "none reserved; the rings need none");
  } else if (*free == *total && reserved.value_or(0) == 0) {
    findings.warn("", state,
                  bytes_text(*total * (*kib << 10U)) +
                      " that nobody can use are missing to the "
                      "database and to pinned rings",
                  "let the database use them (large-pages), or: sysctl vm.nr_hugepages=0");
  } else {
    findings.ok("", state);
  }
}

void check_fork(Context& context, Findings& findings) {
  if (context.devices().empty()) return;
  const CommandResult result = context.host().run({"rdma", "system", "show"});
  // "netns shared copy-on-fork on"; iproute2 6.1 knows no JSON for it.
  const std::vector<std::string> words = split(result.out);
  std::string state;
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    if (words[i] == "copy-on-fork") state = words[i + 1];
  }
  if (!result) {
    findings.unknown("", "rdma system show: " + result.problem(),
                     "whether a fork disturbs a stream's rings", "apt-get install iproute2");
  } else if (state == "on") {
    findings.ok("", "the kernel copies pinned pages at fork");
  } else if (state.empty()) {
    findings.unknown("",
                     "rdma system show names no copy-on-fork: a kernel before 5.12, or an older "
                     "iproute2",
                     "whether the library has to mark each ring for fork, which costs time at "
                     "registration",
                     "uname -r; a kernel of 5.12 or later, and its iproute2");
  } else {
    findings.warn("", "rdma system show: copy-on-fork " + state,
                  "the library has libibverbs mark each ring (ibv_fork_init), which costs time at "
                  "registration; with huge pages RDMAV_HUGEPAGES_SAFE=1 must be set",
                  "a kernel of 5.12 or later");
  }
}

}  // namespace ringroad::cli::doctor
