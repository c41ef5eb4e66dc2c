#include "cli/elf_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <climits>
#include <fstream>
#include <iterator>

#include "tests/cli/elf_writer.h"
#include "tests/cli/support.h"

namespace ringroad::cli {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

ElfFile read_path(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  EXPECT_GE(fd, 0) << path;
  ElfFile result = read_elf(fd);
  close(fd);
  return result;
}

ElfFile read_bytes(const std::string& bytes) {
  const int fd = memfd_create("elf", MFD_CLOEXEC);
  EXPECT_EQ(write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  ElfFile result = read_elf(fd);
  close(fd);
  return result;
}

ElfContent usual() {
  ElfContent content;
  content.interpreter = "/lib64/ld-x.so.2";
  content.soname = "libx.so.1";
  content.rpath = "/old";
  content.runpath = "$ORIGIN/../lib";
  content.needed = {"libm.so.6", "libc.so.6"};
  content.defines = {"X_1", "X_2"};
  content.needs = {{"libm.so.6", "GLIBC_2.29"}, {"libc.so.6", "GLIBC_2.4"},
                   {"libc.so.6", "GLIBC_2.17"}};
  return content;
}

void expect_usual(const ElfFile& elf) {
  EXPECT_TRUE(elf.is_elf && elf.own_machine && elf.has_interpreter && elf.position_independent);
  EXPECT_EQ(elf.interpreter, "/lib64/ld-x.so.2");
  EXPECT_EQ(elf.soname, "libx.so.1");
  EXPECT_EQ(elf.rpath, "/old");
  EXPECT_EQ(elf.runpath, "$ORIGIN/../lib");
  EXPECT_THAT(elf.needed, ElementsAre("libm.so.6", "libc.so.6"));
  EXPECT_THAT(elf.defines, ElementsAre("X_1", "X_2"));
  ASSERT_EQ(elf.needs.size(), 3U);
  EXPECT_EQ(elf.needs[0].file + elf.needs[0].version, "libm.so.6GLIBC_2.29");
  EXPECT_EQ(elf.needs[2].file + elf.needs[2].version, "libc.so.6GLIBC_2.17");
}

TEST(ElfFile, OfThisTestIsReadAsTheLinkerMadeIt) {
  const ElfFile elf = read_path("/proc/self/exe");
  EXPECT_TRUE(elf.is_elf && elf.own_machine && elf.has_interpreter);
  EXPECT_THAT(elf.interpreter, HasSubstr("/ld-linux"));
  EXPECT_THAT(elf.needed, Contains("libc.so.6"));
  EXPECT_THAT(elf.needs, Contains(Field(&VersionNeed::version, HasSubstr("GLIBC_2."))));
  EXPECT_FALSE(elf.go);
}

TEST(ElfFile, OfTheLoaderDefinesItsVersions) {
  const ElfFile loader = read_path(read_path("/proc/self/exe").interpreter);
  EXPECT_THAT(loader.defines, Contains("GLIBC_PRIVATE"));
  EXPECT_THAT(loader.soname, HasSubstr("ld-linux"));
  EXPECT_FALSE(loader.has_interpreter);
}

TEST(ElfFile, TellsAllThatItsTablesName) { expect_usual(read_bytes(write_elf(usual()))); }

TEST(ElfFile, WeakNeedsAreNoNeeds) {
  ElfContent content = usual();
  content.weak = true;
  EXPECT_THAT(read_bytes(write_elf(content)).needs, IsEmpty());
}

TEST(ElfFile, WithoutDynamicSegmentIsStatic) {
  const ElfFile elf = read_bytes(elf_file(false));
  EXPECT_TRUE(elf.is_elf && elf.own_machine);
  EXPECT_FALSE(elf.has_interpreter);
  EXPECT_THAT(elf.needed, IsEmpty());
}

TEST(ElfFile, OfAnotherMachineOrWordSizeIsReadNoFurther) {
  const std::string machine =
      write_elf(usual(), [](ElfTables& tables) { tables.header.e_machine = EM_NONE; });
  const std::string word = write_elf(
      usual(), [](ElfTables& tables) { tables.header.e_ident[EI_CLASS] = ELFCLASS32; });
  for (const std::string& bytes : {machine, word}) {
    const ElfFile elf = read_bytes(bytes);
    EXPECT_TRUE(elf.is_elf);
    EXPECT_FALSE(elf.own_machine || elf.has_interpreter);
    EXPECT_THAT(elf.needed, IsEmpty());
  }
}

TEST(ElfFile, ThatEndsAnywhereIsReadUpToThere) {
  const std::string whole = write_elf(usual());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const ElfFile elf = read_bytes(whole.substr(0, size));
    EXPECT_EQ(elf.is_elf, size >= sizeof(Elf64_Ehdr));
    EXPECT_LE(elf.needs.size(), 3U);
  }
}

TEST(ElfFile, WithAnyByteChangedIsReadToAnEnd) {
  const std::string whole = write_elf(usual());
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(~bytes[at]);
    const ElfFile elf = read_bytes(bytes);
    EXPECT_LE(elf.needs.size(), 4096U);
  }
}

