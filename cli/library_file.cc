#include "cli/library_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>

#include "cli/elf_file.h"
#include "cli/rooted_file.h"

namespace ringroad::cli {
namespace {

constexpr const char* kLibraryName = "libringroad.so";

// From the command's folder. One build goes into packages of all kinds.
constexpr const char* kFoldersFromCommand[] = {
    "../lib",                                   // the build, the archive
    "../lib/" RINGROAD_MULTIARCH "/ringroad",   // Debian's packages
    "../lib64/ringroad",                        // RPM packages
    RINGROAD_LIBDIR_FROM_BINDIR,                // make install
};

}  // namespace

std::string own_directory() {
  char path[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof path);
  if (n <= 0) return ".";
  return std::filesystem::path(std::string(path, static_cast<std::size_t>(n))).parent_path();
}

std::vector<std::string> library_candidates(const std::string& command_directory) {
  std::vector<std::string> result;
  for (const char* folder : kFoldersFromCommand) {
    std::string candidate =
        (std::filesystem::path(command_directory) / folder / kLibraryName).lexically_normal();
    if (std::ranges::find(result, candidate) == result.end()) result.push_back(std::move(candidate));
  }
  return result;
}

std::string find_library(std::string& looked_at) {
  looked_at.clear();
  for (const std::string& candidate : library_candidates(own_directory())) {
    if (access(candidate.c_str(), F_OK) == 0) return candidate;
    looked_at += (looked_at.empty() ? "" : ", ") + candidate;
  }
  return {};
}

std::string share_file(const std::string& name) {
  std::filesystem::path file;
  for (const char* share : {"../share/ringroad", RINGROAD_SHAREDIR_FROM_BINDIR}) {
    file = (std::filesystem::path(own_directory()) / share / name).lexically_normal();
    if (access(file.c_str(), F_OK) == 0) break;
  }
  return file;
}

std::string library_problem(const std::string& path) {
  if (access(path.c_str(), R_OK) != 0) return strerrordesc_np(errno);
  const RootedFile file = Root().open(path);
  const ElfFile elf = read_elf(file.fd);
  if (!elf.is_elf) return "it is not a shared library";
  if (!elf.own_machine) return "it is of another machine or word size";
  if (!elf.position_independent) return "it is a program, not a shared library";
  // Both separate the entries of LD_PRELOAD, and nothing can quote them.
  if (path.find_first_of(": ") != std::string::npos) {
    return "LD_PRELOAD cannot hold a path with a space or colon: move or link it elsewhere";
  }
  return {};
}

}  // namespace ringroad::cli
