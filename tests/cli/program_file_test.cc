#include "cli/program_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "cli/library_file.h"
#include "tests/cli/support.h"

namespace ringroad::cli {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::MatchesRegex;

class ProgramFile : public testing::Test {
 protected:
  std::string program(const std::string& name, const std::string& content, mode_t mode = 0755) {
    write_file(folder_.file(name), content, mode);
    return folder_.file(name);
  }

  const TempFolder folder_;
};

TEST_F(ProgramFile, ThisTestCanBePreloaded) {
  const ElfFacts facts = inspect_elf("/proc/self/exe");
  EXPECT_TRUE(facts.is_elf);
  EXPECT_TRUE(facts.own_machine);
  EXPECT_TRUE(facts.has_interpreter);
  EXPECT_EQ(preload_obstacle("/proc/self/exe"), "");
}

TEST_F(ProgramFile, AStaticProgramCannot) {
  EXPECT_THAT(preload_obstacle(program("static", elf_file(false))),
              HasSubstr(folder_.file("static") + " is statically linked"));
  EXPECT_EQ(preload_obstacle(program("dynamic", elf_file(true))), "");
}

TEST_F(ProgramFile, AStaticPositionIndependentProgramCannotEither) {
  EXPECT_THAT(preload_obstacle(program("pie", elf_file(false, ET_DYN))),
              HasSubstr("is statically linked"));
  EXPECT_EQ(preload_obstacle(program("dynamic-pie", elf_file(true, ET_DYN))), "");
}

TEST_F(ProgramFile, AProgramOfAnotherMachineOrWordSizeCannot) {
  EXPECT_THAT(
      preload_obstacle(program("machine", elf_file(true, ET_EXEC, [](Elf64_Ehdr& header) {
        header.e_machine = EM_NONE;
      }))),
      HasSubstr("another machine"));
  EXPECT_THAT(preload_obstacle(program("word", elf_file(true, ET_EXEC, [](Elf64_Ehdr& header) {
                header.e_ident[EI_CLASS] = ELFCLASS32;
              }))),
              HasSubstr("another machine"));
}

TEST_F(ProgramFile, AScriptIsJudgedByItsInterpreter) {
  const std::string interpreter = program("static", elf_file(false));
  const std::string script = program("script", "#! " + interpreter + " -x\nrest\n");
  EXPECT_EQ(script_interpreter(script), interpreter);
  EXPECT_THAT(preload_obstacle(script), HasSubstr("static is statically linked"));
  EXPECT_THAT(preload_obstacle(program("outer", "#!" + script + "\n")),
              HasSubstr("static is statically linked"));
  EXPECT_EQ(preload_obstacle(program("shell", "#!/bin/sh\n")), "");
}

TEST_F(ProgramFile, AScriptThatNamesItselfEnds) {
  EXPECT_EQ(preload_obstacle(program("loop", "#!" + folder_.file("loop") + "\n")), "");
}

TEST_F(ProgramFile, FilesThatSayNothingAreNotWarnedOf) {
  EXPECT_EQ(preload_obstacle(program("text", "echo hello\n")), "");
  EXPECT_EQ(preload_obstacle(program("empty", "")), "");
  EXPECT_EQ(preload_obstacle(program("hash-bang", "#!")), "");
  EXPECT_EQ(preload_obstacle(folder_.file("absent")), "");
}

TEST_F(ProgramFile, ADamagedElfFileEndsWithTheFile) {
  EXPECT_THAT(preload_obstacle(program("cut", elf_file(true).substr(0, sizeof(Elf64_Ehdr)))),
              HasSubstr("statically linked"));
}

TEST_F(ProgramFile, ASetuidProgramOfAnotherUserCannot) {
  std::string file = "/bin/su";
  if (getuid() == 0) {
    file = program("setuid", elf_file(true));
    ASSERT_EQ(chown(file.c_str(), 65534, getgid()), 0);
    ASSERT_EQ(chmod(file.c_str(), 04755), 0);
  }
  EXPECT_THAT(preload_obstacle(file), HasSubstr(file + " is setuid or setgid"));
}

TEST_F(ProgramFile, ASetuidProgramOfTheSameUserCan) {
  const std::string file = program("setuid", elf_file(true));
  ASSERT_EQ(chmod(file.c_str(), 04755), 0);
  EXPECT_EQ(preload_obstacle(file), "");
}

class FindProgram : public ProgramFile {
 protected:
  FindProgram() : saved_(std::getenv("PATH")) {}
  ~FindProgram() override { setenv("PATH", saved_.c_str(), 1); }

