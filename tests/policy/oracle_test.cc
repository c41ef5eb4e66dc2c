// Random policies and connections, against an oracle that is as naive as possible: addresses and
// prefixes are strings of '0' and '1', globs are matched by recursion, and nothing of policy/ is
// used but the public interface under test.

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <bitset>
#include <cstring>
#include <vector>

#include "tests/policy/support.h"

namespace ringroad::policy {
namespace {

constexpr int kPolicies = 1200 / kSlowdown;
constexpr int kQuestionsEach = 50;

struct NaiveAddress {
  bool ipv6 = false;
  std::string bits;  // 32 or 128 of '0' and '1'
};

struct NaivePorts {
  int first = 0;
  int last = 0;
};

struct NaiveRule {
  std::string role;                   // "any", "connect", "accept"
  std::vector<NaiveAddress> subnets;  // bits cut to the prefix's length
  std::vector<NaivePorts> ports;
  std::vector<std::string> programs;
};

struct Question {
  bool connecting = false;
  std::string program;
  NaiveAddress remote_address;
  int local_port = 0;
  int remote_port = 0;
};

bool naive_glob(const std::string& glob, const std::string& name) {
  if (glob.empty()) {
    return name.empty();
  }
  const std::string rest = glob.substr(1);
  if (glob[0] == '*') {
    return naive_glob(rest, name) || (!name.empty() && naive_glob(glob, name.substr(1)));
  }
  if (name.empty()) {
    return false;
  }
  if (glob[0] == '[') {
    const std::size_t end = glob.find(']');
    const std::string set = glob.substr(1, end - 1);
    return set.find(name[0]) != std::string::npos &&
           naive_glob(glob.substr(end + 1), name.substr(1));
  }
  return (glob[0] == '?' || glob[0] == name[0]) && naive_glob(rest, name.substr(1));
}

bool naive_match(const NaiveRule& rule, const Question& question) {
  if (rule.role == "connect" && !question.connecting) {
    return false;
  }
  if (rule.role == "accept" && question.connecting) {
    return false;
  }
  bool subnet = false;
  for (const NaiveAddress& prefix : rule.subnets) {
    subnet = subnet || (prefix.ipv6 == question.remote_address.ipv6 &&
                        question.remote_address.bits.rfind(prefix.bits, 0) == 0);
  }
  const int service = question.connecting ? question.remote_port : question.local_port;
  bool port = rule.ports.empty();
  for (const NaivePorts& range : rule.ports) {
    port = port || (range.first <= service && service <= range.last);
  }
  bool program = rule.programs.empty();
  for (const std::string& glob : rule.programs) {
    program = program || naive_glob(glob, question.program);
  }
  return subnet && port && program;
}

// The notation that a person would not choose: every group written out.
std::string written(const NaiveAddress& address) {
  std::string text;
  for (std::size_t i = 0; i < address.bits.size(); i += address.ipv6 ? 16 : 8) {
    const auto group = std::bitset<16>(address.bits, i, address.ipv6 ? 16 : 8).to_ulong();
    char buffer[8];
    std::snprintf(buffer, sizeof(buffer), address.ipv6 ? "%lx" : "%lu", group);
    text += (text.empty() ? "" : address.ipv6 ? ":" : ".") + std::string(buffer);
  }
  return text;
}

std::string padded(const NaiveAddress& prefix) {
  NaiveAddress whole = prefix;
  whole.bits.resize(prefix.ipv6 ? 128 : 32, '0');
  return written(whole);
}

template <typename Items, typename Text>
std::string toml_list(const Items& items, Text text) {
  std::string list;
  for (const auto& item : items) {
    list += (list.empty() ? "" : ", ") + text(item);
  }
  return "[" + list + "]\n";
}

std::string toml(const std::vector<NaiveRule>& rules) {
  std::string text = "version = 1\n";
  for (std::size_t i = 0; i < rules.size(); ++i) {
    const NaiveRule& rule = rules[i];
    text += "[[rule]]\nname = \"" + std::to_string(i) + "\"\nrole = \"" + rule.role + "\"\n";
    text += "subnet = " + toml_list(rule.subnets, [](const NaiveAddress& prefix) {
              return "\"" + padded(prefix) + "/" + std::to_string(prefix.bits.size()) + "\"";
            });
    if (!rule.ports.empty()) {
      text += "port = " + toml_list(rule.ports, [](const NaivePorts& range) {
                return "\"" + std::to_string(range.first) + "-" + std::to_string(range.last) + "\"";
              });
    }
    if (!rule.programs.empty()) {
      text += "program = " +
              toml_list(rule.programs, [](const std::string& glob) { return "\"" + glob + "\""; });
    }
  }
  return text;
}

// Everything is drawn from small sets, so that rules and questions meet often.
class World {
 public:
  explicit World(Random& random) : random_(random) {
    for (const bool ipv6 : {false, true}) {
      for (int i = 0; i < 3; ++i) {
        bases_.push_back(random_address(ipv6));
      }
    }
  }

  // One of a few addresses with a few of its last bits flipped.
  NaiveAddress address() {
    NaiveAddress address = random_.pick(bases_);
    for (std::size_t flips = random_.below(4); flips > 0; --flips) {
      char& bit = address.bits[random_.below(address.bits.size())];
      bit = bit == '0' ? '1' : '0';
    }
    return address;
  }

