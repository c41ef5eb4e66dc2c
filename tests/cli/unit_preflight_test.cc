// `ringroad run --check --unit NAME`, with a systemctl that says what the test wants.

#include "cli/unit_preflight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/cli/elf_writer.h"
#include "tests/cli/support.h"

namespace ringroad::cli {
namespace {

using testing::HasSubstr;

class UnitPreflight : public testing::Test {
 protected:
  UnitPreflight() {
    ElfContent content;
    content.interpreter = "/lib/ld-musl-x86_64.so.1";
    write_file(musl_, write_elf(content), 0755);
    write_file(static_, elf_file(false), 0755);
    write_file(folder_.file("library.so"), write_elf({}));
  }

  static std::string command(const std::string& path) {
    return "{ path=" + path + " ; argv[]=" + path + " --path=/x { ; ignore_errors=no ; pid=0 }\n";
  }
  void systemctl_says(const std::string& text, int status = 0) {
    std::filesystem::create_directories(folder_.file("bin"));
    write_file(folder_.file("said"), text);
    write_file(folder_.file("bin/systemctl"),
               "#!/bin/sh\ncat " + folder_.file("said") + "\nexit " + std::to_string(status) + "\n",
               0755);
  }
  Result check() {
    return ringroad({"run", "--check", "--library", folder_.file("library.so"), "--unit", "db",
                     "--environment-file", file_},
                    {"PATH=" + folder_.file("bin") + ":/usr/bin:/bin"});
  }
  std::string written() const {
    std::ifstream file(file_);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const TempFolder folder_;
  const std::string musl_ = folder_.file("musl");
  const std::string static_ = folder_.file("static");
  const std::string file_ = folder_.file("run/db.env");
};

TEST_F(UnitPreflight, AUnitWhoseProgramCannotTakeTheLibraryIsStartedWithoutIt) {
  systemctl_says("LoadState=loaded\nExecStart=" + command(musl_));
  const Result result = check();
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.out, HasSubstr("db is started without the library, on TCP: " + musl_ +
                                    " is linked against musl"));
  EXPECT_EQ(result.out.find('\n'), result.out.size() - 1) << "one line";
  EXPECT_EQ(written(), "LD_PRELOAD=\"\"\n");
}

TEST_F(UnitPreflight, AUnitWhoseProgramCanTakeItKeepsItsEnvironment) {
  std::filesystem::create_directories(folder_.file("run"));
  write_file(file_, "LD_PRELOAD=\"\"\n");
  systemctl_says("LoadState=loaded\nExecStart=" + command("/bin/sh"));
  const Result result = check();
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("db is preloaded: /bin/sh"));
  EXPECT_FALSE(std::filesystem::exists(file_));
}

TEST_F(UnitPreflight, OtherLibrariesStay) {
  systemctl_says("LoadState=loaded\nEnvironment=A=1 LD_PRELOAD=/no.so "
                 "LD_PRELOAD=/usr/lib/libringroad.so:/jemalloc.so MY_LD_PRELOAD=/other.so B=2\n"
                 "ExecStart=" +
                 command(musl_));
  EXPECT_EQ(check().status, 1);
  EXPECT_EQ(written(), "LD_PRELOAD=\"/jemalloc.so\"\n");
}

// What a unit's file, its drop-ins and the files that they read say, in systemd's order.
TEST_F(UnitPreflight, WhatTheUnitPreloadsItselfStaysAndTheLibraryIsAdded) {
  const std::string unit = folder_.file("db.service");
  const std::string early = folder_.file("10-malloc.conf");
  const std::string ours = folder_.file("50-ringroad.conf");
  const std::string late = folder_.file("60-mine.conf");
  const std::string defaults = folder_.file("default");
  const std::string library = folder_.file("library.so");
  const auto service = [](const std::string& preload) { return "[Service]\nEnvironment=" + preload + "\n"; };
  write_file(unit, "[Unit]\nEnvironment=LD_PRELOAD=/not.so\n"
                   "[Service]\nEnvironment=A=1 \\\n  LD_PRELOAD=/unit.so\n");
  write_file(early, service("\"LD_PRELOAD=/lib jemalloc.so\""));
  write_file(ours, service("LD_PRELOAD=" + library));
  write_file(late, service("B=2"));
  write_file(defaults, "# LD_PRELOAD=/no.so\nLD_PRELOAD='/tcmalloc.so'\n");
  const auto written_with = [&](const std::string& files, const std::string& read) {
    systemctl_says("LoadState=loaded\nFragmentPath=" + unit + "\nDropInPaths=" + files +
                   "\nEnvironmentFiles=" + read + " (ignore_errors=yes)\nEnvironmentFiles=" + file_ +
                   " (ignore_errors=yes)\nEnvironment=LD_PRELOAD=" + library +
                   "\nExecStart=" + command("/bin/sh"));
    EXPECT_EQ(check().status, 0);
    return written();
  };
  EXPECT_EQ(written_with(ours, "/none"), "LD_PRELOAD=\"/unit.so:" + library + "\"\n");
  EXPECT_EQ(written_with(early + " " + ours + " " + late, "/none"),
            "LD_PRELOAD=\"/lib:jemalloc.so:" + library + "\"\n");
  EXPECT_EQ(written_with(ours, defaults), "LD_PRELOAD=\"/tcmalloc.so:" + library + "\"\n");
  // A later drop-in has the last word, whatever it says.
  write_file(late, service("LD_PRELOAD=/other.so"));
  EXPECT_EQ(written_with(ours + " " + late, "/none"), "");
  // As a file has it before all of them.
  EXPECT_EQ(written_with(ours + " " + late, defaults), "LD_PRELOAD=\"/tcmalloc.so:" + library + "\"\n");
  write_file(defaults, "LD_PRELOAD=\"" + library + ":/tcmalloc.so\"\n");
  EXPECT_EQ(written_with(ours, defaults), "") << "it names the library";
  write_file(early, service(""));
  EXPECT_EQ(written_with(early + " " + ours, "/none"), "") << "an empty Environment= forgets all";
}

// As systemd does, by glob(3): the last file in the order of bytes has the last word.
TEST_F(UnitPreflight, APatternOfEnvironmentFilesMeansEachFileThatFits) {
  const std::string ours = folder_.file("library.so");
  for (const char* name : {"a9.env", "a10.env", ".a99.env", "b1.env"}) {
    write_file(folder_.file(name), "LD_PRELOAD=/" + std::string(name) + ".so\n");
  }
  const auto written_for = [&](const std::string& pattern) {
    systemctl_says("LoadState=loaded\nEnvironmentFiles=" + pattern + " (ignore_errors=yes)\nExecStart=" +
                   command("/bin/sh"));
    EXPECT_EQ(check().status, 0);
    return written();
  };
  EXPECT_EQ(written_for(folder_.file("a*.env")), "LD_PRELOAD=\"/a9.env.so:" + ours + "\"\n");
  EXPECT_EQ(written_for(folder_.file("[ab]?.env")), "LD_PRELOAD=\"/b1.env.so:" + ours + "\"\n");
  EXPECT_EQ(written_for(folder_.file("*99.env")), "") << "it does not mean hidden files";
  std::string by_folder = folder_.path();
  by_folder.back() = '?';
  EXPECT_EQ(written_for(by_folder + "/a10.env"), "LD_PRELOAD=\"/a10.env.so:" + ours + "\"\n");
}

TEST_F(UnitPreflight, WhatIsPreloadedBesidesIsTold) {
  const std::string unit = folder_.file("db.service");
  write_file(unit, "[Service]\nEnvironment=LD_PRELOAD=/jemalloc.so\n");
  systemctl_says("LoadState=loaded\nFragmentPath=" + unit + "\nExecStart=" + command("/bin/sh"));
  EXPECT_THAT(check().out, HasSubstr("db is preloaded besides /jemalloc.so: /bin/sh"));
}

TEST_F(UnitPreflight, AHelperThatWouldBeEndedCountsAndOneThatIsStaticDoesNot) {
  systemctl_says("LoadState=loaded\nExecStartPre=" + command("/bin/true") + "ExecStartPre=" +
                 command(static_) + "ExecStart=" + command("/bin/sh"));
  EXPECT_EQ(check().status, 0);
  systemctl_says("LoadState=loaded\nExecStart=" + command("/bin/sh") + "ExecStop=" +
                 command("/bin/true") + "ExecStop=" + command(musl_));
  const Result result = check();
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.out, HasSubstr(musl_));
}

