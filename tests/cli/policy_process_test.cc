// `ringroad policy explain --pid`: what decides for a running process.

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <link.h>
#include <sched.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/process_identity.h"
#include "tests/cli/support.h"

namespace ringroad::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

// sleep(1) under a name of its own, with this environment only.
class Sleeper {
 public:
  explicit Sleeper(std::vector<std::string> environment) {
    std::vector<std::string> words = {"/srv/db-server", "600"};
    const auto pointers = [](std::vector<std::string>& texts) {
      std::vector<char*> result;
      for (std::string& text : texts) result.push_back(text.data());
      result.push_back(nullptr);
      return result;
    };
    posix_spawn(&pid_, "/bin/sleep", nullptr, nullptr, pointers(words).data(), pointers(environment).data());
    while (!sleeps()) sched_yield();  // its libraries are mapped then
  }
  ~Sleeper() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;
  std::string pid() const { return std::to_string(pid_); }

 private:
  bool sleeps() const {
    std::ifstream file("/proc/" + pid() + "/stat");
    std::string text;
    std::getline(file, text);
    return !file || text.find(") S ") != std::string::npos;
  }

  pid_t pid_ = -1;
};

constexpr const char* kProcessPolicy = R"(version = 1

[[rule]]
name = "other"
subnet = "10.9.0.0/16"
comm = "mysqld"

[[rule]]
name = "named"
subnet = "10.9.0.0/16"
program = "db-*"
comm = "sleep"
port = 3306
via = "shm"

[[rule]]
name = "labelled"
subnet = "10.9.0.0/16"
label = "app=db"
via = "shm"
)";

class ExplainProcess : public testing::Test {
 protected:
  ExplainProcess() {
    write_file(policy_, kProcessPolicy);
    // Any library does: what counts is its file's name.
    void* const some = dlopen("libm.so.6", RTLD_LAZY);
    link_map* map = nullptr;
    EXPECT_EQ(dlinfo(some, RTLD_DI_LINKMAP, &map), 0);
    std::filesystem::copy_file(map->l_name, library_);
    dlclose(some);
  }

  std::vector<std::string> environment(std::vector<std::string> more = {}) const {
    more.push_back("LD_PRELOAD=" + library_);
    more.push_back("RINGROAD_POLICY=" + policy_);
    return more;
  }
  static Result explain(const Sleeper& process, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"policy", "explain", "--pid", process.pid()});
    return ringroad(more);
  }

  TempFolder folder_;
  const std::string policy_ = folder_.file("policy.toml");
  const std::string library_ = folder_.file("libringroad.so");
};

TEST_F(ExplainProcess, SaysWhatTheProcessIsAndWhichRulesAreForIt) {
  const Sleeper sleeper(environment({"RINGROAD_LABELS=tier=1"}));
  const Result said = explain(sleeper);
  EXPECT_EQ(said.status, 0) << said.err;
  EXPECT_THAT(said.out, HasSubstr("process " + sleeper.pid() + "\n    file           /"));
  EXPECT_THAT(said.out, HasSubstr("    argv[0]        /srv/db-server\n    comm           sleep\n"));
  EXPECT_THAT(said.out, HasSubstr("    labels         tier=1\n    policy         " + policy_ +
                                  "\n    library        " + library_ + "\n"));
  EXPECT_THAT(said.out, HasSubstr("rule 1 \"other\" (" + policy_ +
                                  ":3) is not for this process\n"
                                  "    comm           comm \"sleep\" is not like \"mysqld\"\n"));
  EXPECT_THAT(said.out, HasSubstr("rule 2 \"named\" (" + policy_ +
                                  ":8) is for this process\n"
                                  "    program        its argv[0] \"db-server\" is like \"db-*\"\n"));
  EXPECT_THAT(said.out, HasSubstr(":16) is not for this process\n"
                                  "    label          none of the labels \"tier=1\" is like \"app=db\"\n"));
  EXPECT_TRUE(said.out.ends_with(
      "decision: by the ends of a connection, in 1 rule: give LOCAL, REMOTE and --role\n"))
      << said.out;
}

TEST_F(ExplainProcess, LetsNoProcessSteerTheTerminal) {
  const Sleeper sleeper(environment({"RINGROAD_LABELS=a\n\x1b[31m\xff=1"}));
  const Result said = explain(sleeper);
  EXPECT_THAT(said.out, HasSubstr("    labels         a??[31m?=1\n"));
  EXPECT_THAT(said.out, HasSubstr("none of the labels \"a??[31m?=1\" is like"));
}