  NaiveRule rule() {
    static constexpr const char* kRoles[] = {"any", "any", "connect", "accept"};
    static constexpr const char* kGlobs[] = {"mariadbd", "m*d", "mysql?", "[mr]*", "*-server", "*"};
    NaiveRule rule;
    rule.role = random_.pick(kRoles);
    for (std::size_t i = 1 + random_.below(3); i > 0; --i) {
      NaiveAddress prefix = address();
      prefix.bits.resize(random_.below(prefix.bits.size() + 1));
      rule.subnets.push_back(prefix);
    }
    for (std::size_t i = random_.below(3); i > 0; --i) {
      const int first = port();
      rule.ports.push_back({first, std::min(65535, first + static_cast<int>(random_.below(3)))});
    }
    for (std::size_t i = random_.below(3); i > 0; --i) {
      rule.programs.push_back(random_.pick(kGlobs));
    }
    return rule;
  }

  Question question() {
    static constexpr const char* kPrograms[] = {"mariadbd", "mysqld", "redis-server", "sh", ""};
    return {random_.one_in(2), random_.pick(kPrograms), address(), port(), port()};
  }

 private:
  NaiveAddress random_address(bool ipv6) {
    NaiveAddress address{ipv6, ""};
    for (int i = 0; i < (ipv6 ? 128 : 32); ++i) {
      address.bits += random_.one_in(2) ? '1' : '0';
    }
    // Clear of ::ffff:0:0/96, which is not IPv6 to a policy.
    if (ipv6) {
      address.bits.replace(0, 4, "0010");
      address.bits[80] = '0';
    }
    return address;
  }

  int port() {
    static constexpr int kPorts[] = {1, 2, 3306, 3307, 4567, 65534, 65535};
    return random_.pick(kPorts);
  }

  Random& random_;
  std::vector<NaiveAddress> bases_;
};

// As the kernel would name it; `mapped` is how a dual-stack socket names an IPv4 peer.
Endpoint kernel_name(const NaiveAddress& address, int port, bool mapped) {
  std::uint8_t bytes[16] = {};
  const std::string bits = mapped && !address.ipv6
                               ? std::string(80, '0') + std::string(16, '1') + address.bits
                               : address.bits;
  for (std::size_t i = 0; i < bits.size(); ++i) {
    bytes[i / 8] = static_cast<std::uint8_t>(bytes[i / 8] * 2 + (bits[i] - '0'));
  }
  sockaddr_storage storage{};
  if (bits.size() == 32) {
    auto* name = reinterpret_cast<sockaddr_in*>(&storage);
    name->sin_family = AF_INET;
    name->sin_port = htons(static_cast<std::uint16_t>(port));
    std::memcpy(&name->sin_addr, bytes, 4);
  } else {
    auto* name = reinterpret_cast<sockaddr_in6*>(&storage);
    name->sin6_family = AF_INET6;
    name->sin6_port = htons(static_cast<std::uint16_t>(port));
    std::memcpy(&name->sin6_addr, bytes, 16);
  }
  Endpoint endpoint;
  const auto* name = reinterpret_cast<const sockaddr*>(&storage);
  EXPECT_TRUE(Endpoint::from_sockaddr(name, sizeof storage, endpoint));
  return endpoint;
}

TEST(Oracle, DecidesRandomConnectionsAsTheNaiveOracleDoes) {
  Random random(test_seed());
  int matched = 0;
  int later_rule = 0;
  for (int round = 0; round < kPolicies; ++round) {
    World world(random);
    std::vector<NaiveRule> rules(1 + random.below(6));
    for (NaiveRule& rule : rules) {
      rule = world.rule();
    }
    const std::string text = toml(rules);
    const auto policy = must_load(text);
    for (int i = 0; i < kQuestionsEach; ++i) {
      const Question question = world.question();
      std::string expected;
      for (std::size_t rule = 0; rule < rules.size() && expected.empty(); ++rule) {
        expected = naive_match(rules[rule], question) ? std::to_string(rule) : "";
      }
      matched += expected.empty() ? 0 : 1;
      later_rule += expected.empty() || expected == "0" ? 0 : 1;

      const Role role = question.connecting ? Role::kConnect : Role::kAccept;
      const Endpoint local = kernel_name(NaiveAddress{false, std::string(32, '1')},
                                         question.local_port, random.one_in(2));
      for (const bool mapped : {false, true}) {
        const Endpoint remote = kernel_name(question.remote_address, question.remote_port, mapped);
        const Settings* settings = policy->match(role, question.program, local, remote);
        const Explanation explanation = policy->explain(role, question.program, local, remote);
        ASSERT_EQ(settings == nullptr ? "" : settings->name, expected)
            << text << "remote " << written(question.remote_address) << " ports "
            << question.local_port << " -> " << question.remote_port << " program "
            << question.program << (question.connecting ? " connect" : " accept");
        ASSERT_EQ(explanation.decision, settings);
        // Each rule that explain() says does not match, does not; the reasons are complete.
        for (const Consideration& step : explanation.considered) {
          ASSERT_EQ(step.matches(), naive_match(rules[step.rule->index], question)) << text;
        }
      }
    }
  }
  // The comparison means something only if both answers occur often.
  const int questions = kPolicies * kQuestionsEach;
  EXPECT_GT(matched, questions / 20);
  EXPECT_LT(matched, questions * 19 / 20);
  EXPECT_GT(later_rule, questions / 100);
  RecordProperty("matched", matched);
}

}  // namespace
}  // namespace ringroad::policy
