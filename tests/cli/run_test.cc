// `ringroad run`, as a process.

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "cli/elf_file.h"
#include "cli/rooted_file.h"
#include "tests/cli/elf_writer.h"
#include "tests/cli/support.h"

namespace ringroad::cli {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kGoodPolicy =
    "version = 1\n[[rule]]\nname = \"x\"\nsubnet = [\"10.0.0.0/8\"]\nport = [\"3306\"]\n"
    "via = \"rdma\"\n";

// A library that does no harm when it is preloaded.
std::string harmless_library() {
  Dl_info info{};
  double (*const function)(double) = std::cos;
  EXPECT_NE(dladdr(reinterpret_cast<void*>(function), &info), 0);
  return std::filesystem::canonical(info.dli_fname);
}

class Run : public testing::Test {
 protected:
  Run() { write_file(policy_, kGoodPolicy); }

  Result run(std::vector<std::string> words, const std::vector<std::string>& environment = {}) {
    std::vector<std::string> arguments = {"run", "--library", library_, "--policy", policy_};
    arguments.insert(arguments.end(), words.begin(), words.end());
    return ringroad(arguments, environment);
  }

  // The value that the program finds in its environment.
  std::string variable(const std::string& name, std::vector<std::string> options,
                       const std::vector<std::string>& environment = {}) {
    options.insert(options.end(), {"--", "sh", "-c", "printf %s \"${" + name + "-unset}\""});
    return run(options, environment).out;
  }

