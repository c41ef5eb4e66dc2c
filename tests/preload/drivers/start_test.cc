// The start of a process: unmodified programs do not notice that the library is there.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "cli/segment_reader.h"
#include "tests/preload/drivers/scenario_run.h"

namespace ringroad::test {
namespace {

constexpr int kTimeoutMs = 20'000;

struct Said {
  int status = -1;
  std::string out;
  std::string err;
  bool operator==(const Said&) const = default;
};

std::ostream& operator<<(std::ostream& stream, const Said& said) {
  return stream << "status " << said.status << "\n" << said.out << "\n" << said.err;
}

Said run(const std::vector<std::string>& argv, const std::vector<std::string>& changes) {
  Program program(argv, environment_with(changes));
  Said said;
  said.status = program.finish(kTimeoutMs);
  said.out = program.out();
  said.err = program.err();
  return said;
}

std::string read_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class StartTest : public testing::Test {
 protected:
  std::vector<std::string> preloaded(std::vector<std::string> more = {}) const {
    more.push_back("LD_PRELOAD=" RINGROAD_LIBRARY);
    more.push_back("RINGROAD_RUNTIME_DIR=" + segments_);
    return more;
  }
  std::vector<std::string> with_policy(std::vector<std::string> more = {}) const {
    more.push_back("RINGROAD_POLICY=" + policy_);
    return preloaded(std::move(more));
  }

  TemporaryDirectory directory_;
  std::string policy_ = directory_.write("policy.toml", policy_from_the_first_byte());
  std::string segments_ = directory_.path() + "/run";
  std::string log_ = directory_.path() + "/log";
};

class ProgramStartTest : public StartTest,
                         public testing::WithParamInterface<std::vector<std::string>> {};

TEST_P(ProgramStartTest, SaysTheSameWithAndWithoutTheLibrary) {
  const std::vector<std::string>& argv = GetParam();
  const Said plain = run(argv, {});
  if (plain.status == 127) GTEST_SKIP() << argv[0] << " is not installed";
  EXPECT_EQ(plain, run(argv, with_policy()));
}

INSTANTIATE_TEST_SUITE_P(
    Programs, ProgramStartTest,
    testing::Values(
        std::vector<std::string>{"bash", "-c", "echo hi; exec 7</dev/null; (exit 3) | cat; exit 4"},
        std::vector<std::string>{"python3", "-c",
                                 "import socket, subprocess, select\n"
                                 "print(subprocess.run(['echo', 'child'], capture_output=True))\n"
                                 "a, b = socket.socketpair()\n"
                                 "a.sendall(b'x'); print(b.recv(5), select.select([b], [], [], 0))\n"},
        std::vector<std::string>{"ssh", "-V"}, std::vector<std::string>{"ping", "-V"},
        std::vector<std::string>{"mariadbd", "--no-defaults", "--version"},
        std::vector<std::string>{"ls", "/"}, std::vector<std::string>{"sh", "-c", "kill -9 $$"}),
    [](const testing::TestParamInfo<std::vector<std::string>>& test) {
      return test.param[0] + "_" + std::to_string(test.index);
    });

TEST_F(StartTest, AConstructorThatRunsBeforeOursMayUseSockets) {
  const std::vector<std::string> programs = {RINGROAD_SCENARIOS, "--list"};
  const Said plain = run(programs, {"LD_PRELOAD=" RINGROAD_EARLY, "EARLY_CONSTRUCTOR=1"});
  ASSERT_EQ(plain.out.rfind("early: good\n", 0), 0U) << plain;
  for (const char* order : {RINGROAD_LIBRARY ":" RINGROAD_EARLY, RINGROAD_EARLY ":" RINGROAD_LIBRARY}) {
    std::vector<std::string> environment = {std::string("LD_PRELOAD=") + order,
                                            "EARLY_CONSTRUCTOR=1", "RINGROAD_POLICY=" + policy_,
                                            "RINGROAD_RUNTIME_DIR=" + segments_};
    EXPECT_EQ(plain, run(programs, environment)) << order;
  }
}

// An echo over the library, or not: what did its processes publish?
struct Echo {
  // `wrapper`: a command that both are the arguments of.
  Echo(const std::vector<std::string>& changes, const std::string& segments,
       const std::vector<std::string>& wrapper = {})
      : server(wrapped(wrapper, {RINGROAD_ECHO, "serve"}), environment_with(changes)) {
    if (!server.wait_for(".\n", kTimeoutMs)) return;
    const std::string port = server.out().substr(5, server.out().find('.') - 5);
    Program client(wrapped(wrapper, {RINGROAD_ECHO, "connect", port}), environment_with(changes));
    client.write("hello\n");
    echoed = client.wait_for("hello\n", kTimeoutMs);
    // Bytes are read by the one before the other has counted them as sent.
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    do {
      snapshot = cli::read_segments(segments);
    } while (!all_counted() && std::chrono::steady_clock::now() < until);
    status = client.finish(kTimeoutMs);
    errors = client.err();
  }
  static std::vector<std::string> wrapped(std::vector<std::string> argv,
                                          const std::vector<std::string>& command) {
    argv.insert(argv.end(), command.begin(), command.end());
    return argv;
  }
  bool all_counted() const {
    std::uint64_t streams = 0;
    std::uint64_t bytes = 0;
    for (const cli::ProcessReport& process : snapshot.processes) {
      const cli::CarrierTraffic totals = process.totals();
      streams += process.streams_opened;
      bytes += totals.tcp.tx_bytes + totals.channel.tx_bytes;
    }
    return streams == 0 || bytes >= 12;  // there and back
  }

