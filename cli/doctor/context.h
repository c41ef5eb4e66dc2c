// What the checks of one run share: the host, the questions, the policy, and what is found out
// once for several of them.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/doctor/host.h"
#include "cli/doctor/rdma_device.h"
#include "cli/doctor/words.h"
#include "policy/policy.h"
#include "policy/rule.h"

namespace ringroad::cli::doctor {

// What the operator asks about, besides the host itself.
struct Questions {
  std::string user;                       // whose access and limits; empty: see Context::user()
  std::string unit;                       // a systemd service
  std::string program;                    // a program's file
  pid_t pid = 0;                          // a process
  std::chrono::milliseconds watch{1000};  // between two readings of the counters
  std::string library;  // libringroad.so; empty: the one that came with this command
};

// A network of the host's that the policy lets off TCP, and how packets leave for it.
struct Path {
  std::string rule;
  std::string subnet;   // as the policy has it
  std::string address;  // an address in it that was asked for
  std::string dev;      // the network device; empty: no route
  std::string source;   // the local address
  bool local = false;   // it is this host's
  std::string problem;  // why there is no route
};

struct LocalAddress {
  Address address;
  policy::Prefix network;
  std::string dev;
};

struct User {
  std::string name;
  uid_t uid = 0;
  uid_t real_uid = 0;  // another one in a setuid program
  std::vector<gid_t> groups;
};

class Context {
 public:
  Context(Host& host, const Questions& questions, policy::LoadResult loaded)
      : host_(host), about_(questions), loaded_(std::move(loaded)) {}

  Host& host() const noexcept { return host_; }
  const Questions& about() const noexcept { return about_; }
  const policy::LoadResult& loaded() const noexcept { return loaded_; }

  // Rules that may take a connection over RDMA.
  std::vector<const policy::Rule*> rdma_rules() const;
  // Those that this network namespace has network devices of, and the others.
  const std::vector<RdmaDevice>& devices();
  const std::vector<RdmaDevice>& devices_elsewhere();
  bool is_rdma_netdev(const std::string& name) { return device_of(devices(), name) != nullptr; }
  const std::vector<LocalAddress>& addresses();
  const std::vector<Path>& paths();
  // The user that was named; or else the unit's, the process's, or the one that runs this. Empty with `why`
  // when there is no such user, or nobody can tell.
  std::optional<User> user(std::string& why);
  // "mysql", "unit mariadb", "process 4711" or "": what user() is about.
  std::string about_whom() const;

 private:
  std::optional<User> named_user(const std::string& name, std::string& why);
  std::optional<User> user_of_process(std::string& why);

  Host& host_;
  const Questions& about_;
  const policy::LoadResult loaded_;
  std::optional<std::vector<RdmaDevice>> devices_;
  std::vector<RdmaDevice> devices_elsewhere_;  // once devices_ is there
  std::optional<std::vector<LocalAddress>> addresses_;
  std::optional<std::vector<Path>> paths_;
};

// The route to one address; `path.address` is set already.
void ask_route(Host& host, Path& path);

// Neither object nor array where the text is no JSON, or nested too deeply.
nlohmann::json parse_json(const std::string& text);
// The member as text or number; or what stands in for it.
std::string text_of(const nlohmann::json& object, const char* name);
std::optional<long long> number_of(const nlohmann::json& object, const char* name);

}  // namespace ringroad::cli::doctor
