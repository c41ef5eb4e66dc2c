#include "cli/doctor/recording_host.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

namespace ringroad::cli::doctor {
namespace {

// An absolute path that stays below the folder.
bool stays_below(const std::string& path) {
  return path.starts_with('/') && (path + "/").find("/../") == std::string::npos;
}

bool is_folder(const std::string& path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

// Of an environment, which may hold passwords, what the doctor looks at.
std::string preloads_of(const std::string& environment) {
  std::istringstream variables(environment);
  std::string kept;
  for (std::string variable; std::getline(variables, variable, '\0');) {
    if (variable.starts_with("LD_PRELOAD=")) kept += variable + '\0';
  }
  return kept;
}

}  // namespace

bool RecordingHost::make_folder(const std::string& path) {
  if (path.empty() || path == "/" || is_folder(root_ + path)) return true;
  if (!make_folder(path.substr(0, path.rfind('/')))) return false;
  const std::string name = root_ + path;
  unlink(name.c_str());  // what a list of names left as a file turns out to be a folder
  if (mkdir(name.c_str(), 0755) == 0) return true;
  if (problem_.empty()) problem_ = name + ": " + strerrordesc_np(errno);
  return false;
}

void RecordingHost::write(const std::string& path, const std::string& text) {
  if (!stays_below(path) || !make_folder(path.substr(0, path.rfind('/')))) return;
  if (is_folder(root_ + path)) return;
  std::ofstream file(root_ + path, std::ios::binary | std::ios::trunc);
  file << text;
  if (!file.flush() && problem_.empty()) problem_ = root_ + path + ": " + strerrordesc_np(errno);
}

FileText RecordingHost::read(const std::string& path) {
  FileText text = host_.read(path);
  if (text) {
    const bool has_secrets = path.starts_with("/proc/") && path.ends_with("/environ");
    write((later_ ? "/later" : "") + path, (has_secrets ? preloads_of(text.text) : text.text) + "\n");
  } else if (text.error != ENOENT) {
    meta_.errors[path] = text.error;
  }
  return text;
}

FolderNames RecordingHost::list(const std::string& path) {
  FolderNames names = host_.list(path);
  if (!names) {
    if (names.error != ENOENT) meta_.errors[path] = names.error;
    return names;
  }
  if (!stays_below(path) || !make_folder(path)) return names;
  for (const std::string& name : names.names) {
    const std::string entry = path + "/" + name;
    const FileStatus status = host_.status(entry);
    if (status && S_ISDIR(status.mode)) {
      make_folder(entry);
    } else if (access((root_ + entry).c_str(), F_OK) != 0) {
      write(entry, "");
    }
  }
  return names;
}

FileText RecordingHost::link(const std::string& path) {
  FileText target = host_.link(path);
  if (target) meta_.links[path] = target.text;
  return target;
}

FileStatus RecordingHost::status(const std::string& path) {
  const FileStatus status = host_.status(path);
  if (status) {
    meta_.statuses[path] = status;
  } else if (status.error != ENOENT) {
    meta_.errors[path] = status.error;
  }
  return status;
}

FileText RecordingHost::ask(const std::string& path, const std::string& question) {
  FileText answer = host_.ask(path, question);
  if (answer) {
    write("/answers/" + file_name({path, question}), answer.text + "\n");
  } else if (answer.error != EINVAL) {
    meta_.errors[path] = answer.error;
  }
  return answer;
}

CommandResult RecordingHost::run(const Command& command) {
  CommandResult result = host_.run(command);
  if (result.missing()) return result;
  const std::string path = "/commands/" + file_name(command.words);
  write(path, result.out);
  if (!result || !result.err.empty()) write(path + ".exit", exit_text(result));
  return result;
}

ProgramFacts RecordingHost::program(const ProgramPlace& place) {
  const ProgramFacts facts = host_.program(place);
  write("/programs/" + file_name({place.name}), to_text(facts));
  return facts;
}

void RecordingHost::pass(std::chrono::milliseconds time) {
  host_.pass(time);
  later_ = true;
}

bool RecordingHost::finish(std::string& why) {
  write("/meta", to_text(meta_));
  why = problem_;
  return problem_.empty();
}

}  // namespace ringroad::cli::doctor
