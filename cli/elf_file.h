// What an ELF file says about how it is loaded. Every read is bounded: the file may be anybody's.
#pragma once

#include <string>
#include <vector>

namespace ringroad::cli {

// A version of symbols ("GLIBC_2.17") that a file needs of another one ("libc.so.6").
struct VersionNeed {
  std::string file;
  std::string version;
};

// All false and empty for a file of another kind. Of a file for another machine or word size only
// `is_elf` is known. What lies outside of the file or beyond a bound counts as absent.
struct ElfFile {
  bool is_elf = false;
  bool own_machine = false;           // same machine and word size as this command
  bool position_independent = false;  // a shared library, or a program linked like one
  bool has_interpreter = false;       // asks for a dynamic loader
  bool go = false;                    // made by the Go compiler
  std::string interpreter;            // the loader's path
  std::string soname;
  std::string rpath;    // DT_RPATH
  std::string runpath;  // DT_RUNPATH
  std::vector<std::string> needed;   // DT_NEEDED
  std::vector<std::string> defines;  // versions of symbols
  std::vector<VersionNeed> needs;    // without those that the loader lets pass
};

// `fd`: open for reading, seekable; its position stays. -1: a file that cannot be read.
ElfFile read_elf(int fd);

// "GLIBC_2.9" is before "GLIBC_2.17".
bool version_less(const std::string& a, const std::string& b) noexcept;

}  // namespace ringroad::cli