  const TempFolder folder_;
  const std::string library_ = harmless_library();
  const std::string policy_ = folder_.file("policy.toml");
};

TEST_F(Run, TheProgramGetsTheLibraryAndThePolicy) {
  EXPECT_EQ(variable("LD_PRELOAD", {}), library_);
  EXPECT_EQ(variable("RINGROAD_POLICY", {}), policy_);
}

TEST_F(Run, WhatIsPreloadedAlreadyStaysBehindTheLibrary) {
  const std::string other = folder_.file("other.so");
  std::filesystem::copy(library_, other);
  // The address sanitizer wants to be the first library of the command itself.
  EXPECT_EQ(variable("LD_PRELOAD", {},
                     {"LD_PRELOAD=" + other, "ASAN_OPTIONS=verify_asan_link_order=0"}),
            library_ + ":" + other);
}

TEST_F(Run, AnotherBuildOfTheLibraryIsNotPreloadedBesideIt) {
  const std::string other = folder_.file("libringroad.so");
  std::filesystem::copy(library_, other);
  EXPECT_EQ(variable("LD_PRELOAD", {},
                     {"LD_PRELOAD=" + other, "ASAN_OPTIONS=verify_asan_link_order=0"}),
            library_);
}

TEST_F(Run, APathIsMadeAbsoluteBeforeTheProgramMayChangeItsFolder) {
  const std::string relative = std::filesystem::relative(policy_);
  ASSERT_NE(relative.front(), '/');
  EXPECT_EQ(variable("RINGROAD_POLICY", {"--policy", relative}), policy_);
  const Result inherited = ringroad(
      {"run", "--library", library_, "--", "sh", "-c", "printf %s \"$RINGROAD_POLICY\""},
      {"RINGROAD_POLICY=" + relative});
  EXPECT_EQ(inherited.out, policy_);
  EXPECT_EQ(variable("RINGROAD_LOG", {"--log", "./x.log"}),
            (std::filesystem::current_path() / "x.log").string());
}

TEST_F(Run, TheLogGoesToStderrAtLevelWarnUnlessToldOtherwise) {
  EXPECT_EQ(variable("RINGROAD_LOG", {}), "stderr");
  EXPECT_EQ(variable("RINGROAD_LOG_LEVEL", {}), "warn");
  EXPECT_EQ(variable("RINGROAD_LOG", {}, {"RINGROAD_LOG=syslog"}), "syslog");
  EXPECT_EQ(variable("RINGROAD_LOG_LEVEL", {}, {"RINGROAD_LOG_LEVEL=info"}), "info");
  EXPECT_EQ(variable("RINGROAD_LOG", {"--log", "off"}, {"RINGROAD_LOG=syslog"}), "off");
  EXPECT_EQ(variable("RINGROAD_LOG_LEVEL", {"--log-level", "debug"}, {"RINGROAD_LOG_LEVEL=info"}),
            "debug");
}

TEST_F(Run, DisableSwitchesTheLibraryOff) {
  EXPECT_EQ(variable("RINGROAD_DISABLE", {}), "unset");
  EXPECT_EQ(variable("RINGROAD_DISABLE", {"--disable"}), "1");
}

TEST_F(Run, TheProgramGetsItsArgumentsUntouchedAndGivesTheStatus) {
  const Result result =
      run({"--", "sh", "-c", "printf '%s|' \"$@\"; exit 7", "name", "--policy", "--", "-x", "",
           "[a,b]", "--help", "two words"});
  EXPECT_EQ(result.out, "--policy|--|-x||[a,b]|--help|two words|");
  EXPECT_EQ(result.status, 7);
}

TEST_F(Run, TheMarkBeforeTheProgramMayBeLeftOut) {
  const Result result = run({"--disable", "--log=off", "sh", "-c", "echo \"$1 $RINGROAD_LOG\"", "x",
                             "--log"});
  EXPECT_EQ(result.out, "--log off\n");
  EXPECT_EQ(result.status, 0) << result.err;
}

TEST_F(Run, TheProgramReplacesTheCommand) {
  const Result result = run({"--", "sh", "-c", "kill -KILL $$"});
  EXPECT_EQ(result.status, -1);
}

TEST_F(Run, NothingStartsUnderARefusedPolicy) {
  write_file(policy_, "version = 1\n[[rule]]\nname = \"x\"\nsubnt = []\n");
  const Result result = run({"--", "echo", "started"});
  EXPECT_EQ(result.status, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr(policy_ + ":4:"));
  EXPECT_THAT(result.err, HasSubstr("nothing was started"));
}

TEST_F(Run, NothingStartsWhenThePolicyIsNotThere) {
  const Result result = run({"--policy", folder_.file("absent.toml"), "--", "echo", "started"});
  EXPECT_EQ(result.status, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("absent.toml"));
}

TEST_F(Run, APolicyWithoutRulesIsWarnedOf) {
  write_file(policy_, "version = 1\n");
  const Result result = run({"--", "echo", "started"});
  EXPECT_EQ(result.out, "started\n");
  EXPECT_THAT(result.err, HasSubstr("warning: the policy has no rule"));
}

TEST_F(Run, AProgramThatIsNotThereGives127) {
  const Result result = run({"--", "no-such-program-anywhere"});
  EXPECT_EQ(result.status, 127);
  EXPECT_THAT(result.err, HasSubstr("no-such-program-anywhere: no such program"));
  EXPECT_EQ(run({"--", folder_.file("absent")}).status, 127);
}

TEST_F(Run, AProgramThatCannotBeRunGives126) {
  const Result result = run({"--", policy_});
  EXPECT_EQ(result.status, 126);
  EXPECT_THAT(result.err, HasSubstr("not an executable file"));
  EXPECT_EQ(run({"--", folder_.path()}).status, 126);
}

TEST_F(Run, AnInterpreterThatIsNotThereIsNamed) {
  write_file(folder_.file("script"), "#!/no/such/shell -e\n", 0755);
  write_file(folder_.file("crlf"), "#!/bin/sh\r\nexit 0\r\n", 0755);
  const std::string why = "its interpreter \"/no/such/shell\": No such file or directory\n";
  for (const std::vector<std::string>& mark : {std::vector<std::string>{"--"}, {"--check", "--"}}) {
    const auto run_marked = [&](const char* name) {
      std::vector<std::string> words = mark;
      words.push_back(folder_.file(name));
      return run(words);
    };
    EXPECT_EQ(run_marked("script").status, 127);
    EXPECT_THAT(run_marked("script").err, HasSubstr(folder_.file("script") + ": " + why));
    EXPECT_THAT(run_marked("crlf").err,
                HasSubstr("\"/bin/sh?\": No such file or directory (its lines end in CR LF"));
  }
}

TEST_F(Run, ALogThatCannotBeWrittenIsWarnedOf) {
  const std::string lost = folder_.file("absent/log");
  const std::string warning = "warning: the log is lost: " + lost + ": No such file or directory";
  const Result named = run({"--log", lost, "--", "echo", "started"});
  EXPECT_EQ(named.out, "started\n");
  EXPECT_THAT(named.err, HasSubstr(warning));
  write_file(policy_, "log = \"" + lost + "\"\n" + kGoodPolicy);
  EXPECT_THAT(run({"--", "true"}).err, HasSubstr(warning));
  EXPECT_THAT(run({"--log", folder_.path() + "/", "--", "true"}).err, HasSubstr("Is a directory"));
  EXPECT_EQ(run({"--log", folder_.file("log"), "--", "true"}).err, "");
  EXPECT_FALSE(std::filesystem::exists(folder_.file("log"))) << "the program may become another user";
}

TEST_F(Run, AStaticProgramIsWarnedOf) {
  write_file(folder_.file("static"), elf_file(false), 0755);
  EXPECT_THAT(run({"--", folder_.file("static")}).err, HasSubstr("warning: "));
  EXPECT_THAT(run({"--", "true"}).err, Not(HasSubstr("warning: ")));
}

// A library that needs a version that no glibc has.
std::string newer_library(const std::string& of, const std::string& file) {
  std::ifstream stream(of, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(stream), {}};
  const RootedFile elf = Root().open(of);
  std::string version;
  for (const VersionNeed& need : read_elf(elf.fd).needs) {
    if (need.file == "libc.so.6" && need.version.starts_with("GLIBC_2.")) version = need.version;
  }
  std::string newer = version;
  newer[newer.find('.') - 1] = '9';
  const auto hash = [](const std::string& text) {  // of the System V ABI
    std::uint32_t h = 0;
    for (const char c : text) {
      h = (h << 4) + static_cast<unsigned char>(c);
      h = (h ^ ((h & 0xf0000000U) >> 24)) & ~0xf0000000U;
    }
    return std::string(reinterpret_cast<const char*>(&h), sizeof h);
  };
  for (const auto& [from, to] : {std::pair(version + '\0', newer + '\0'),
                                 std::pair(hash(version), hash(newer))}) {
    for (std::size_t at = 0; (at = bytes.find(from, at)) != std::string::npos; ++at) {
      bytes.replace(at, to.size(), to);
    }
  }
  write_file(file, bytes, 0755);
  return newer;
}

TEST_F(Run, AProgramWhoseGlibcIsTooOldIsStartedWithoutTheLibrary) {
  const std::string newer = folder_.file("newer.so");
  const std::string version = newer_library(library_, newer);
  const Result fatal = run({"--", "env", "LD_PRELOAD=" + newer, "sh", "-c", "echo started"});
  EXPECT_EQ(fatal.out, "") << "the loader ends a program";
  const Result result =
      run({"--library", newer, "--", "sh", "-c", "echo started ${LD_PRELOAD-unset}; exit 7"});
  EXPECT_EQ(result.out, "started unset\n");
  EXPECT_EQ(result.status, 7);
  EXPECT_THAT(result.err, ContainsRegex("/libc[^/ ]* without " + version));
  EXPECT_THAT(result.err, HasSubstr("is started without the library, on TCP; what helps: "));
  EXPECT_EQ(result.err.find('\n'), result.err.size() - 1) << "one line";
}

TEST_F(Run, WhatElseIsPreloadedStaysWhereTheLibraryIsLeftOut) {
  const std::string newer = folder_.file("newer.so");
  newer_library(library_, newer);
  const Result result =
      run({"--library", library_, "--", "env", "LD_PRELOAD=" + library_, RINGROAD_COMMAND, "run",
           "--library", newer, "--policy", policy_, "sh", "-c", "echo $LD_PRELOAD"},
          {"ASAN_OPTIONS=verify_asan_link_order=0"});
  EXPECT_EQ(result.out, library_ + "\n") << result.err;
}

TEST_F(Run, AProgramOfMuslIsStartedWithoutTheLibrary) {
  // A shell that asks for its loader by musl's name, in the current folder.
  const RootedFile shell = Root().open("/bin/sh");
  const std::string loader = read_elf(shell.fd).interpreter;
  const std::string other = "./ld-musl.so.1";
  std::ifstream stream("/bin/sh", std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(stream), {}};
  bytes.replace(bytes.find(loader + '\0'), other.size() + 1, other + '\0');
  write_file(folder_.file("shell"), bytes, 0755);
  std::filesystem::copy(loader, folder_.file(other));
  std::filesystem::permissions(folder_.file(other), std::filesystem::perms(0755));
  write_file(folder_.file("script"), "#!./shell\necho started ${LD_PRELOAD-unset}\n", 0755);
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder_.path());
  const Result result = run({"./script"});
  std::filesystem::current_path(before);
  EXPECT_EQ(result.out, "started unset\n") << result.err;
  EXPECT_THAT(result.err, HasSubstr("./script: ./shell is linked against musl"));
}