  std::string find(const std::string& name) {
    error_ = -1;
    return find_program(name, error_);
  }

  const std::string saved_;
  int error_ = -1;
};

TEST_F(FindProgram, ANameWithASlashIsThatFile) {
  EXPECT_EQ(find(program("tool", "")), folder_.file("tool"));
  EXPECT_EQ(error_, 0);
  EXPECT_EQ(find(folder_.file("absent")), "");
  EXPECT_EQ(error_, ENOENT);
  EXPECT_EQ(find(program("data", "", 0644)), "");
  EXPECT_EQ(error_, EACCES);
  EXPECT_EQ(find(folder_.path()), "");
  EXPECT_EQ(error_, EACCES);
}

TEST_F(FindProgram, AnotherNameIsSearchedForInPath) {
  ASSERT_EQ(mkdir(folder_.file("a").c_str(), 0755), 0);
  ASSERT_EQ(mkdir(folder_.file("b").c_str(), 0755), 0);
  program("a/tool", "", 0644);
  program("b/tool", "");
  program("a/data", "", 0644);
  setenv("PATH", (folder_.file("absent") + ":" + folder_.file("a") + ":" + folder_.file("b")).c_str(),
         1);
  EXPECT_EQ(find("tool"), folder_.file("b/tool"));
  EXPECT_EQ(error_, 0);
  EXPECT_EQ(find("data"), "");
  EXPECT_EQ(error_, EACCES);
  EXPECT_EQ(find("absent"), "");
  EXPECT_EQ(error_, ENOENT);
  EXPECT_EQ(find(""), "");
  EXPECT_EQ(error_, ENOENT);
}

TEST_F(FindProgram, AnEmptyEntryOfPathIsTheCurrentFolder) {
  program("tool", "");
  setenv("PATH", "/nowhere:", 1);
  ASSERT_EQ(chdir(folder_.path().c_str()), 0);
  EXPECT_EQ(find("tool"), "./tool");
  ASSERT_EQ(chdir("/"), 0);
}

TEST_F(ProgramFile, TheLibraryIsLookedForBesideTheCommandFirst) {
  const auto candidates = library_candidates("/opt/ringroad/bin");
  ASSERT_FALSE(candidates.empty());
  EXPECT_EQ(candidates[0], "/opt/ringroad/lib/libringroad.so");
}

TEST_F(ProgramFile, TheLibraryIsFoundInTheFoldersOfBothKindsOfPackages) {
  const auto candidates = library_candidates("/usr/bin");
  EXPECT_THAT(candidates, Contains("/usr/lib64/ringroad/libringroad.so"));
  EXPECT_THAT(candidates, Contains(MatchesRegex("/usr/lib/[a-z0-9_]+-linux-gnu/ringroad/libringroad.so")));
}

TEST_F(ProgramFile, OnlyASharedLibraryOfThisMachineCanBePreloaded) {
  EXPECT_EQ(library_problem(program("good.so", elf_file(false, ET_DYN), 0644)), "");
  EXPECT_EQ(library_problem(folder_.file("absent.so")), "No such file or directory");
  EXPECT_EQ(library_problem(program("text.so", "text")), "it is not a shared library");
  EXPECT_EQ(library_problem(program("program", elf_file(false))),
            "it is a program, not a shared library");
  EXPECT_EQ(library_problem(program("other.so", elf_file(false, ET_DYN, [](Elf64_Ehdr& header) {
              header.e_machine = EM_NONE;
            }))),
            "it is of another machine or word size");
}

TEST_F(ProgramFile, APathThatLdPreloadCannotHoldIsRefused) {
  EXPECT_THAT(library_problem(program("a b.so", elf_file(false, ET_DYN))), HasSubstr("LD_PRELOAD"));
  EXPECT_THAT(library_problem(program("a:b.so", elf_file(false, ET_DYN))), HasSubstr("LD_PRELOAD"));
}

}  // namespace
}  // namespace ringroad::cli
