#include "cli/doctor/program_facts.h"

#include <elf.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/program_file.h"

namespace ringroad::cli::doctor {
namespace {

using nlohmann::json;

constexpr int kScriptDepth = 5;  // as the kernel
constexpr std::size_t kMostNames = 1U << 20;

bool read_bytes(std::ifstream& file, std::uint64_t offset, void* out, std::size_t size) {
  if (offset > INT64_MAX) return false;
  file.clear();
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(static_cast<char*>(out), static_cast<std::streamsize>(size));
  return static_cast<std::size_t>(file.gcount()) == size;
}

std::string loader_of(std::ifstream& file, const Elf64_Ehdr& header) {
  for (std::uint64_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    if (!read_bytes(file, header.e_phoff + i * sizeof segment, &segment, sizeof segment)) break;
    if (segment.p_type != PT_INTERP || segment.p_filesz > PATH_MAX) continue;
    std::string name(segment.p_filesz, '\0');
    if (!read_bytes(file, segment.p_offset, name.data(), name.size())) break;
    return name.c_str();
  }
  return {};
}

// The Go linker leaves these sections also in stripped programs.
bool made_by_go(std::ifstream& file, const Elf64_Ehdr& header) {
  if (header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shstrndx >= header.e_shnum) return false;
  Elf64_Shdr section;
  const auto at = [&](std::uint64_t index) {
    return read_bytes(file, header.e_shoff + index * sizeof section, &section, sizeof section);
  };
  if (!at(header.e_shstrndx) || section.sh_size > kMostNames) return false;
  std::string names(section.sh_size, '\0');
  if (!read_bytes(file, section.sh_offset, names.data(), names.size())) return false;
  for (std::uint64_t i = 0; i < header.e_shnum && at(i); ++i) {
    if (section.sh_name >= names.size()) continue;
    const std::string name = names.c_str() + section.sh_name;
    if (name == ".go.buildinfo" || name == ".note.go.buildid" || name == ".gopclntab") return true;
  }
  return false;
}

}  // namespace

ProgramFacts inspect_program(const std::string& path) {
  ProgramFacts facts;
  facts.file = find_program(path, facts.error);
  if (facts.error != 0) return facts;
  for (int depth = 0; depth < kScriptDepth; ++depth) {
    const std::string interpreter = script_interpreter(facts.file);
    if (interpreter.empty()) break;
    facts.file = interpreter;
  }
  struct stat status;
  if (stat(facts.file.c_str(), &status) != 0) {
    facts.error = errno;
    return facts;
  }
  facts.set_user = (status.st_mode & S_ISUID) != 0;
  facts.set_group = (status.st_mode & S_ISGID) != 0;
  facts.owner = status.st_uid;
  facts.group = status.st_gid;
  facts.capabilities = getxattr(facts.file.c_str(), "security.capability", nullptr, 0) > 0;
  const ElfFacts elf = inspect_elf(facts.file);
  facts.is_elf = elf.is_elf;
  facts.own_machine = elf.own_machine;
  std::ifstream file(facts.file, std::ios::binary);
  Elf64_Ehdr header;
  if (!file) {
    facts.error = EACCES;
  } else if (elf.own_machine && read_bytes(file, 0, &header, sizeof header)) {
    if (elf.has_interpreter) facts.loader = loader_of(file, header);
    facts.go = made_by_go(file, header);
  }
  return facts;
}

std::string to_text(const ProgramFacts& facts) {
  return json({{"error", facts.error},
               {"file", facts.file},
               {"is_elf", facts.is_elf},
               {"own_machine", facts.own_machine},
               {"loader", facts.loader},
               {"go", facts.go},
               {"set_user", facts.set_user},
               {"set_group", facts.set_group},
               {"capabilities", facts.capabilities},
               {"owner", facts.owner},
               {"group", facts.group}})
             .dump(2, ' ', false, json::error_handler_t::replace) +
         "\n";
}

ProgramFacts program_facts_from_text(const std::string& text) {
  ProgramFacts facts;
  try {
    const json object = json::parse(text);
    facts.error = object.value("error", 0);
    facts.file = object.value("file", std::string());
    facts.is_elf = object.value("is_elf", false);
    facts.own_machine = object.value("own_machine", false);
    facts.loader = object.value("loader", std::string());
    facts.go = object.value("go", false);
    facts.set_user = object.value("set_user", false);
    facts.set_group = object.value("set_group", false);
    facts.capabilities = object.value("capabilities", false);
    facts.owner = object.value("owner", 0U);
    facts.group = object.value("group", 0U);
  } catch (const json::exception&) {
    facts = {};
    facts.error = EINVAL;
  }
  return facts;
}

}  // namespace ringroad::cli::doctor
