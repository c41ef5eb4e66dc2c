#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "cli/elf_file.h"
#include "cli/program_file.h"
#include "tests/fuzz/target.h"

namespace ringroad::fuzz {
namespace {

constexpr std::size_t kMostEntries = 4096;

bool too_long(const std::vector<std::string>& texts) {
  return std::any_of(texts.begin(), texts.end(),
                     [](const std::string& text) { return text.size() >= PATH_MAX + 256; });
}

std::string complaint_about(const cli::ElfFile& elf) {
  std::vector<std::string> texts = elf.needed;
  texts.insert(texts.end(), elf.defines.begin(), elf.defines.end());
  texts.insert(texts.end(), {elf.interpreter, elf.soname, elf.rpath, elf.runpath});
  for (const cli::VersionNeed& need : elf.needs) {
    texts.insert(texts.end(), {need.file, need.version});
  }
  if (too_long(texts)) return "a text is longer than any is to be";
  if (elf.needed.size() > kMostEntries) return "too many libraries";
  if (elf.defines.size() + elf.needs.size() > kMostEntries) return "too many versions";
  const bool says_something = std::any_of(texts.begin(), texts.end(),
                                          [](const std::string& text) { return !text.empty(); });
  if (!elf.own_machine && says_something) return "a file of another kind is read";
  if (!elf.has_interpreter && !elf.interpreter.empty()) return "a loader that is not asked for";
  return {};
}

}  // namespace

// The bytes of a program's file.
std::string try_elf(Bytes input) {
  const DescriptorWatch watch;
  const int fd = memfd_create("fuzz", MFD_CLOEXEC);
  if (fd < 0 || write(fd, input.data(), input.size()) != static_cast<ssize_t>(input.size())) {
    return "no file can be made";
  }
  std::string complaint = complaint_about(cli::read_elf(fd));
  const cli::ScriptLine line = cli::read_script_line(fd);
  cli::program_of_env(line.argument);
  close(fd);
  if (line.interpreter.empty() && !line.argument.empty()) complaint = "an argument for no program";
  return complaint.empty() ? watch.complaint() : complaint;
}

}  // namespace ringroad::fuzz
