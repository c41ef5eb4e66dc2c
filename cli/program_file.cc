#include "cli/program_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <sstream>
#include <string_view>

namespace ringroad::cli {
namespace {

constexpr std::size_t kScriptLineBytes = 256;  // that the kernel looks at
constexpr const char* kUsualFolders =
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

// False with errno.
bool is_executable_file(const std::string& path, const Root& root) {
  if (!root.own()) {
    const RootedFile file = root.open(path);
    errno = file ? EACCES : file.error;
    return file && (file.status.st_mode & (S_IXUSR | S_IXGRP | S_IXOTH)) != 0;
  }
  struct stat status;
  if (stat(path.c_str(), &status) != 0) return false;
  if (S_ISREG(status.st_mode) && access(path.c_str(), X_OK) == 0) return true;
  errno = EACCES;
  return false;
}

}  // namespace

ScriptLine read_script_line(int fd) {
  std::string line(kScriptLineBytes, '\0');
  const ssize_t n = pread(fd, line.data(), line.size(), 0);
  line.resize(n < 0 ? 0 : static_cast<std::size_t>(n));
  if (!line.starts_with("#!")) return {};
  line = line.substr(2, line.find('\n') - 2);
  constexpr const char* kBlank = " \t";
  const std::size_t begin = line.find_first_not_of(kBlank);
  if (begin == std::string::npos) return {};
  const std::size_t end = std::min(line.find_first_of(kBlank, begin), line.size());
  ScriptLine result{line.substr(begin, end - begin), {}};
  const std::size_t argument = line.find_first_not_of(kBlank, end);
  if (argument != std::string::npos) {
    result.argument = line.substr(argument, line.find_last_not_of(kBlank) + 1 - argument);
  }
  return result;
}

std::string program_of_env(const std::string& argument) {
  const bool changes_nothing = argument.find('=') == std::string::npos;
  if (!argument.starts_with('-')) return changes_nothing ? argument : std::string();
  std::string words;
  for (const std::string_view option : {"-S", "-vS", "--split-string=", "--split-string"}) {
    if (argument.starts_with(option)) words = argument.substr(option.size());
    if (!words.empty()) break;
  }
  // Quotes, escapes and variables are env's to know.
  if (words.find_first_of("\"'\\$") != std::string::npos) return {};
  std::istringstream stream(words);
  for (std::string word; stream >> word;) {
    if (word.starts_with('-') || word.starts_with("PATH=")) return {};
    if (word.find('=') == std::string::npos) return word;
  }
  return {};
}

std::string find_program(const std::string& name, int& error, const Root& root) {
  error = 0;
  if (name.find('/') != std::string::npos) {
    if (is_executable_file(name, root)) return name;
    error = errno == EACCES ? EACCES : ENOENT;
    return {};
  }
  error = ENOENT;
  if (name.empty()) return {};
  const char* variable = root.own() ? std::getenv("PATH") : kUsualFolders;
  std::string_view rest = variable != nullptr ? variable : "/bin:/usr/bin";
  for (bool more = true; more;) {
    const std::size_t colon = rest.find(':');
    const std::string_view folder = rest.substr(0, colon);
    more = colon != std::string_view::npos;
    rest.remove_prefix(more ? colon + 1 : rest.size());
    const std::string candidate =
        (folder.empty() ? "." : std::string(folder)) + "/" + name;  // empty: the current folder
    if (is_executable_file(candidate, root)) {
      error = 0;
      return candidate;
    }
    if (errno == EACCES) error = EACCES;
  }
  return {};
}

}  // namespace ringroad::cli