TEST_F(Run, ATextWithoutInterpreterIsJudgedByTheShellThatRunsIt) {
  const std::string newer = folder_.file("newer.so");
  newer_library(library_, newer);
  write_file(folder_.file("text"), "echo started ${LD_PRELOAD-unset}\n", 0755);
  EXPECT_EQ(run({"--library", newer, "--", folder_.file("text")}).out, "started unset\n");
}

TEST_F(Run, ACheckStartsNothingAndTellsTheVerdict) {
  const Result good = run({"--check", "--", "sh", "-c", "echo started"});
  EXPECT_EQ(good.status, 0) << good.err;
  EXPECT_THAT(good.out, HasSubstr("/sh would be preloaded"));
  const std::string newer = folder_.file("newer.so");
  newer_library(library_, newer);
  const Result old = run({"--check", "--library", newer, "sh"});
  EXPECT_EQ(old.status, 1);
  EXPECT_THAT(old.out, HasSubstr("would not be preloaded: it would find "));
  EXPECT_EQ(run({"--check", "absent-program"}).status, 127);
  EXPECT_EQ(run({"--check"}).status, 2);
  EXPECT_EQ(run({"--check", "--unit", "x", "sh"}).status, 2);
  EXPECT_EQ(run({"--root", "/", "sh"}).status, 2);
  EXPECT_EQ(run({"--check", "--root", "/", "--unit", "x"}).status, 2);
}

