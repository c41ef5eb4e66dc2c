// `ringroad policy check` and `ringroad policy explain`, as a person or a script sees them.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cli/support.h"
#include "tests/policy/support.h"

namespace ringroad::cli {
namespace {

using policy::one_rule;

constexpr const char* kPolicy = R"(version = 1

[[rule]]
name = "galera"
subnet = "10.9.0.0/16"
port = ["4567-4568", "4444"]
program = "mariadbd"

[[rule]]
name = "monitoring"
subnet = "10.9.9.0/24"
via = "tcp"

[[rule]]
name = "clients"
subnet = ["10.9.0.0/16", "fd00::/64"]
port = 3306
via = "rdma"
traffic_class = 106
promote_after = { messages = 1, bytes = "64KiB" }

[[rule]]
name = "local"
subnet = "127.0.0.0/8"
via = "shm"
)";

class PolicyCommand : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) const {
    write_file(folder_.file(name), text);
    return folder_.file(name);
  }

  static Result run(std::vector<std::string> arguments, const std::vector<std::string>& environment = {}) {
    arguments.insert(arguments.begin(), "policy");
    return ringroad(arguments, environment);
  }

  Result explain(const std::string& role, const std::string& local, const std::string& remote,
                 std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {"explain",   file_,      "--role", role,
                                          "--program", "mariadbd", local,    remote};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  }

  TempFolder folder_;
  std::string file_ = write("policy.toml", kPolicy);
};

TEST_F(PolicyCommand, CheckCountsTheRulesOfAValidPolicy) {
  const Result outcome = run({"check", file_});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.out, "ok: 4 rules in 1 file, 0 warnings\n");
  EXPECT_EQ(outcome.err, "");
}

TEST_F(PolicyCommand, CheckReadsSeveralFilesAsOnePolicy) {
  const std::string other = write("other.toml", one_rule("name = \"galera\""));
  const Result outcome = run({"check", file_, other});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.err, other +
                             ":4:8: error: a second rule is named \"galera\" (the first is at " +
                             file_ + ":3; rename one of them)\n");
  EXPECT_EQ(run({"check", other}).status, 0);
  EXPECT_EQ(run({"check", other}).out, "ok: 1 rule in 1 file, 0 warnings\n");
}

TEST_F(PolicyCommand, CheckPrintsWarningsAndStillSucceeds) {
  const std::string warned = write("warned.toml", one_rule("via = \"shm\"\ndevice = \"a\""));
  const Result outcome = run({"check", warned});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.out, "ok: 1 rule in 1 file, 1 warning\n");
  EXPECT_EQ(outcome.err, warned +
                             ":5:1: warning: \"device\" has no effect with via = \"shm\" "
                             "(leave it out)\n");
}

TEST_F(PolicyCommand, CheckPrintsEveryErrorAndFails) {
  const std::string broken = write("broken.toml", one_rule("via = 1\nring = 2"));
  const Result outcome = run({"check", broken});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err, broken +
                             ":4:7: error: \"via\" must be a string, not an integer (write via = "
                             "\"auto\")\n" +
                             broken +
                             ":5:8: error: \"ring\" must be a string, not an integer (write ring = "
                             "\"2B\")\n");
}

TEST_F(PolicyCommand, CheckWithoutAFileReadsWhatTheHostUses) {
  EXPECT_EQ(run({"check"}, {"RINGROAD_POLICY=" + file_}).out, "ok: 4 rules in 1 file, 0 warnings\n");
  const std::string empty = write("empty.toml", "version = 1\n");
  EXPECT_EQ(run({"check"}, {"RINGROAD_POLICY=" + empty}).out,
            "ok: 0 rules in 1 file, 0 warnings; every connection stays on TCP\n");
}

