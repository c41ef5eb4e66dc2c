#include "policy/rule_reader.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "policy/criteria.h"
#include "policy/key_file.h"
#include "policy/process_reader.h"
#include "policy/settings_reader.h"
#include "policy/suggest.h"

namespace ringroad::policy {
namespace {

constexpr std::array<std::string_view, 3> kRoleWords = {"any", "connect", "accept"};
constexpr std::array<std::string_view, 4> kViaWords = {"rdma", "shm", "auto", "tcp"};

// What a rule that stays on TCP, or on this host, has no use for.
constexpr std::array<std::string_view, 9> kUselessOnTcp = {
    "device", "traffic_class", "ring", "spin", "promote_after", "wait", "idle", "detect", "key_file"};
constexpr std::array<std::string_view, 3> kUselessOnShm = {"device", "traffic_class", "detect"};

const Entry* find(const Value& table, std::string_view key) noexcept {
  for (const Entry& entry : table.entries) {
    if (entry.key == key) {
      return &entry;
    }
  }
  return nullptr;
}

class RuleReader {
 public:
  RuleReader(const Value& table, Position at, Report& report)
      : table_(table), at_(at), report_(report) {}

  Rule read();

  void read_name(const Value& value);
  void read_subnet(const Value& value);
  void read_port(const Value& value);
  void read_program(const Value& value);
  void read_comm(const Value& value);
  void read_unit(const Value& value);
  void read_cgroup(const Value& value);
  void read_label(const Value& value);
  void read_role(const Value& value);
  void read_via(const Value& value);
  void read_device(const Value& value);
  void read_traffic_class(const Value& value);
  void read_ring(const Value& value);
  void read_spin(const Value& value);
  void read_promote_after(const Value& value);
  void read_wait(const Value& value);
  void read_idle(const Value& value);
  void read_detect(const Value& value);
  void read_key_file(const Value& value);

 private:
  template <typename Read>
  void read_list(const Value& value, std::string_view key, std::string_view if_empty, Read read);
  void read_patterns(const Value& value, std::string_view key, const char* example,
                     bool (*check)(std::string_view, Complaint&), std::vector<std::string>& patterns);
  void warn_of_useless_keys();