TEST(ElfFile, OffsetsBeyondEveryFileAreNone) {
  for (const std::uint64_t far : {~0ULL, ~0ULL - 3, 1ULL << 63, (1ULL << 63) - 8, 1ULL << 62}) {
    expect_usual(read_bytes(write_elf(usual())));
    EXPECT_FALSE(read_bytes(write_elf(usual(), [&](ElfTables& tables) {
                   tables.header.e_phoff = far;
                 })).has_interpreter);
    EXPECT_EQ(read_bytes(write_elf(usual(), [&](ElfTables& tables) {
                tables.segments[1].p_offset = far;
              })).interpreter,
              "");
    EXPECT_THAT(read_bytes(write_elf(usual(), [&](ElfTables& tables) {
                  tables.segments[2].p_offset = far;
                })).needed,
                IsEmpty());
    EXPECT_THAT(read_bytes(write_elf(usual(), [&](ElfTables& tables) {
                  for (Elf64_Dyn& entry : tables.dynamic) {
                    if (entry.d_tag != DT_STRTAB) entry.d_un.d_val = far;
                  }
                })).defines,
                IsEmpty());
    EXPECT_THAT(read_bytes(write_elf(usual(), [&](ElfTables& tables) {
                  tables.segments[0].p_vaddr = far;
                  tables.segments[0].p_filesz = ~0ULL;
                })).defines,
                IsEmpty());
  }
}

TEST(ElfFile, CountsBeyondEverySenseAreCut) {
  expect_usual(read_bytes(write_elf(usual(), [](ElfTables& tables) {
    tables.header.e_phnum = 0xffff;
    tables.segments[2].p_filesz = ~0ULL;
  })));
  const ElfFile elf = read_bytes(write_elf(usual(), [](ElfTables& tables) {
    tables.segments[1].p_filesz = PATH_MAX + 1;
  }));
  EXPECT_TRUE(elf.has_interpreter);
  EXPECT_EQ(elf.interpreter, "");
}

TEST(ElfFile, WithEndlessVersionsTellsTheFirstOnly) {
  ElfContent content;
  content.defines.assign(20'000, "X_1");
  content.needs.assign(20'000, {"libc.so.6", "GLIBC_2.4"});
  const ElfFile elf = read_bytes(write_elf(content));
  EXPECT_GT(elf.defines.size(), 1000U);
  EXPECT_LT(elf.defines.size() + elf.needs.size(), 5000U);
}

TEST(ElfFile, ANameWithoutEndIsNone) {
  ElfContent content;
  content.soname = std::string(PATH_MAX + 300, 'x');
  content.needed = {std::string(1000, 'y')};
  const ElfFile elf = read_bytes(write_elf(content));
  EXPECT_EQ(elf.soname, "");
  EXPECT_THAT(elf.needed, ElementsAre(std::string(1000, 'y')));
}

TEST(ElfFile, ThatCannotBeReadIsNone) { EXPECT_FALSE(read_elf(-1).is_elf); }

TEST(Version, IsOrderedByItsNumbers) {
  EXPECT_TRUE(version_less("GLIBC_2.9", "GLIBC_2.17"));
  EXPECT_TRUE(version_less("GLIBC_2.2.5", "GLIBC_2.3"));
  EXPECT_TRUE(version_less("", "GLIBC_2.2.5"));
  EXPECT_FALSE(version_less("GLIBC_2.17", "GLIBC_2.17"));
  EXPECT_FALSE(version_less("GLIBC_2.36", "GLIBC_2.4"));
}

}  // namespace
}  // namespace ringroad::cli