TEST_F(PolicyCommand, CheckPrintsRulesWarningsAndErrorsAsJson) {
  const auto good = nlohmann::json::parse(run({"check", "--json", file_}).out);
  EXPECT_EQ(good["valid"], true);
  EXPECT_EQ(good["files"], nlohmann::json({file_}));
  EXPECT_EQ(good["max_channels"], 1024);
  EXPECT_EQ(good["log"], "");
  EXPECT_EQ(good["warnings"].size(), 0U);
  ASSERT_EQ(good["rules"].size(), 4U);
  EXPECT_EQ(good["rules"][2],
            nlohmann::json::parse(R"({"name": "clients", "number": 3, "line": 14, "via": "rdma",
              "device": null, "traffic_class": 106, "ring_bytes": 262144, "spin_ns": 50000,
              "promote_after": {"messages": 1, "bytes": 65536}, "wait_ns": 0,
              "idle_ns": 60000000000, "detect_ns": 500000000, "key_file": null, "file": ")" +
                                  file_ + "\"}"));

  const std::string broken = write("broken.toml", one_rule("via = 1"));
  const Result outcome = run({"check", "--json", broken});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(nlohmann::json::parse(outcome.out),
            nlohmann::json::parse(R"({"valid": false, "errors": [{"line": 4, "column": 7,
              "message": "\"via\" must be a string, not an integer",
              "remedy": "write via = \"auto\"", "file": ")" +
                                  broken + "\"}]}"));
}

TEST_F(PolicyCommand, ExplainPrintsTheRuleThatDecidesAndWhyTheOthersDoNot) {
  const Result outcome = explain("connect", "10.9.0.1:40000", "10.9.1.1:3306");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(outcome.out, "rule 1 \"galera\" (" + file_ + R"(:3) does not match
    port           remote port 3306 is not in 4567-4568, 4444
rule 2 "monitoring" ()" + file_ +
                             R"(:9) does not match
    subnet         remote address 10.9.1.1 is not in 10.9.9.0/24
rule 3 "clients" ()" + file_ +
                             R"(:14) matches
1 rule after it not looked at

decision: rdma, by rule "clients" ()" +
                             file_ + R"(:14)
    device         chosen by route
    traffic_class  106 (DSCP 26, ECN 2)
    detect         500ms
    ring           256KiB
    spin           50us
    promote_after  1 message or 64KiB
    wait           0us
    idle           60s
)");
}

TEST_F(PolicyCommand, ExplainTakesTheRoleAndIpv6IntoAccount) {
  const Result accepted = explain("accept", "[fd00::1]:3306", "[fd00::2]:40000");
  EXPECT_EQ(accepted.status, 0);
  EXPECT_NE(accepted.out.find("decision: rdma, by rule \"clients\""), std::string::npos);
  EXPECT_EQ(explain("connect", "[fd00::1]:3306", "[fd00::2]:40000").status, 1);
}

TEST_F(PolicyCommand, ExplainSaysThatAutoDependsOnThePeer) {
  const Result outcome = explain("connect", "10.9.0.1:40000", "10.9.1.1:4567");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_NE(outcome.out.find("decision: auto (shm if the peer is on this host, else rdma), by "
                             "rule \"galera\""),
            std::string::npos)
      << outcome.out;
}

TEST_F(PolicyCommand, ExplainLeavesOutWhatSharedMemoryDoesNotUse) {
  const Result outcome = explain("connect", "127.0.0.1:40000", "127.0.0.1:3306");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_NE(outcome.out.find("decision: shm"), std::string::npos);
  EXPECT_EQ(outcome.out.find("    device"), std::string::npos);
  EXPECT_NE(outcome.out.find("    ring"), std::string::npos);
}

TEST_F(PolicyCommand, ExplainExitsWithOneWhenTheConnectionStaysOnTcp) {
  const Result none = explain("connect", "10.9.0.1:40000", "192.168.0.1:3306");
  EXPECT_EQ(none.status, 1);
  EXPECT_TRUE(none.out.ends_with("\ndecision: tcp, because no rule matches\n")) << none.out;

  const Result by_rule = explain("connect", "10.9.0.1:40000", "10.9.9.1:3306");
  EXPECT_EQ(by_rule.status, 1);
  EXPECT_TRUE(by_rule.out.ends_with("\ndecision: tcp, by rule \"monitoring\" (" + file_ + ":9)\n"))
      << by_rule.out;
}

