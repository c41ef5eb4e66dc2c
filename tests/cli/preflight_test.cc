#include "cli/preflight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "cli/program_file.h"
#include "tests/cli/elf_writer.h"
#include "tests/cli/support.h"

namespace ringroad::cli {
namespace {

using testing::HasSubstr;

constexpr const char* kLoader = "/lib64/ld-x.so.2";

// Below a root of its own there are the loader and the libc of glibc 2.12; the library needs 2.17.
class Preflight : public testing::Test {
 protected:
  Preflight() {
    put("/lib64/ld-2.12.so", loader());
    std::filesystem::create_symlink("/lib64/ld-2.12.so", outside(kLoader));
    put("/usr/lib64/libc.so.6", libc({"GLIBC_2.4", "GLIBC_2.12", "GLIBC_PRIVATE"}));
    put("/usr/bin/p", dynamic());
    write_file(library_, library({{"ld-x.so.2", "GLIBC_2.3"}, {"libc.so.6", "GLIBC_2.4"},
                                  {"libc.so.6", "GLIBC_2.17"}}));
  }

  std::string outside(const std::string& path) const { return folder_.file("root" + path); }
  void put(const std::string& path, const std::string& bytes, mode_t mode = 0755) {
    std::filesystem::create_directories(std::filesystem::path(outside(path)).parent_path());
    std::filesystem::remove(outside(path));
    write_file(outside(path), bytes, mode);
  }
  void new_libc() { put("/usr/lib64/libc.so.6", libc({"GLIBC_2.4", "GLIBC_2.17", "GLIBC_2.28"})); }

  static std::string loader(std::vector<std::string> versions = {"GLIBC_2.3"}) {
    ElfContent content;
    content.soname = "ld-x.so.2";
    content.defines = std::move(versions);
    return write_elf(content);
  }
  static std::string libc(std::vector<std::string> versions) {
    ElfContent content;
    content.soname = "libc.so.6";
    content.defines = std::move(versions);
    return write_elf(content);
  }
  static std::string library(std::vector<VersionNeed> needs) {
    ElfContent content;
    content.needs = std::move(needs);
    return write_elf(content);
  }
  static std::string dynamic(const std::string& loader = kLoader) {
    ElfContent content;
    content.interpreter = loader;
    return write_elf(content);
  }

  ProgramFacts inspect(const std::string& name) const {
    return inspect_program(name, root_, library_);
  }
  Obstacle obstacle(const std::string& name) const { return obstacle_of(inspect(name)); }