TEST_F(Run, ACheckBelowARootLooksThere) {
  std::filesystem::create_directories(folder_.file("root/bin"));
  ElfContent content;
  content.interpreter = "/lib/ld-musl-x86_64.so.1";
  write_file(folder_.file("root/bin/tool"), write_elf(content), 0755);
  std::filesystem::create_symlink("/bin/tool", folder_.file("root/bin/link"));
  const Result result = run({"--check", "--root", folder_.file("root"), "--", "link"});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.out, HasSubstr("/bin/link would not be preloaded: it is linked against musl"));
  const std::string own = "/proc/" + std::to_string(getpid()) + "/root";
  EXPECT_EQ(run({"--check", "--root", own, "--", "sh"}).status, 0);
}

TEST_F(Run, WrongArgumentsStartNothing) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"--bogus", "echo", "started"},
        {"--log", "nowhere", "--", "echo", "started"},
        {"--log-level", "loud", "--", "echo", "started"},
        {"--library", folder_.file("absent.so"), "--", "echo", "started"},
        {"--"},
        {}}) {
    const Result result = run(words);
    EXPECT_EQ(result.status, 2) << testing::PrintToString(words);
    EXPECT_EQ(result.out, "") << testing::PrintToString(words);
    EXPECT_NE(result.err, "") << testing::PrintToString(words);
  }
}

TEST_F(Run, AMissingLibraryNamesTheRemedy) {
  // Beside a copy of the command there is no library.
  const std::string copy = folder_.file("ringroad");
  std::filesystem::copy(RINGROAD_COMMAND, copy);
  const Result result = run({"--", "env", "-u", "LD_PRELOAD", copy, "run", "--policy", policy_, "--",
                             "echo", "started"});
  EXPECT_EQ(result.status, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("or name it with --library"));
}

TEST_F(Run, TheLibraryBesideTheCommandIsTaken) {
  std::filesystem::create_directories(folder_.file("bin"));
  std::filesystem::create_directories(folder_.file("lib"));
  std::filesystem::copy(RINGROAD_COMMAND, folder_.file("bin/ringroad"));
  std::filesystem::copy(library_, folder_.file("lib/libringroad.so"));
  const Result result = run({"--", "env", "-u", "LD_PRELOAD", folder_.file("bin/ringroad"), "run",
                             "--policy", policy_, "sh", "-c", "echo $LD_PRELOAD"});
  EXPECT_EQ(result.out, folder_.file("lib/libringroad.so") + "\n") << result.err;
}

}  // namespace
}  // namespace ringroad::cli
