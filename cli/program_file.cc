#include "cli/program_file.h"

#include <elf.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string_view>

namespace ringroad::cli {
namespace {

// As the kernel: a script's interpreter may be a script, but not for ever.
constexpr int kScriptDepth = 5;
constexpr std::size_t kScriptLineBytes = 256;

template <typename T>
bool read_at(std::ifstream& file, std::uint64_t offset, T& out) {
  file.clear();
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(reinterpret_cast<char*>(&out), sizeof out);
  return static_cast<std::size_t>(file.gcount()) == sizeof out;
}

bool read_header(std::ifstream& file, Elf64_Ehdr& out) {
  return read_at(file, 0, out) && std::memcmp(out.e_ident, ELFMAG, SELFMAG) == 0;
}

bool is_executable_file(const std::string& path) noexcept {
  struct stat status;
  if (stat(path.c_str(), &status) != 0) return false;
  if (S_ISREG(status.st_mode) && access(path.c_str(), X_OK) == 0) return true;
  errno = EACCES;
  return false;
}

}  // namespace

ElfFacts inspect_elf(const std::string& path) {
  ElfFacts facts;
  std::ifstream file(path, std::ios::binary);
  Elf64_Ehdr header;
  if (!read_header(file, header)) return facts;
  facts.is_elf = true;
  // This command is of the machine that the library is of.
  std::ifstream own_file("/proc/self/exe", std::ios::binary);
  Elf64_Ehdr own;
  facts.own_machine = read_header(own_file, own) && header.e_machine == own.e_machine &&
                      header.e_ident[EI_CLASS] == own.e_ident[EI_CLASS] &&
                      header.e_ident[EI_DATA] == own.e_ident[EI_DATA];
  // Beyond the identification, other word sizes are laid out differently.
  if (!facts.own_machine || header.e_phentsize != sizeof(Elf64_Phdr)) return facts;
  facts.position_independent = header.e_type == ET_DYN;
  for (std::uint64_t i = 0; i < header.e_phnum && !facts.has_interpreter; ++i) {
    Elf64_Phdr segment;
    if (!read_at(file, header.e_phoff + i * sizeof segment, segment)) break;
    facts.has_interpreter = segment.p_type == PT_INTERP;
  }
  return facts;
}

std::string script_interpreter(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string line(kScriptLineBytes, '\0');
  file.read(line.data(), static_cast<std::streamsize>(line.size()));
  line.resize(static_cast<std::size_t>(file.gcount()));
  if (!line.starts_with("#!")) return {};
  line = line.substr(2, line.find('\n') - 2);
  const std::size_t begin = line.find_first_not_of(" \t");
  if (begin == std::string::npos) return {};
  return line.substr(begin, line.find_first_of(" \t", begin) - begin);
}

std::string find_program(const std::string& name, int& error) {
  error = 0;
  if (name.find('/') != std::string::npos) {
    if (is_executable_file(name)) return name;
    error = errno == EACCES ? EACCES : ENOENT;
    return {};
  }
  error = ENOENT;
  if (name.empty()) return {};
  const char* variable = std::getenv("PATH");
  std::string_view rest = variable != nullptr ? variable : "/bin:/usr/bin";
  for (bool more = true; more;) {
    const std::size_t colon = rest.find(':');
    const std::string_view folder = rest.substr(0, colon);
    more = colon != std::string_view::npos;
    rest.remove_prefix(more ? colon + 1 : rest.size());
    const std::string candidate =
        (folder.empty() ? "." : std::string(folder)) + "/" + name;  // empty: the current folder
    if (is_executable_file(candidate)) {
      error = 0;
      return candidate;
    }
    if (errno == EACCES) error = EACCES;
  }
  return {};
}

std::string preload_obstacle(const std::string& path) {
  std::string file = path;
  for (int depth = 0; depth < kScriptDepth; ++depth) {
    const std::string interpreter = script_interpreter(file);
    if (interpreter.empty()) break;
    file = interpreter;
  }
  const ElfFacts facts = inspect_elf(file);
  if (facts.is_elf && !facts.own_machine) {
    return file + " is a program of another machine or word size: it runs on TCP";
  }
  if (facts.is_elf && !facts.has_interpreter) {
    return file + " is statically linked: it has no loader that could preload a library, and runs "
                  "on TCP";
  }
  struct stat status;
  if (stat(file.c_str(), &status) != 0) return {};
  const bool other_user = (status.st_mode & S_ISUID) != 0 && status.st_uid != getuid();
  const bool other_group = (status.st_mode & S_ISGID) != 0 && status.st_gid != getgid();
  const bool gains_capabilities =
      getuid() != 0 && getxattr(file.c_str(), "security.capability", nullptr, 0) > 0;
  if (other_user || other_group || gains_capabilities) {
    return file + (gains_capabilities ? " has file capabilities" : " is setuid or setgid") +
           ": the loader drops the preloaded library, and it runs on TCP. Start it as the user "
           "that it changes to";
  }
  return {};
}

}  // namespace ringroad::cli
