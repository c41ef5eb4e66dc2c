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