TEST_F(UnitPreflight, AStaticProgramIsTold) {
  systemctl_says("LoadState=loaded\nExecStart=" + command(static_));
  const Result result = check();
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.out, HasSubstr("linked statically"));
}

TEST_F(UnitPreflight, TheProgramIsLookedForBelowTheUnitsRoot) {
  std::filesystem::create_directories(folder_.file("root/bin"));
  std::filesystem::rename(musl_, folder_.file("root/bin/db"));
  systemctl_says("LoadState=loaded\nRootDirectory=" + folder_.file("root") +
                 "\nExecStart=" + command("/bin/db"));
  EXPECT_EQ(check().status, 1);
}

TEST_F(UnitPreflight, AUnitThatIsNotThereChangesNothing) {
  systemctl_says("LoadState=not-found\n");
  EXPECT_EQ(check().status, 2);
  systemctl_says("", 1);
  const Result result = check();
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, HasSubstr("systemctl show db"));
  EXPECT_FALSE(std::filesystem::exists(file_));
}

TEST_F(UnitPreflight, AFileThatCannotBeWrittenIsTold) {
  systemctl_says("LoadState=loaded\nExecStart=" + command(musl_));
  write_file(folder_.file("run"), "in the way");
  const Result result = check();
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, HasSubstr(file_));
}

TEST(WithoutLibrary, TakesTheLibraryOutOfAnyPlace) {
  const auto without = [](const char* list) { return without_library(list, "/a/x.so"); };
  EXPECT_EQ(without(""), "");
  EXPECT_EQ(without("/a/x.so"), "");
  EXPECT_EQ(without("/a/x.so:/b.so"), "/b.so");
  EXPECT_EQ(without("/b.so /a/x.so :: /c.so"), "/b.so:/c.so");
  EXPECT_EQ(without("/b.so:/other/libringroad.so"), "/b.so");
}

}  // namespace
}  // namespace ringroad::cli
