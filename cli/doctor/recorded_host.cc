#include "cli/doctor/recorded_host.h"

#include <sys/stat.h>

#include <cerrno>

#include "cli/doctor/live_host.h"

namespace ringroad::cli::doctor {

RecordedHost::RecordedHost(std::string root)
    : root_(std::move(root)), meta_(parse_meta(read_text(root_ + "/meta").text)) {}

int RecordedHost::error_of(const std::string& path) const {
  const auto found = meta_.errors.find(path);
  return found == meta_.errors.end() ? 0 : found->second;
}

FileText RecordedHost::read(const std::string& path) {
  if (const int error = error_of(path); error != 0) return {error, {}};
  if (later_) {
    FileText text = read_text(root_ + "/later" + path);
    if (text) return text;
  }
  return read_text(root_ + path);
}

FolderNames RecordedHost::list(const std::string& path) {
  if (const int error = error_of(path); error != 0) return {error, {}};
  return list_folder(root_ + path);
}

FileText RecordedHost::link(const std::string& path) {
  const auto found = meta_.links.find(path);
  if (found == meta_.links.end()) return {ENOENT, {}};
  return {0, found->second};
}

FileStatus RecordedHost::status(const std::string& path) {
  const auto found = meta_.statuses.find(path);
  if (found != meta_.statuses.end()) return found->second;
  struct stat status;
  if (const int error = error_of(path); error != 0) return {error, 0, 0, 0};
  if (stat((root_ + path).c_str(), &status) != 0) return {errno, 0, 0, 0};
  return {0, status.st_mode, 0, 0};
}

FileText RecordedHost::ask(const std::string& path, const std::string& question) {
  if (const int error = error_of(path); error != 0) return {error, {}};
  FileText answer = read_text(root_ + "/answers/" + file_name({path, question}));
  // As the kernel says to a question that makes no sense to it.
  if (!answer) answer.error = EINVAL;
  return answer;
}

CommandResult RecordedHost::run(const Command& command) {
  CommandResult result;
  const std::string file = root_ + "/commands/" + file_name(command.words);
  const FileText out = read_text(file);
  const FileText end = read_text(file + ".exit");
  if (!out && !end) return result;
  result.end = CommandResult::End::kExited;
  result.out = out.text;
  if (end) apply_exit(end.text, result);
  return result;
}

ProgramFacts RecordedHost::program(const ProgramPlace& place) {
  const FileText text = read_text(root_ + "/programs/" + file_name({place.name}));
  if (text) return program_facts_from_text(text.text);
  ProgramFacts facts;
  facts.error = ENOENT;
  return facts;
}

void RecordedHost::pass(std::chrono::milliseconds) { later_ = true; }

}  // namespace ringroad::cli::doctor