  const Value& table_;
  const Position at_;
  Report& report_;
  Rule rule_;
};

struct Key {
  std::string_view name;
  void (RuleReader::*read)(const Value&);
};

constexpr std::array<Key, 19> kKeys = {{
    {"name", &RuleReader::read_name},
    {"subnet", &RuleReader::read_subnet},
    {"port", &RuleReader::read_port},
    {"program", &RuleReader::read_program},
    {"comm", &RuleReader::read_comm},
    {"unit", &RuleReader::read_unit},
    {"cgroup", &RuleReader::read_cgroup},
    {"label", &RuleReader::read_label},
    {"role", &RuleReader::read_role},
    {"via", &RuleReader::read_via},
    {"device", &RuleReader::read_device},
    {"traffic_class", &RuleReader::read_traffic_class},
    {"ring", &RuleReader::read_ring},
    {"spin", &RuleReader::read_spin},
    {"promote_after", &RuleReader::read_promote_after},
    {"wait", &RuleReader::read_wait},
    {"idle", &RuleReader::read_idle},
    {"detect", &RuleReader::read_detect},
    {"key_file", &RuleReader::read_key_file},
}};

constexpr auto kKeyNames = [] {
  std::array<std::string_view, kKeys.size()> names;
  for (std::size_t i = 0; i < kKeys.size(); ++i) {
    names[i] = kKeys[i].name;
  }
  return names;
}();

Rule RuleReader::read() {
  rule_.settings.file = report_.file();
  rule_.settings.line = at_.line;
  rule_.column = at_.column;
  rule_.settings.promote_after.messages = kDefaultPromoteMessages;
  // A misspelt "subnet" is one error, not two.
  bool has_subnet = false;
  for (const Entry& entry : table_.entries) {
    const auto* key = std::find_if(kKeys.begin(), kKeys.end(),
                                   [&](const Key& known) { return known.name == entry.key; });
    has_subnet = has_subnet || nearest(entry.key, kKeyNames) == "subnet";
    if (key != kKeys.end()) {
      (this->*key->read)(entry.value);
    } else if (entry.key == "version" || is_process_key(entry.key)) {
      report_.error(entry.at,
                    {in_quotes(entry.key) + " is not a key of a rule", "put it above the first [[rule]]"});
    } else {
      report_.error(entry.at, {"unknown key " + in_quotes(entry.key) + " in a rule",
                               suggestion(entry.key, kKeyNames)});
    }
  }
  if (!has_subnet) {
    const std::string which =
        rule_.settings.name.empty() ? "this rule" : "rule " + in_quotes(rule_.settings.name);
    report_.error(at_, {which + " has no subnet",
                        R"(write subnet = ["0.0.0.0/0", "::/0"] to match every address)"});
  }
  if (rule_.settings.name.empty()) {
    rule_.settings.name = std::string(base_name(report_.file())) + ":" + std::to_string(at_.line);
  }
  warn_of_useless_keys();
  return std::move(rule_);
}

template <typename Read>
void RuleReader::read_list(const Value& value, std::string_view key, std::string_view if_empty,
                           Read read) {
  if (value.kind != Value::Kind::kArray) {
    read(value);
    return;
  }
  if (value.items.empty()) {
    report_.error(value.at,
                  {in_quotes(key) + " is an empty list and matches nothing", std::string(if_empty)});
  }
  for (const Value& item : value.items) {
    read(item);
  }
}

void RuleReader::read_name(const Value& value) {
  Complaint complaint;
  if (!expect_string(value, "name", R"(name = "galera-replication")", report_)) {
    return;
  }
  if (!check_name(value.string, complaint)) {
    report_.error(value.at, std::move(complaint));
    return;
  }
  rule_.settings.name = value.string;
}

void RuleReader::read_subnet(const Value& value) {
  read_list(value, "subnet", R"(write subnet = ["0.0.0.0/0", "::/0"] to match every address)",
            [this](const Value& item) {
              Complaint complaint;
              if (!expect_string(item, "subnet", R"(subnet = "192.168.100.0/24")", report_)) {
                return;
              }
              if (const auto subnet = parse_subnet(item.string, complaint)) {
                rule_.subnets.push_back(*subnet);
              } else {
                report_.error(item.at, std::move(complaint));
              }
            });
}

void RuleReader::read_port(const Value& value) {
  read_list(value, "port", "leave it out to match every port", [this](const Value& item) {
    Complaint complaint;
    std::optional<PortRange> range;
    if (item.kind == Value::Kind::kInteger) {
      range = port_from_number(item.integer, complaint);
    } else if (item.kind == Value::Kind::kString) {
      range = parse_ports(item.string, complaint);
    } else {
      complaint = {
          "\"port\" must be a string or an integer, not " + std::string(describe(item.kind)),
          R"(write port = "3306" or port = ["3306", "4567-4568"])"};
    }
    if (range) {
      rule_.ports.push_back(*range);
    } else {
      report_.error(item.at, std::move(complaint));
    }
  });
}

void RuleReader::read_patterns(const Value& value, std::string_view key, const char* example,
                               bool (*check)(std::string_view, Complaint&),
                               std::vector<std::string>& patterns) {
  const std::string all = key == "program" ? "program" : "process";
  read_list(value, key, "leave it out to match every " + all, [&](const Value& item) {
    Complaint complaint;
    if (!expect_string(item, key, example, report_)) {
      return;
    }
    if (check(item.string, complaint)) {
      patterns.push_back(item.string);
    } else {
      report_.error(item.at, std::move(complaint));
    }
  });
}

void RuleReader::read_program(const Value& value) {
  read_patterns(value, "program", R"(program = "mariadbd")", check_glob, rule_.programs);
}

void RuleReader::read_comm(const Value& value) {
  read_patterns(value, "comm", R"(comm = "mariadbd")", check_comm, rule_.comms);
}

void RuleReader::read_unit(const Value& value) {
  read_patterns(value, "unit", R"(unit = "mariadb.service")", check_unit, rule_.units);
}

void RuleReader::read_cgroup(const Value& value) {
  read_patterns(value, "cgroup", R"(cgroup = "/kubepods.slice")", check_cgroup, rule_.cgroups);
}

void RuleReader::read_label(const Value& value) {
  read_patterns(value, "label", R"(label = "app=mysql")", check_label, rule_.labels);
}

void RuleReader::read_role(const Value& value) {
  if (!expect_string(value, "role", R"(role = "any")", report_)) {
    return;
  }
  if (value.string == "any") {
    rule_.roles = kAnyRole;
  } else if (value.string == "connect") {
    rule_.roles = roles_of(Role::kConnect);
  } else if (value.string == "accept") {
    rule_.roles = roles_of(Role::kAccept);
  } else {
    report_.error(value.at,
                  {"unknown role " + in_quotes(value.string), suggestion(value.string, kRoleWords)});
  }
}

void RuleReader::read_via(const Value& value) {
  if (!expect_string(value, "via", R"(via = "auto")", report_)) {
    return;
  }
  for (const Via via : {Via::kTcp, Via::kRdma, Via::kShm, Via::kAuto}) {
    if (value.string == to_string(via)) {
      rule_.settings.via = via;
      return;
    }
  }
  report_.error(value.at,
                {"unknown via " + in_quotes(value.string), suggestion(value.string, kViaWords)});
}

void RuleReader::read_device(const Value& value) {
  Complaint complaint;
  if (!expect_string(value, "device", R"(device = "mlx5_0")", report_)) {
    return;
  }
  if (!check_device(value.string, complaint)) {
    report_.error(value.at, std::move(complaint));
    return;
  }
  rule_.settings.device = value.string;
}

void RuleReader::read_traffic_class(const Value& value) {
  rule_.settings.traffic_class = policy::read_traffic_class(value, report_);
}

void RuleReader::read_ring(const Value& value) {
  rule_.settings.ring_bytes = policy::read_ring(value, report_).value_or(kDefaultRingBytes);
}

void RuleReader::read_spin(const Value& value) {
  rule_.settings.spin = policy::read_spin(value, report_).value_or(kDefaultSpin);
}

void RuleReader::read_promote_after(const Value& value) {
  rule_.settings.promote_after = policy::read_promote_after(value, report_);
}

void RuleReader::read_wait(const Value& value) {
  rule_.settings.wait = policy::read_wait(value, report_).value_or(kNoWait);
}

void RuleReader::read_idle(const Value& value) {
  rule_.settings.idle = policy::read_idle(value, report_).value_or(kDefaultIdle);
}

void RuleReader::read_detect(const Value& value) {
  rule_.settings.detect = policy::read_detect(value, report_).value_or(kDefaultDetect);
}

void RuleReader::read_key_file(const Value& value) {
  if (!expect_string(value, "key_file", R"(key_file = "/etc/ringroad/key")", report_)) {
    return;
  }
  Complaint complaint;
  std::optional<std::string> key = read_key(value.string, complaint);
  if (!key) {
    report_.error(value.at, std::move(complaint));
    return;
  }
  rule_.settings.key_file = value.string;
  rule_.settings.key = std::move(*key);
}

void RuleReader::warn_of_useless_keys() {
  const Settings& settings = rule_.settings;
  const auto warn = [&](std::string_view key) {
    if (const Entry* entry = find(table_, key)) {
      report_.warning(entry->at,
                      {in_quotes(key) + " has no effect with via = " + in_quotes(to_string(settings.via)),
                       "leave it out"});
    }
  };
  if (settings.via == Via::kTcp) {
    std::for_each(kUselessOnTcp.begin(), kUselessOnTcp.end(), warn);
    return;
  }
  if (settings.via == Via::kShm) {
    std::for_each(kUselessOnShm.begin(), kUselessOnShm.end(), warn);
  }
  const Entry* wait = find(table_, "wait");
  if (wait != nullptr && settings.wait.count() > 0 && !settings.promote_after.reached(0, 0)) {
    report_.warning(wait->at, {"\"wait\" has no effect on a connection that starts on TCP",
                               "write promote_after = { messages = 0 } too, or leave it out"});
  }
}

}  // namespace

Rule read_rule(const Value& table, Position at, Report& report) {
  return RuleReader(table, at, report).read();
}

bool is_rule_key(std::string_view key) noexcept {
  return std::find(kKeyNames.begin(), kKeyNames.end(), key) != kKeyNames.end();
}

}  // namespace ringroad::policy