  Program server;
  cli::Snapshot snapshot;
  bool echoed = false;
  int status = -1;
  std::string errors;
};

TEST_F(StartTest, APolicyThatLetsTheConnectionOffIsFollowed) {
  const Echo echo(with_policy(), segments_);
  EXPECT_TRUE(echo.echoed);
  ASSERT_EQ(echo.snapshot.processes.size(), 2U);
  for (const cli::ProcessReport& process : echo.snapshot.processes) {
    EXPECT_EQ(process.policy_status, stats::PolicyStatus::kLoaded);
    EXPECT_EQ(process.streams_promoted, 1U);
    EXPECT_EQ(process.totals().channel.tx_bytes, 6U);
  }
}

// How many streams were promoted at both ends of an echo whose policy asks so of its processes.
std::uint64_t promoted_by(const std::string& policy, const std::string& segments,
                          const std::vector<std::string>& wrapper = {}) {
  const Echo echo({"LD_PRELOAD=" RINGROAD_LIBRARY, "RINGROAD_RUNTIME_DIR=" + segments,
                   "RINGROAD_POLICY=" + policy, "RINGROAD_LABELS=tier=db,app=echo"},
                  segments, wrapper);
  EXPECT_TRUE(echo.echoed);
  std::uint64_t promoted = 0;
  for (const cli::ProcessReport& process : echo.snapshot.processes) promoted += process.streams_promoted;
  return promoted;
}

TEST_F(StartTest, ARuleThatAsksForCommOrLabelIsFollowedWhereTheProcessIsSo) {
  const std::string comm = std::filesystem::path(RINGROAD_ECHO).filename().string().substr(0, 15);
  int number = 0;
  for (const auto& [rule, promoted] : std::vector<std::pair<std::string, std::uint64_t>>{
           {"comm = \"" + comm + "\"", 2},
           {"comm = \"another\"", 0},
           {"label = \"app=echo\"", 2},
           {"label = \"app=other\"", 0}}) {
    const std::string policy = directory_.write("asks.toml", read_file(policy_) + rule + "\n");
    EXPECT_EQ(promoted_by(policy, segments_ + std::to_string(++number)), promoted) << rule;
  }
}

// The kernel's file is covered by one of ours, as the test's own cgroup may be the root. /proc is a mount
// also below chroot, where / is none and cannot be made private.
TEST_F(StartTest, ARuleThatAsksForUnitOrCgroupIsFollowedWhereTheProcessIsSo) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to mount over /proc/PID/cgroup";
  const std::string cgroup = directory_.write("cgroup", "1:name=systemd:/\n0::/system.slice/echo.service\n");
  const std::vector<std::string> wrapper = {
      "unshare", "-m", "--propagation", "unchanged", "sh", "-c",
      "mount --make-private /proc && mount --bind " + cgroup + " /proc/$$/cgroup && exec \"$@\"", "sh"};
  int number = 0;
  for (const auto& [rule, promoted] : std::vector<std::pair<std::string, std::uint64_t>>{
           {"unit = \"echo.service\"", 2},
           {"unit = \"other.service\"", 0},
           {"cgroup = \"/system.slice\"", 2},
           {"cgroup = \"/user.slice\"", 0}}) {
    const std::string policy = directory_.write("asks.toml", read_file(policy_) + rule + "\n");
    EXPECT_EQ(promoted_by(policy, segments_ + std::to_string(++number), wrapper), promoted) << rule;
  }
}

TEST_F(StartTest, DisabledItLeavesNoTrace) {
  const Echo echo(with_policy({"RINGROAD_DISABLE=1", "RINGROAD_LOG=" + log_}), segments_);
  EXPECT_TRUE(echo.echoed);
  EXPECT_EQ(echo.status, 0);
  EXPECT_FALSE(std::filesystem::exists(segments_));
  EXPECT_FALSE(std::filesystem::exists(log_));
}

TEST_F(StartTest, ABrokenPolicyIsRefusedAndTheProgramRunsOnTcp) {
  const std::string broken = directory_.write(
      "broken.toml", "version = 1\n[[rule]]\nname = \"x\"\nsubnet = [\"300.0.0.0/8\"]\n");
  const Echo echo(preloaded({"RINGROAD_POLICY=" + broken, "RINGROAD_LOG=" + log_}), segments_);
  EXPECT_TRUE(echo.echoed);
  EXPECT_EQ(echo.status, 0);
  EXPECT_EQ(echo.errors, "");
  ASSERT_EQ(echo.snapshot.processes.size(), 2U);
  for (const cli::ProcessReport& process : echo.snapshot.processes) {
    EXPECT_EQ(process.policy_status, stats::PolicyStatus::kRefused);
    EXPECT_NE(process.policy_detail.find(broken + ":4:"), std::string::npos)
        << process.policy_detail;
    EXPECT_EQ(process.streams_opened, 0U);
  }
  // One line a process.
  const std::string log = read_file(log_);
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 2) << log;
  EXPECT_NE(log.find(broken + ":4:"), std::string::npos) << log;
}

