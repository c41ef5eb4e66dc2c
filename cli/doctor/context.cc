#include "cli/doctor/context.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cli/doctor/unit.h"

namespace ringroad::cli::doctor {
namespace {

using nlohmann::json;
using policy::Prefix;
using policy::Via;

Address next(Address address, unsigned steps) {
  const unsigned first = address.first_byte();
  for (unsigned i = 16; i-- > first && steps != 0;) {
    steps += address.bytes[i];
    address.bytes[i] = static_cast<std::uint8_t>(steps & 0xffU);
    steps >>= 8U;
  }
  return address;
}

// An address of the prefix that is not this host's, where there is one.
Address foreign_address(const Prefix& prefix, const std::vector<LocalAddress>& own) {
  constexpr unsigned kTries = 8;
  if (prefix.length >= prefix.addr.bits() - 1) return prefix.addr;
  for (unsigned i = 1; i < kTries; ++i) {
    const Address address = next(prefix.addr, i);
    const auto is_it = [&](const LocalAddress& mine) { return mine.address == address; };
    if (!prefix.contains(address)) break;
    if (std::none_of(own.begin(), own.end(), is_it)) return address;
  }
  return next(prefix.addr, 1);
}

}  // namespace

json parse_json(const std::string& text) {
  // Deeper than any tool's answer, and shallow enough for a function that walks through it.
  constexpr std::size_t kDeepest = 64;
  std::size_t depth = 0;
  for (const char c : text) {
    if (c == '[' || c == '{') ++depth;
    if ((c == ']' || c == '}') && depth != 0) --depth;
    if (depth > kDeepest) return json(json::value_t::discarded);
  }
  return json::parse(text, nullptr, false);
}

std::string text_of(const json& object, const char* name) {
  if (!object.is_object() || !object.contains(name)) return {};
  const json& value = object[name];
  return value.is_string() ? value.get<std::string>() : std::string();
}

std::optional<long long> number_of(const json& object, const char* name) {
  if (!object.is_object() || !object.contains(name)) return std::nullopt;
  const json& value = object[name];
  if (!value.is_number_integer()) return std::nullopt;
  return value.get<long long>();
}

std::vector<const policy::Rule*> Context::rdma_rules() const {
  std::vector<const policy::Rule*> rules;
  for (std::size_t i = 0; loaded_ && i < loaded_.policy->rule_count(); ++i) {
    const Via via = loaded_.policy->rule(i).via;
    if (via == Via::kRdma || via == Via::kAuto) rules.push_back(&loaded_.policy->conditions(i));
  }
  return rules;
}

const std::vector<RdmaDevice>& Context::devices() {
  if (!devices_) {
    devices_.emplace();
    for (RdmaDevice& device : find_rdma_devices(host_)) {
      (device.elsewhere ? devices_elsewhere_ : *devices_).push_back(std::move(device));
    }
  }
  return *devices_;
}

const std::vector<RdmaDevice>& Context::devices_elsewhere() {
  devices();
  return devices_elsewhere_;
}

const std::vector<LocalAddress>& Context::addresses() {
  if (addresses_) return *addresses_;
  addresses_.emplace();
  const json links = parse_json(host_.run({"ip", "-json", "address", "show"}).out);
  if (!links.is_array()) return *addresses_;
  for (const json& link : links) {
    if (!link.is_object() || !link.contains("addr_info") || !link["addr_info"].is_array()) continue;
    for (const json& entry : link["addr_info"]) {
      const auto address = Address::parse(text_of(entry, "local"));
      const auto length = number_of(entry, "prefixlen");
      if (!address || !length || *length < 0 || *length > address->bits()) continue;
      addresses_->push_back({*address, Prefix::of(*address, static_cast<unsigned>(*length)),
                             text_of(link, "ifname")});
    }
  }
  return *addresses_;
}

void ask_route(Host& host, Path& path) {
  const CommandResult result = host.run({"ip", "-json", "route", "get", path.address});
  const json routes = parse_json(result.out);
  if (!result || !routes.is_array() || routes.empty()) {
    path.problem = result ? "ip route get said nothing that could be read" : result.problem();
    return;
  }
  path.dev = text_of(routes[0], "dev");
  path.source = text_of(routes[0], "prefsrc");
  path.local = text_of(routes[0], "type") == "local";
}

const std::vector<Path>& Context::paths() {
  if (paths_) return *paths_;
  paths_.emplace();
  std::vector<std::string> seen;
  for (const policy::Rule* rule : rdma_rules()) {
    for (const Prefix& subnet : rule->subnets) {
      const std::string name = subnet.to_string();
      if (contains(seen, name)) continue;
      seen.push_back(name);
      // Of a wide subnet, the networks that this host is in tell more than its first address.
      std::vector<Prefix> parts;
      for (const LocalAddress& own : addresses()) {
        if (own.dev == "lo" || own.network.addr.is_v4() != subnet.addr.is_v4()) continue;
        if (own.network.addr.bytes[0] == 0xfe && subnet.length < 10) {
          continue;  // link-local addresses need a scope
        }
        if (subnet.contains(own.network)) {
          parts.push_back(own.network);
        } else if (own.network.contains(subnet)) {
          parts = {subnet};
          break;
        }
      }
      if (parts.empty()) parts.push_back(subnet);
      for (const Prefix& part : parts) {
        Path path;
        path.rule = rule->settings.name;
        path.subnet = name;
        path.address = foreign_address(part, addresses()).to_string();
        ask_route(host_, path);
        paths_->push_back(std::move(path));
      }
    }
  }
  return *paths_;
}

std::string Context::about_whom() const {
  if (!about_.user.empty()) return about_.user;
  if (!about_.unit.empty()) return "unit " + about_.unit;
  return about_.pid == 0 ? std::string() : "process " + std::to_string(about_.pid);
}

std::optional<User> Context::user(std::string& why) {
  if (!about_.user.empty()) return named_user(about_.user, why);
  if (about_.unit.empty()) {
    return about_.pid == 0 ? named_user({}, why) : user_of_process(why);
  }
  const Unit unit = read_unit(host_, about_.unit);
  if (!unit.problem.empty()) {
    why = unit.problem;
    return std::nullopt;
  }
  if (unit["DynamicUser"] == "yes") {
    why = "DynamicUser=yes: its user is made when it starts";
    return std::nullopt;
  }
  const std::string name = unit["User"];
  return named_user(name.empty() ? "root" : name, why);
}

// The folder's owner is root where the process cannot be dumped; its status has its user.
std::optional<User> Context::user_of_process(std::string& why) {
  const std::string file = "/proc/" + std::to_string(about_.pid) + "/status";
  const FileText status = host_.read(file);
  if (!status) {
    why = file + ": " + strerrordesc_np(status.error);
    return std::nullopt;
  }
  std::vector<std::string> uids;  // real, effective, saved, of the file system
  std::vector<std::string> gids;
  std::vector<std::string> groups;
  for (const std::string& line : split(status.text, "\n")) {
    if (line.starts_with("Uid:")) uids = split(line.substr(4));
    if (line.starts_with("Gid:")) gids = split(line.substr(4));
    if (line.starts_with("Groups:")) groups = split(line.substr(7));
  }
  const auto real = uids.size() == 4 ? to_number(uids[0]) : std::nullopt;
  const auto effective = uids.size() == 4 ? to_number(uids[3]) : std::nullopt;
  if (!real || !effective || gids.size() != 4) {
    why = file + " names no user";
    return std::nullopt;
  }
  User user;
  user.name = std::to_string(*effective);
  user.uid = static_cast<uid_t>(*effective);
  user.real_uid = static_cast<uid_t>(*real);
  groups.push_back(gids[3]);
  for (const std::string& word : groups) {
    if (const auto number = to_number(word)) user.groups.push_back(static_cast<gid_t>(*number));
  }
  return user;
}

// Without a name: the user that runs this.
std::optional<User> Context::named_user(const std::string& wanted, std::string& why) {
  User user;
  user.name = wanted;
  // Of whatever directory the host has its users from.
  std::vector<std::string> id = {"id", "-u"};
  std::vector<std::string> groups = {"id", "-G"};
  std::vector<std::string> name = {"id", "-un"};
  if (!wanted.empty()) {
    for (std::vector<std::string>* words : {&id, &groups}) {
      words->emplace_back("--");
      words->push_back(user.name);
    }
  } else {
    user.name = trimmed(host_.run(name).out);
  }
  const CommandResult said = host_.run(id);
  const auto uid = to_number(trimmed(said.out));
  if (!said || !uid) {
    why = "id: " + said.problem();
    return std::nullopt;
  }
  user.uid = user.real_uid = static_cast<uid_t>(*uid);
  if (user.name.empty()) user.name = std::to_string(*uid);
  for (const std::string& word : split(host_.run(groups).out)) {
    if (const auto number = to_number(word)) user.groups.push_back(static_cast<gid_t>(*number));
  }
  return user;
}

}  // namespace ringroad::cli::doctor
