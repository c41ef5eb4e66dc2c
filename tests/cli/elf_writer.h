// ELF files of any content, for tests of what reads them.
#pragma once

#include <elf.h>

#include <functional>
#include <string>
#include <vector>

#include "cli/elf_file.h"

namespace ringroad::cli {

struct ElfContent {
  Elf64_Half type = ET_DYN;
  std::string interpreter;
  std::string soname;
  std::string rpath;
  std::string runpath;
  std::vector<std::string> needed;
  std::vector<std::string> defines;
  std::vector<VersionNeed> needs;  // those of one file one after the other
  bool weak = false;               // the needs are ones that may be missing
};

// The tables of a file, to be damaged before they are written.
struct ElfTables {
  Elf64_Ehdr header{};
  std::vector<Elf64_Phdr> segments;  // PT_LOAD, PT_INTERP if any, PT_DYNAMIC
  std::vector<Elf64_Dyn> dynamic;
};

// The bytes of such a file for this machine. It can be read, not run.
std::string write_elf(const ElfContent& content,
                      const std::function<void(ElfTables&)>& damage = {});

}  // namespace ringroad::cli