TEST_F(StartTest, APolicyThatIsNotThereIsRefused) {
  const std::string missing = directory_.path() + "/nowhere.toml";
  const Echo echo(preloaded({"RINGROAD_POLICY=" + missing, "RINGROAD_LOG=" + log_}), segments_);
  EXPECT_TRUE(echo.echoed);
  ASSERT_EQ(echo.snapshot.processes.size(), 2U);
  for (const cli::ProcessReport& process : echo.snapshot.processes) {
    EXPECT_EQ(process.policy_status, stats::PolicyStatus::kRefused);
    EXPECT_NE(process.policy_detail.find(missing), std::string::npos) << process.policy_detail;
  }
  const std::string log = read_file(log_);
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 2) << log;
}

TEST_F(StartTest, ALogThatCannotBeWrittenDoesNotMatter) {
  const Echo echo(with_policy({"RINGROAD_LOG=/nonexistent/log", "RINGROAD_LOG_LEVEL=debug"}),
                  segments_);
  EXPECT_TRUE(echo.echoed);
  EXPECT_EQ(echo.status, 0);
  EXPECT_EQ(echo.errors, "");
}

// To write there, that the policy is refused, would be the end of the program, by SIGXFSZ.
TEST_F(StartTest, ALogThatIsAsLongAsItsLimitAllowsDoesNotMatter) {
  const std::vector<std::string> echo = {"sh", "-c", "ulimit -f 0; exec " RINGROAD_SCENARIOS " echo"};
  const Said plain = run(echo, {});
  EXPECT_EQ(plain.status, 0);
  EXPECT_EQ(plain, run(echo, preloaded({"RINGROAD_POLICY=/nonexistent/policy", "RINGROAD_LOG=" + log_})));
  EXPECT_EQ(read_file(log_), "");
}

TEST_F(StartTest, ARuntimeDirectoryThatCannotBeMadeIsToldOnceAndDoesNotMatter) {
  // Longer than any that the library has room for.
  const std::string nowhere = directory_.path() + "/absent/" + std::string(200, 'x');
  const Echo echo({"LD_PRELOAD=" RINGROAD_LIBRARY, "RINGROAD_POLICY=" + policy_,
                   "RINGROAD_RUNTIME_DIR=" + nowhere, "RINGROAD_LOG=" + log_},
                  segments_);
  EXPECT_TRUE(echo.echoed);
  EXPECT_EQ(echo.status, 0);
  EXPECT_EQ(echo.errors, "");
  const std::string log = read_file(log_);
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 2) << log;  // one line a process
  const std::string words = "no statistics in " + nowhere + ": No such file or directory; ";
  EXPECT_NE(log.find(words), std::string::npos) << log;
}

TEST_F(StartTest, NothingIsLeftBehindAtTheEnd) {
  {
    Echo echo(with_policy(), segments_);
    EXPECT_TRUE(echo.echoed);
    EXPECT_TRUE(echo.server.wait_for("ended 0.", kTimeoutMs));
  }
  // The client ended by itself; the server was killed and could not tidy up.
  EXPECT_EQ(cli::read_segments(segments_).processes.size(), 1U);
}

}  // namespace
}  // namespace ringroad::test