  const TempFolder folder_;
  const Root root_{folder_.file("root")};
  const std::string library_ = folder_.file("library.so");
};

TEST_F(Preflight, ThisTestCanBePreloadedWithItsOwnLibc) {
  const ProgramFacts facts = inspect_program("/proc/self/exe", Root(), library_);
  EXPECT_EQ(obstacle_of(facts), Obstacle::kNone);
  EXPECT_THAT(facts.libc, HasSubstr("/libc"));
  EXPECT_FALSE(version_less(facts.libc_version, "GLIBC_2.17"));
  EXPECT_EQ(facts.needed, "GLIBC_2.17");
  EXPECT_EQ(privileges_of(facts), "");
}

TEST_F(Preflight, AnOldGlibcIsToldWithBothVersions) {
  const ProgramFacts facts = inspect("/usr/bin/p");
  EXPECT_EQ(obstacle_of(facts), Obstacle::kOldLibc);
  EXPECT_THAT(reason_of(facts), HasSubstr("/usr/lib64/libc.so.6 without GLIBC_2.17"));
  EXPECT_THAT(reason_of(facts), HasSubstr("GLIBC_2.12"));
  EXPECT_EQ(versions_of(facts),
            "/usr/lib64/libc.so.6 has up to GLIBC_2.12, the library needs GLIBC_2.17");
  EXPECT_TRUE(must_be_left_out(obstacle_of(facts)));
}

TEST_F(Preflight, ANewerGlibcIsNoObstacle) {
  new_libc();
  EXPECT_EQ(obstacle("/usr/bin/p"), Obstacle::kNone);
  EXPECT_EQ(versions_of(inspect("/usr/bin/p")),
            "/usr/lib64/libc.so.6 has up to GLIBC_2.28, the library needs GLIBC_2.17");
}

TEST_F(Preflight, WhatTheLibraryNeedsIsReadFromItsFile) {
  write_file(library_, library({{"libc.so.6", "GLIBC_2.12"}}));
  EXPECT_EQ(obstacle("/usr/bin/p"), Obstacle::kNone);
  write_file(library_, library({{"ld-x.so.2", "GLIBC_2.35"}}));
  EXPECT_EQ(obstacle("/usr/bin/p"), Obstacle::kOldLibc);
  EXPECT_EQ(inspect("/usr/bin/p").lacks_file, kLoader);
  // As the loader, which only complains of a file without versions, such as no glibc has.
  put("/usr/lib64/libother.so.1", write_elf({}));
  write_file(library_, library({{"libother.so.1", "OTHER_1"}, {"libabsent.so.1", "ABSENT_1"}}));
  EXPECT_EQ(obstacle("/usr/bin/p"), Obstacle::kNone);
}

TEST_F(Preflight, TheLibcIsTheOneThatTheLoaderFinds) {
  ElfContent program;
  program.interpreter = kLoader;
  program.runpath = "/nowhere:$ORIGIN/../own";
  put("/usr/bin/bundle", write_elf(program));
  put("/usr/own/libc.so.6", libc({"GLIBC_2.4", "GLIBC_2.17"}));
  EXPECT_EQ(obstacle("/usr/bin/bundle"), Obstacle::kNone);
  EXPECT_EQ(inspect("/usr/bin/bundle").libc, "/usr/own/libc.so.6");
  program.rpath = "/usr/lib64";  // not looked at beside DT_RUNPATH
  put("/usr/bin/bundle", write_elf(program));
  EXPECT_EQ(obstacle("/usr/bin/bundle"), Obstacle::kNone);
  program.runpath.clear();
  put("/usr/bin/bundle", write_elf(program));
  EXPECT_EQ(obstacle("/usr/bin/bundle"), Obstacle::kOldLibc);
  // Beside the loader.
  put("/opt/glibc/ld-x.so.2", loader());
  put("/opt/glibc/libc.so.6", libc({"GLIBC_2.4", "GLIBC_2.17"}));
  put("/usr/bin/apart", dynamic("/opt/glibc/ld-x.so.2"));
  EXPECT_EQ(obstacle("/usr/bin/apart"), Obstacle::kNone);
}

TEST_F(Preflight, ALibcOfAnotherMachineIsPassedOver) {
  put("/lib/libc.so.6", libc({"GLIBC_2.4", "GLIBC_2.17"}));
  put("/lib64/libc.so.6", write_elf({}, [](ElfTables& tables) {
        tables.header.e_ident[EI_CLASS] = ELFCLASS32;
      }));
  EXPECT_EQ(inspect("/usr/bin/p").libc, "/usr/lib64/libc.so.6");
}

TEST_F(Preflight, ALibcThatIsNotFoundSaysNothing) {
  std::filesystem::remove(outside("/usr/lib64/libc.so.6"));
  const ProgramFacts facts = inspect("/usr/bin/p");
  EXPECT_EQ(obstacle_of(facts), Obstacle::kNone);
  EXPECT_EQ(versions_of(facts), "");
}

TEST_F(Preflight, MuslIsToldByTheLoadersNameOrItsVersions) {
  put("/usr/bin/absent", dynamic("/lib/ld-musl-x86_64.so.1"));
  put("/lib/libc.musl.so", loader({}));
  put("/usr/bin/other", dynamic("/lib/libc.musl.so"));
  put("/lib/linker64", loader({"LIBC"}));
  put("/usr/bin/foreign", dynamic("/lib/linker64"));
  for (const char* program : {"/usr/bin/absent", "/usr/bin/other"}) {
    EXPECT_EQ(obstacle(program), Obstacle::kForeignLibc) << program;
    EXPECT_THAT(reason_of(inspect(program)), HasSubstr("linked against musl")) << program;
  }
  EXPECT_THAT(reason_of(inspect("/usr/bin/foreign")), HasSubstr("a libc that is not glibc"));
  EXPECT_TRUE(must_be_left_out(Obstacle::kForeignLibc) && ends_program(Obstacle::kForeignLibc));
}

TEST_F(Preflight, AStaticProgramHasNoLoader) {
  put("/usr/bin/static", elf_file(false));
  put("/usr/bin/static-pie", elf_file(false, ET_DYN));
  for (const char* program : {"/usr/bin/static", "/usr/bin/static-pie"}) {
    EXPECT_EQ(obstacle(program), Obstacle::kStatic) << program;
    EXPECT_THAT(reason_of(inspect(program)), HasSubstr("linked statically")) << program;
  }
  // What it starts may well take the library.
  EXPECT_FALSE(must_be_left_out(Obstacle::kStatic));
}

TEST_F(Preflight, AProgramOfAnotherMachineOrWordSizeIsTold) {
  const auto changed = [](const std::function<void(Elf64_Ehdr&)>& change) {
    return elf_file(true, ET_EXEC, change);
  };
  put("/usr/bin/machine", changed([](Elf64_Ehdr& header) { header.e_machine = EM_NONE; }));
  put("/usr/bin/word", changed([](Elf64_Ehdr& header) { header.e_ident[EI_CLASS] = ELFCLASS32; }));
  EXPECT_EQ(obstacle("/usr/bin/machine"), Obstacle::kOtherMachine);
  EXPECT_EQ(obstacle("/usr/bin/word"), Obstacle::kOtherMachine);
  EXPECT_TRUE(must_be_left_out(Obstacle::kOtherMachine));
  EXPECT_FALSE(ends_program(Obstacle::kOtherMachine));
}

TEST_F(Preflight, ALoaderThatIsStartedByHandIsJudgedAsTheLoaderOfAProgram) {
  EXPECT_EQ(obstacle("/lib64/ld-x.so.2"), Obstacle::kOldLibc);
  put("/lib/ld-musl-x86_64.so.1", loader({}));
  EXPECT_EQ(obstacle("/lib/ld-musl-x86_64.so.1"), Obstacle::kForeignLibc);
}

TEST_F(Preflight, AScriptIsJudgedByItsInterpreterBelowTheRoot) {
  new_libc();
  put("/opt/static", elf_file(false));
  put("/usr/bin/script", "#! /opt/static -x\nrest\n");
  put("/usr/bin/outer", "#!/usr/bin/script\n");
  EXPECT_EQ(obstacle("/usr/bin/script"), Obstacle::kStatic);
  EXPECT_EQ(obstacle("/usr/bin/outer"), Obstacle::kStatic);
  EXPECT_EQ(inspect("/usr/bin/outer").file, "/opt/static");
  put("/usr/bin/fine", "#!/usr/bin/p");
  EXPECT_EQ(obstacle("/usr/bin/fine"), Obstacle::kNone);
  put("/usr/bin/lost", "#!" + outside("/usr/bin/p") + "\n");
  EXPECT_EQ(inspect("/usr/bin/lost").error, ENOENT);
}

TEST_F(Preflight, ScriptsThatNameEachOtherEnd) {
  put("/usr/bin/a", "#!/usr/bin/b\n");
  put("/usr/bin/b", "#!/usr/bin/env a\n");
  put("/usr/bin/env", "#!/usr/bin/a\n");
  EXPECT_EQ(obstacle("/usr/bin/a"), Obstacle::kNone);
  EXPECT_FALSE(inspect("/usr/bin/a").is_elf);
}

TEST_F(Preflight, AScriptOfEnvIsJudgedByTheProgramThatEnvStarts) {
  new_libc();
  put("/usr/bin/env", dynamic());
  put("/usr/local/bin/node", dynamic("/lib/ld-musl-x86_64.so.1"));
  for (const char* line : {"#!/usr/bin/env node\n", "#! /usr/bin/env -S node --x\n",
                           "#!/usr/bin/env -S A=1 B= node\n",
                           "#!/usr/bin/env --split-string=node\n"}) {
    put("/usr/bin/script", line);
    EXPECT_EQ(obstacle("/usr/bin/script"), Obstacle::kForeignLibc) << line;
  }
  for (const char* line : {"#!/usr/bin/env\n", "#!/usr/bin/env absent\n", "#!/usr/bin/env node x\n",
                           "#!/usr/bin/env -S -i node\n", "#!/usr/bin/env A=1\n",
                           "#!/usr/bin/env -S PATH=/opt node\n"}) {
    put("/usr/bin/script", line);
    EXPECT_EQ(obstacle("/usr/bin/script"), Obstacle::kNone) << line;
    EXPECT_EQ(inspect("/usr/bin/script").file, "/usr/bin/env") << line;
  }
}

TEST_F(Preflight, AnEnvThatTheLoaderWouldEndIsTheObstacle) {
  put("/usr/bin/script", "#!/usr/bin/env p\n");
  put("/usr/bin/env", dynamic("/lib/ld-musl-x86_64.so.1"));
  EXPECT_EQ(inspect("/usr/bin/script").file, "/usr/bin/env");
  EXPECT_EQ(obstacle("/usr/bin/script"), Obstacle::kForeignLibc);
  put("/usr/bin/env", elf_file(false));
  EXPECT_EQ(obstacle("/usr/bin/script"), Obstacle::kOldLibc);
}

TEST_F(Preflight, ANameIsLookedForInTheFoldersOfTheRoot) {
  put("/usr/local/bin/p", "data", 0644);
  EXPECT_EQ(inspect("p").file, "/usr/bin/p");
  EXPECT_EQ(inspect("absent").error, ENOENT);
  EXPECT_EQ(inspect("/usr/local/bin/p").error, EACCES);
}

TEST_F(Preflight, FilesThatSayNothingAreNoObstacle) {
  for (const char* text : {"echo hello\n", "", "#!", "#!\n", "\x7f" "ELF"}) {
    put("/usr/bin/text", text);
    EXPECT_EQ(obstacle("/usr/bin/text"), Obstacle::kNone) << text;
  }
}

TEST_F(Preflight, ALibraryThatCannotBeReadLeavesVersionsOut) {
  EXPECT_EQ(obstacle_of(inspect_program("/usr/bin/p", root_, "")), Obstacle::kNone);
  EXPECT_EQ(obstacle_of(inspect_program("/usr/bin/p", root_, folder_.file("absent"))),
            Obstacle::kNone);
}

TEST_F(Preflight, PrivilegesThatAProgramGainsAreTold) {
  std::string file = "/bin/su";
  if (getuid() == 0) {
    file = outside("/usr/bin/p");
    ASSERT_EQ(chown(file.c_str(), 65534, getgid()), 0);
    ASSERT_EQ(chmod(file.c_str(), 04755), 0);
  }
  EXPECT_EQ(privileges_of(inspect_program(file, Root(), library_)), "is setuid or setgid");
}

TEST_F(Preflight, AProgramThatMayNotBeReadTellsItsBitsOnly) {
  const std::string file = outside("/usr/bin/p");
  const bool root = getuid() == 0;  // root reads every file
  ASSERT_TRUE(!root || chown(file.c_str(), 0, 0) == 0);
  ASSERT_EQ(chmod(file.c_str(), 04111), 0);
  ASSERT_TRUE(!root || seteuid(65534) == 0);
  const ProgramFacts facts = inspect_program(file, Root(), library_);
  ASSERT_TRUE(!root || seteuid(0) == 0);
  EXPECT_EQ(facts.error, EACCES);
  EXPECT_TRUE(facts.set_user);
  EXPECT_EQ(obstacle_of(facts), Obstacle::kNone);
}

TEST_F(Preflight, SetuidToTheSameUserGainsNothing) {
  ASSERT_EQ(chmod(outside("/usr/bin/p").c_str(), 04755), 0);
  const ProgramFacts facts = inspect("/usr/bin/p");
  EXPECT_TRUE(facts.set_user);
  EXPECT_EQ(privileges_of(facts), "");
}

}  // namespace
}  // namespace ringroad::cli