TEST_F(PolicyCommand, ExplainPrintsJson) {
  const Result outcome = explain("connect", "10.9.0.1:40000", "10.9.1.1:3306", {"--json"});
  EXPECT_EQ(outcome.status, 0);
  const auto said = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(said["decision"], "rdma");
  EXPECT_EQ(said["rule"]["name"], "clients");
  EXPECT_EQ(said["not_considered"], 1);
  ASSERT_EQ(said["considered"].size(), 3U);
  EXPECT_EQ(said["considered"][0]["matches"], false);
  EXPECT_EQ(said["considered"][0]["mismatches"][0]["key"], "port");
  EXPECT_EQ(said["considered"][0]["mismatches"][0]["reason"],
            "remote port 3306 is not in 4567-4568, 4444");
  EXPECT_EQ(said["considered"][2]["matches"], true);

  const Result none = explain("connect", "10.9.0.1:40000", "192.168.0.1:3306", {"--json"});
  EXPECT_EQ(none.status, 1);
  EXPECT_EQ(nlohmann::json::parse(none.out)["decision"], "tcp");
  EXPECT_TRUE(nlohmann::json::parse(none.out)["rule"].is_null());
}

TEST_F(PolicyCommand, ExplainRefusesArgumentsItCannotUse) {
  const Result bad_role = explain("both", "10.9.0.1:1", "10.9.1.1:2");
  EXPECT_EQ(bad_role.status, 2);
  EXPECT_EQ(bad_role.err, "ringroad policy explain: --role is connect or accept, not \"both\"\n");
  const Result bad_local = explain("connect", "10.9.0.1", "10.9.1.1:2");
  EXPECT_EQ(bad_local.status, 2);
  EXPECT_EQ(bad_local.err,
            "ringroad policy explain: \"10.9.0.1\" is not an address and port (write "
            "10.9.0.1:3306 or [fd00::1]:3306)\n");
  EXPECT_EQ(explain("connect", "10.9.0.1:1", "fd00::1:2").status, 2);
  EXPECT_EQ(run({"explain", file_}).status, 2);
  EXPECT_EQ(run({}).status, 2);
}

TEST_F(PolicyCommand, ExplainRefusesAPolicyWithAnError) {
  file_ = write("broken.toml", "version = 2\n");
  const Result outcome = explain("connect", "10.9.0.1:1", "10.9.1.1:2");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_NE(outcome.err.find("broken.toml:1:11: error: version 2"), std::string::npos);
}

// What follows `open` in the reference, up to the end of that block; empty past the last one.
std::string next_block(const std::string& text, const std::string& open, std::size_t& at) {
  at = text.find(open, at);
  if (at == std::string::npos) {
    return {};
  }
  at += open.size();
  return text.substr(at, text.find("```", at) - at);
}

TEST_F(PolicyCommand, ExplainPrintsWhatTheReferenceShows) {
  std::ifstream file(RINGROAD_POLICY_DOCS);
  const std::string reference{std::istreambuf_iterator<char>(file), {}};
  const std::string prompt = "```\n$ ringroad policy explain policy.toml ";
  int transcripts = 0;
  std::size_t at = 0;
  for (std::string shown = next_block(reference, prompt, at); !shown.empty();
       shown = next_block(reference, prompt, at), ++transcripts) {
    // The command goes on in a second line.
    const std::size_t command_end = shown.find('\n', shown.find("\\\n") + 2);
    std::string command = shown.substr(0, command_end);
    command.replace(command.find("\\\n"), 2, " ");
    std::istringstream words(command);
    std::vector<std::string> arguments{std::istream_iterator<std::string>(words), {}};

    const std::string toml = "```toml\n";
    std::size_t policy_at = reference.rfind(toml, at);
    write("policy.toml", next_block(reference, toml, policy_at));
    const std::filesystem::path before = std::filesystem::current_path();
    std::filesystem::current_path(folder_.path());
    arguments.insert(arguments.begin(), {"explain", "policy.toml"});
    EXPECT_EQ(run(arguments).out, shown.substr(command_end + 1));
    std::filesystem::current_path(before);
  }
  EXPECT_EQ(transcripts, 1);
}

TEST_F(PolicyCommand, HelpDocumentsTheExitStatuses) {
  const Result check = run({"check", "--help"});
  EXPECT_EQ(check.status, 0);
  EXPECT_NE(check.out.find("Exit status:\n  0  valid"), std::string::npos) << check.out;
  const Result explained = run({"explain", "--help"});
  EXPECT_EQ(explained.status, 0);
  EXPECT_NE(explained.out.find("1  the connection stays on TCP"), std::string::npos)
      << explained.out;
}

}  // namespace
}  // namespace ringroad::cli
