// The host that this command runs on.
#pragma once

#include <map>
#include <string>

#include "cli/doctor/host.h"

namespace ringroad::cli::doctor {

class LiveHost final : public Host {
 public:
  FileText read(const std::string& path) override;
  FolderNames list(const std::string& path) override;
  FileText link(const std::string& path) override;
  FileStatus status(const std::string& path) override;
  FileText ask(const std::string& path, const std::string& question) override;
  CommandResult run(const Command& command) override;
  ProgramFacts program(const ProgramPlace& place) override;
  void pass(std::chrono::milliseconds time) override;
  using Host::run;

 private:
  // By file_name(): several checks ask for the same, and one that hangs shall do so once.
  std::map<std::string, CommandResult> said_;
};

// What the other hosts do below their folder.
FileText read_text(const std::string& path);
FolderNames list_folder(const std::string& path);

}  // namespace ringroad::cli::doctor
