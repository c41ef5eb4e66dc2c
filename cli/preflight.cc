#include "cli/preflight.h"

#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "cli/elf_file.h"
#include "cli/program_file.h"

namespace ringroad::cli {
namespace {

constexpr int kScriptDepth = 5;  // as the kernel: an interpreter may be a script, but not for ever
constexpr const char* kLibc = "libc.so.6";
// Where glibc's loaders of the distributions look last.
constexpr const char* kLibraryFolders[] = {
    "/lib/" RINGROAD_MULTIARCH, "/usr/lib/" RINGROAD_MULTIARCH, "/lib64", "/usr/lib64", "/lib",
    "/usr/lib"};

std::string_view last_part(std::string_view path) { return path.substr(path.rfind('/') + 1); }

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

bool is_glibc_version(const std::string& version) {
  return version.starts_with("GLIBC_") && version.size() > 6 && version[6] >= '0' &&
         version[6] <= '9';
}

bool defines(const ElfFile& elf, const std::string& version) {
  return std::ranges::find(elf.defines, version) != elf.defines.end();
}

// Entries of DT_RPATH, DT_RUNPATH or LD_LIBRARY_PATH.
void add_folders(std::vector<std::string>& folders, const std::string& list,
                 const std::string& origin) {
  for (std::size_t begin = 0; begin < list.size();) {
    const std::size_t end = std::min(list.find_first_of(":;", begin), list.size());
    std::string folder = list.substr(begin, end - begin);
    begin = end + 1;
    for (const std::string_view word : {"$ORIGIN", "${ORIGIN}"}) {
      const std::size_t at = folder.find(word);
      if (at != std::string::npos) folder.replace(at, word.size(), origin);
    }
    // $LIB and $PLATFORM are the loader's to know.
    if (!folder.empty() && folder.find('$') == std::string::npos) folders.push_back(folder);
  }
}

// The shared objects that the loader of one program would find, by their names.
class Objects {
 public:
  Objects(const Root& root, const ElfFile& program, const std::string& program_path,
          const std::string& loader_path)
      : root_(root) {
    const std::string origin = folder_of(program_path);
    if (program.runpath.empty()) add_folders(folders_, program.rpath, origin);
    const char* variable = root.own() ? std::getenv("LD_LIBRARY_PATH") : nullptr;
    if (variable != nullptr) add_folders(folders_, variable, origin);
    add_folders(folders_, program.runpath, origin);
    // A glibc that is installed in a folder of its own finds itself there.
    if (!loader_path.empty()) folders_.push_back(folder_of(loader_path));
    folders_.insert(folders_.end(), std::begin(kLibraryFolders), std::end(kLibraryFolders));
  }

  // False: none was found. What is of another machine is passed over, as the loader does.
  bool find(const std::string& name, ElfFile& elf, std::string& path) const {
    if (name.empty() || name.find('/') != std::string::npos) return false;
    for (const std::string& folder : folders_) {
      const RootedFile file = root_.open(folder + "/" + name);
      if (!file) continue;
      elf = read_elf(file.fd);
      if (!elf.own_machine || !elf.position_independent) continue;
      path = file.path;
      return true;
    }
    return false;
  }

