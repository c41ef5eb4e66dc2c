// The policy: which TCP connections may leave the kernel's TCP stack, and how.
//
// This is the one header that the preloaded library includes. Typical use:
//
//   LoadResult loaded = Policy::load_default(value_of_RINGROAD_POLICY);
//   if (!loaded) { log every to_string(loaded.errors[i]); keep the policy you had }
//   const Settings* rule = loaded.policy->match(Role::kConnect, process, local, remote);
//   if (rule == nullptr || rule->via == Via::kTcp) { leave the connection alone }
//
// The file format is described in docs/policy.md.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "policy/error.h"
#include "policy/prefix.h"
#include "policy/process.h"
#include "policy/settings.h"
#include "rsocket-core/net/endpoint.h"
#include "rsocket-core/net/role.h"

namespace ringroad::policy {

class Policy;
struct Rule;

// Which carriers some rule could choose.
struct Reach {
  bool shm = false;
  bool rdma = false;
};

struct LoadResult {
  std::shared_ptr<const Policy> policy;  // null: refused
  std::vector<Error> errors;             // why, in file order; none with a null policy: no memory

  explicit operator bool() const noexcept { return policy != nullptr; }
};

enum class Criterion : std::uint8_t { kRole, kSubnet, kPort, kProgram, kComm, kUnit, kCgroup, kLabel };
std::string_view to_string(Criterion criterion) noexcept;

struct Mismatch {
  Criterion criterion;
  std::string reason;  // "port 3306 is not in 4567-4568"
};

struct Consideration {
  const Settings* rule;
  std::vector<Mismatch> mismatches;  // every criterion that failed; none: the rule matches
  std::string program;  // which name fits which pattern; "" where the rule has none, or none fits

  bool matches() const noexcept { return mismatches.empty(); }
};

struct Explanation {
  const Settings* decision = nullptr;     // what match() answers
  std::vector<Consideration> considered;  // in order, up to and including the decision
  std::size_t not_considered = 0;         // rules after the decision
};

// Thread rule: immutable once loaded; every const member may be called by any thread at any
// time. The Settings and strings that it hands out live as long as the Policy: hold the
// shared_ptr for as long as you use them.
//
// Failure: nothing here prints, exits or reads the environment, and errno is left as it was. The
// load functions let no exception out. match() does not allocate and cannot fail; explain(),
// warnings() and default_paths() may throw std::bad_alloc.
class Policy {
 public:
  static constexpr std::size_t kLargestFileBytes = 256U << 10;

  // Each path is a file, or a directory whose *.toml files are read in byte order of their names
  // (dot files are passed over). The rules are concatenated in that order. One error anywhere
  // refuses the whole; all errors of all files are reported. No paths: an empty policy, all TCP.
  static LoadResult load(const std::vector<std::string>& paths);
  static LoadResult load_file(const std::string& path);
  static LoadResult load_text(std::string_view text, std::string_view name);

  // `named` is the value of RINGROAD_POLICY. Null or empty: whichever of policy.d and policy.toml
  // exist under `directory`, in this order; neither: an empty policy.
  static LoadResult load_default(const char* named, const char* directory = "/etc/ringroad");

  // The paths that load_default() looks at, whether they exist or not: what to watch for edits.
  static std::vector<std::string> default_paths(const char* named,
                                                const char* directory = "/etc/ringroad");

  ~Policy();
  Policy(const Policy&) = delete;
  Policy& operator=(const Policy&) = delete;

  // The first rule that matches, or null: stay on TCP. A rule's `program` is compared with both names of the
  // program; none that asks for an unknown fact matches. The rule's port is compared with the service's port:
  // remote for kConnect, local for kAccept. A rule may itself say Via::kTcp.
  const Settings* match(Role role, const Process& process, const Endpoint& local,
                        const Endpoint& remote) const noexcept;

  // What match() could answer for some connection whose addresses are not known yet, but whose
  // service port is: what a listener has to be prepared for. An upper bound; rule order is not
  // looked at.
  Reach reach(Role role, const Process& process, std::uint16_t service_port) const noexcept;

  // The same decision with the reasons that led to it.
  Explanation explain(Role role, const Process& process, const Endpoint& local,
                      const Endpoint& remote) const;

  // What each rule asks of the process, and whether it is so; ports, subnets and roles are not looked at.
  std::vector<Consideration> explain_process(const Process& process) const;

  // Whether some rule asks for what has to be read from /proc: comm or cgroup.
  bool asks_for_facts() const noexcept;

  // What is valid but probably not meant: keys without effect, and rules that can never match
  // because earlier rules cover them. Costs more than loading; meant for `ringroad policy check`.
  std::vector<Error> warnings() const;

  std::size_t rule_count() const noexcept;
  const Settings& rule(std::size_t index) const noexcept;  // REQUIRES: index < rule_count()
  // What it applies to, besides. The same lifetime; see policy/rule.h.
  const Rule& conditions(std::size_t index) const noexcept;  // REQUIRES: index < rule_count()
  const Limits& limits() const noexcept { return limits_; }

  // The files that were read, in order.
  const std::vector<std::string>& sources() const noexcept { return sources_; }

 private:
  Policy(std::vector<Rule> rules, Limits limits, std::vector<Error> warnings,
         std::vector<std::string> sources);
  friend class Loader;

  const std::vector<Rule> rules_;
  const Limits limits_;
  const std::vector<Error> warnings_;
  const std::vector<std::string> sources_;
};

}  // namespace ringroad::policy