TEST_F(ExplainProcess, DecidesForAConnectionByTheProcessPolicyOrAnother) {
  const Sleeper sleeper(environment({"RINGROAD_LABELS=app=db"}));
  const Result own = explain(sleeper, {"--role", "connect", "10.9.0.1:40000", "10.9.1.1:3306"});
  EXPECT_EQ(own.status, 0) << own.err;
  EXPECT_THAT(own.out, HasSubstr("decision: shm, by rule \"named\""));
  EXPECT_THAT(explain(sleeper, {"--role", "connect", "10.9.0.1:40000", "10.9.1.1:3307"}).out,
              HasSubstr("decision: shm, by rule \"labelled\""));
  write_file(folder_.file("tcp.toml"), "version = 1\n");
  const Result other =
      explain(sleeper, {folder_.file("tcp.toml"), "10.9.0.1:40000", "10.9.1.1:3306", "--role", "connect"});
  EXPECT_EQ(other.status, 1);
  EXPECT_THAT(other.out, HasSubstr("decision: tcp, because no rule matches"));
}

TEST_F(ExplainProcess, StaysOnTcpWithoutTheLibraryOrWhereItIsDisabled) {
  const Sleeper without({"RINGROAD_POLICY=" + policy_});
  const Result said = explain(without);
  EXPECT_EQ(said.status, 1);
  EXPECT_TRUE(said.out.ends_with("it stays on TCP, because the library is not loaded\n")) << said.out;
  const Sleeper disabled(environment({"RINGROAD_DISABLE=1"}));
  EXPECT_EQ(explain(disabled).status, 1);
  EXPECT_THAT(explain(disabled).out, HasSubstr("because RINGROAD_DISABLE is set in its environment"));
}

TEST_F(ExplainProcess, PrintsJson) {
  const Sleeper sleeper(environment({"RINGROAD_LABELS=app=db"}));
  const auto said = nlohmann::json::parse(explain(sleeper, {"--json"}).out);
  EXPECT_EQ(said["process"]["comm"], "sleep");
  EXPECT_EQ(said["process"]["labels"], "app=db");
  EXPECT_EQ(said["process"]["left_alone"], "");
  EXPECT_EQ(said["considered"][1]["matches"], true);
  const auto one = nlohmann::json::parse(
      explain(sleeper, {"--json", "--role", "connect", "10.9.0.1:1", "10.9.1.1:3306"}).out);
  EXPECT_EQ(one["decision"], "shm");
  EXPECT_EQ(one["process"]["argv0"], "/srv/db-server");
}

TEST_F(ExplainProcess, RefusesWhatItCannotUse) {
  const Sleeper sleeper(environment());
  EXPECT_EQ(explain(sleeper, {"--comm", "a"}).err,
            "ringroad policy explain: --pid tells the program, its comm, cgroup and labels\n");
  EXPECT_THAT(explain(sleeper, {"--role", "connect"}).err, HasSubstr("is not an address and port"));
  const std::string ended = std::to_string(ended_pid());
  const Result gone = ringroad({"policy", "explain", "--pid", ended});
  EXPECT_EQ(gone.status, 2);
  EXPECT_EQ(gone.err, "ringroad policy explain: there is no process " + ended + ", or /proc hides it\n");
}

TEST_F(ExplainProcess, GivesTheFactsOfAProgramThatDoesNotRun) {
  const auto explained = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"policy", "explain", policy_, "--program", "x", "--role", "connect",
                               "10.9.0.1:1", "10.9.1.1:2"});
    return ringroad(more).out;
  };
  EXPECT_THAT(explained({}), HasSubstr("the comm is not known"));
  EXPECT_THAT(explained({"--comm", "mysqld"}), HasSubstr("by rule \"other\""));
  EXPECT_THAT(explained({"--labels", "app=db"}), HasSubstr("by rule \"labelled\""));
}

// A process in a cgroup namespace of its own calls the cgroup in which that was made "/".
TEST(ProcessIdentity, HasTheCgroupThatTheProcessSees) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    const char is_apart = unshare(CLONE_NEWCGROUP) == 0 ? 'y' : 'n';
    if (write(ready[1], &is_apart, 1) == 1) pause();
    _exit(0);
  }
  char is_apart = '?';
  EXPECT_EQ(read(ready[0], &is_apart, 1), 1);
  const std::string here = identify(getpid()).cgroup;
  const std::string there = identify(pid).cgroup;
  EXPECT_EQ(identify(getpid()).cgroup, here);  // this process is where it was
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
  if (is_apart != 'y') GTEST_SKIP() << "no cgroup namespace can be made here";
  EXPECT_EQ(there, "/");
  if (here == "/") std::cout << "the same as here: this process is in the root of the cgroups\n";
}

}  // namespace
}  // namespace ringroad::cli
