// `ringroad doctor` as a process.

#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/doctor/support.h"

namespace ringroad::cli::doctor {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

Result doctor(std::vector<std::string> words) {
  words.insert(words.begin(), "doctor");
  return ringroad(words);
}

TEST(DoctorCommand, ExitStatusIsTheWorstFindings) {
  EXPECT_EQ(doctor({"--root", testdata("good")}).status, 0);
  EXPECT_EQ(doctor({"--root", testdata("softroce")}).status, 3);
  EXPECT_EQ(doctor({"--root", testdata("bad"), "--only", "mtu"}).status, 4);
  EXPECT_EQ(doctor({"--root", testdata("bad")}).status, 5);
}

TEST(DoctorCommand, WrongArgumentsGiveTwo) {
  for (const std::vector<std::string>& words : {std::vector<std::string>{"--only", "nonsense"},
                                                {"--pid", "0"},
                                                {"--pid", "x"},
                                                {"--watch", "-1"},
                                                {"--peer", "a b"},
                                                {"--answer", "0"},
                                                {"--answer", "x"},
                                                {"nonsense"},
                                                {"--root", "/tmp", "--record", "/tmp/x"},
                                                {"--answer", "--peer", "a"},
                                                {"--peer", "a", "--only", "mtu"}}) {
    const Result result = doctor(words);
    EXPECT_EQ(result.status, 2) << testing::PrintToString(words);
    EXPECT_NE(result.err, "") << testing::PrintToString(words);
    EXPECT_EQ(result.out, "") << testing::PrintToString(words);
  }
}

TEST(DoctorCommand, AFolderThatIsNotThereIsAFailureOfItsOwn) {
  const Result result = doctor({"--root", "/no/such"});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("/no/such"));
}

TEST(DoctorCommand, HelpHasExamplesAndExitStatusesAndNoProbes) {
  const Result result = doctor({"--help"});
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.out, testing::AllOf(HasSubstr("Examples:\n"), HasSubstr("Exit status"),
                                         HasSubstr("--answer"), Not(HasSubstr("--probe-"))));
}

TEST(DoctorCommand, ListNamesEveryCheck) {
  const Result text = doctor({"--list"});
  const json list = json::parse(doctor({"--list", "--json"}).out);
  ASSERT_EQ(list.size(), all_checks().size());
  for (const Check& check : all_checks()) EXPECT_THAT(text.out, HasSubstr(check.name));
}

TEST(DoctorCommand, OnlyTakesSeveral) {
  const json report =
      json::parse(doctor({"--root", testdata("good"), "--only", "mtu,port", "--json"}).out);
  std::set<std::string> checks;
  for (const json& finding : report["findings"]) checks.insert(finding["check"]);
  EXPECT_EQ(checks, (std::set<std::string>{"mtu", "port"}));
}

TEST(DoctorCommand, ThisHostIsExaminedWhateverItIs) {
  const Result result = doctor({"--json", "--watch", "0"});
  EXPECT_TRUE(result.status == 0 || (result.status >= 3 && result.status <= 5)) << result.err;
  const json report = json::parse(result.out);
  EXPECT_GE(report["findings"].size(), 10U);
  EXPECT_THAT(result.out, Not(HasSubstr("the check failed")));
}

TEST(DoctorCommand, ARecordOfThisHostIsExaminedLikeIt) {
  const TempFolder folder;
  const std::string policy = folder.file("p.toml");
  write_file(policy,
             "version = 1\n[[rule]]\nsubnet = \"10.9.0.0/16\"\nvia = \"rdma\"\n"
             "key_file = \"" +
                 folder.file("key") + "\"\n");
  write_file(folder.file("key"), "0123456789abcdef0123456789abcdef", 0600);
  const std::string root = folder.file("tree");
  // What does not change from one moment to the next.
  const std::string only = "device,modules,access,memlock,fork,port,gid,listener,governor";
  const Result live =
      doctor({"--record", root, "--policy", policy, "--only", only, "--json", "--watch", "0"});
  EXPECT_THAT(live.err, HasSubstr("recorded in " + root));
  const Result again = doctor({"--root", root, "--only", only, "--json"});
  EXPECT_EQ(again.out, live.out);
  EXPECT_EQ(again.status, live.status);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    if (!entry.is_regular_file()) continue;
    RecordedHost host("");
    EXPECT_THAT(host.text(entry.path()), Not(HasSubstr("0123456789abcdef"))) << entry.path();
    EXPECT_THAT(host.text(entry.path()), Not(HasSubstr(folder.file("key")))) << entry.path();
  }
  EXPECT_EQ(doctor({"--record", root}).status, 1);  // it is there already
}

TEST(DoctorCommand, AnAnswererWithoutAnRdmaRuleAnswersNobody) {
  const TempFolder folder;
  write_file(folder.file("p.toml"), "version = 1\n");
  const Result result = doctor({"--answer", "--policy", folder.file("p.toml")});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("no RDMA rule"));
}

TEST(DoctorCommand, WithoutStandardOutputTellsThatItCannotWrite) {
  const std::string command = RINGROAD_COMMAND;
  const Result result =
      ringroad({"run", "--disable", "--library", "/proc/self/exe", "--", "sh", "-c",
                command + " doctor --root " + testdata("good") + " >&- <&-"});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("cannot write the output"));
}

TEST(DoctorCommand, ClosedDescriptorsAreNotTakenForItsCommands) {
  const TempFolder folder;
  const std::string root = folder.file("tree");
  const std::string command = RINGROAD_COMMAND;
  ringroad({"run", "--disable", "--library", "/proc/self/exe", "--", "sh", "-c",
            command + " doctor --only access --record " + root + " >&- <&-"});
  RecordedHost host(root);
  EXPECT_EQ(host.run({"id", "-u"}).out, std::to_string(getuid()));
}

TEST(DoctorCommand, LinesFitATerminalAndAreWholeInAPipe) {
  const std::string whole = doctor({"--root", testdata("bad")}).out;
  winsize size{};
  size.ws_col = 60;
  size.ws_row = 24;
  int terminal = -1;
  const pid_t pid = forkpty(&terminal, nullptr, nullptr, &size);
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    const std::string root = testdata("bad");
    execl(RINGROAD_COMMAND, "ringroad", "doctor", "--root", root.c_str(), nullptr);
    _exit(99);
  }
  std::string shown;
  char part[4096];
  for (ssize_t n; (n = read(terminal, part, sizeof part)) > 0;) {
    shown.append(part, static_cast<std::size_t>(n));
  }
  close(terminal);
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 5);
  EXPECT_GT(std::count(shown.begin(), shown.end(), '\n'),
            std::count(whole.begin(), whole.end(), '\n'));
  EXPECT_THAT(whole, HasSubstr("which costs time at registration"));
}

}  // namespace
}  // namespace ringroad::cli::doctor