 private:
  const Root& root_;
  std::vector<std::string> folders_;
};

// What the library needs, held against what is there.
void judge_versions(const ElfFile& library, const ElfFile& loader, const Objects& objects,
                    ProgramFacts& facts) {
  ElfFile libc;
  if (!objects.find(kLibc, libc, facts.libc)) return;
  for (const std::string& version : libc.defines) {
    if (is_glibc_version(version) && version_less(facts.libc_version, version)) {
      facts.libc_version = version;
    }
  }
  std::string name = kLibc;
  std::string path = facts.libc;
  ElfFile object = libc;
  for (const VersionNeed& need : library.needs) {
    if (need.file == kLibc && is_glibc_version(need.version) &&
        version_less(facts.needed, need.version)) {
      facts.needed = need.version;
    }
    if (need.file != name) {
      name = need.file;
      if (name == loader.soname) {
        object = loader;
        path = facts.loader;
      } else if (!objects.find(name, object, path)) {
        object = {};
      }
    }
    // The loader only complains of a file without versions.
    if (object.defines.empty() || defines(object, need.version)) continue;
    if (facts.lacks.empty() || version_less(facts.lacks, need.version)) {
      facts.lacks = need.version;
      facts.lacks_file = path;
    }
  }
}

bool has_capabilities(const RootedFile& file, const std::string& path, const Root& root) {
  constexpr const char* kName = "security.capability";
  return (root.own() ? getxattr(path.c_str(), kName, nullptr, 0)
                     : fgetxattr(file.fd, kName, nullptr, 0)) > 0;
}

ProgramFacts facts_of(const RootedFile& file, const std::string& path, const Root& root,
                      const std::string& library) {
  ProgramFacts facts;
  facts.file = path;
  facts.set_user = (file.status.st_mode & S_ISUID) != 0;
  facts.set_group = (file.status.st_mode & S_ISGID) != 0;
  facts.owner = file.status.st_uid;
  facts.group = file.status.st_gid;
  facts.capabilities = has_capabilities(file, path, root);
  if (file.fd < 0) {
    facts.error = EACCES;
    return facts;
  }
  const ElfFile elf = read_elf(file.fd);
  facts.is_elf = elf.is_elf;
  facts.own_machine = elf.own_machine;
  facts.go = elf.go;
  facts.loader = elf.interpreter;
  // A loader that is started by hand loads a program into itself.
  if (!elf.has_interpreter && elf.position_independent && last_part(path).starts_with("ld-")) {
    facts.loader = path;
  }
  if (facts.loader.empty()) return facts;
  const RootedFile loader_file = root.open(facts.loader);
  const ElfFile loader = read_elf(loader_file.fd);
  facts.foreign_libc =
      last_part(facts.loader).starts_with("ld-musl") ||
      (loader.own_machine && std::ranges::none_of(loader.defines, is_glibc_version));
  if (facts.foreign_libc || library.empty()) return facts;
  const RootedFile library_file = Root().open(library);
  judge_versions(read_elf(library_file.fd), loader,
                 Objects(root, elf, file.path, loader_file.path), facts);
  return facts;
}

ProgramFacts inspect(const std::string& path, const Root& root, const std::string& library,
                     int depth) {
  const RootedFile file = root.open(path);
  if (!file) {
    ProgramFacts facts;
    facts.error = file.error;
    facts.file = path;
    return facts;
  }
  const ScriptLine script = read_script_line(file.fd);
  if (script.interpreter.empty() || depth == 0) return facts_of(file, path, root, library);
  ProgramFacts facts = inspect(script.interpreter, root, library, depth - 1);
  if (last_part(script.interpreter) != "env") return facts;
  // Both are started with the same LD_PRELOAD, env first.
  if (facts.error != 0 || must_be_left_out(obstacle_of(facts))) return facts;
  int error = 0;
  const std::string program = find_program(program_of_env(script.argument), error, root);
  return error == 0 ? inspect(program, root, library, depth - 1) : facts;
}

}  // namespace

ProgramFacts inspect_program(const std::string& name, const Root& root,
                             const std::string& library) {
  ProgramFacts facts;
  const std::string path = find_program(name, facts.error, root);
  return facts.error != 0 ? facts : inspect(path, root, library, kScriptDepth);
}

Obstacle obstacle_of(const ProgramFacts& facts) noexcept {
  if (facts.error != 0 || !facts.is_elf) return Obstacle::kNone;
  if (!facts.own_machine) return Obstacle::kOtherMachine;
  if (facts.loader.empty()) return Obstacle::kStatic;
  if (facts.foreign_libc) return Obstacle::kForeignLibc;
  return facts.lacks.empty() ? Obstacle::kNone : Obstacle::kOldLibc;
}

bool ends_program(Obstacle obstacle) noexcept {
  return obstacle == Obstacle::kForeignLibc || obstacle == Obstacle::kOldLibc;
}

bool must_be_left_out(Obstacle obstacle) noexcept {
  return obstacle == Obstacle::kOtherMachine || ends_program(obstacle);
}

std::string reason_of(const ProgramFacts& facts) {
  switch (obstacle_of(facts)) {
    case Obstacle::kNone:
      break;
    case Obstacle::kStatic:
      return "is linked statically: it has no loader that could preload the library";
    case Obstacle::kOtherMachine:
      return "is a program of another machine or word size than the library";
    case Obstacle::kForeignLibc:
      return "is linked against " + std::string(facts.loader.find("musl") != std::string::npos
                                                    ? "musl"
                                                    : "a libc that is not glibc") +
             " (its loader is " + facts.loader + "), and the library needs glibc";
    case Obstacle::kOldLibc:
      return "would find " + facts.lacks_file + " without " + facts.lacks +
             ", which the library needs" +
             (facts.libc_version.empty() ? "" : "; its glibc has up to " + facts.libc_version);
  }
  return {};
}

std::string privileges_of(const ProgramFacts& facts) {
  const bool other_user = facts.set_user && facts.owner != getuid();
  const bool other_group = facts.set_group && facts.group != getgid();
  if (facts.capabilities && getuid() != 0) return "has file capabilities";
  return other_user || other_group ? "is setuid or setgid" : "";
}

std::string remedy_of(const ProgramFacts& facts) {
  switch (obstacle_of(facts)) {
    case Obstacle::kNone:
      break;
    case Obstacle::kStatic:
      return "a build of the program that is linked dynamically";
    case Obstacle::kOtherMachine:
      return "a 64-bit build of the program for this machine";
    case Obstacle::kForeignLibc:
      return "a build of the program for glibc";
    case Obstacle::kOldLibc:
      return "a system or an image with a newer glibc, or a release build of the library";
  }
  return {};
}

std::string versions_of(const ProgramFacts& facts) {
  if (facts.libc_version.empty() || facts.needed.empty()) return {};
  return facts.libc + " has up to " + facts.libc_version + ", the library needs " + facts.needed;
}

}  // namespace ringroad::cli
