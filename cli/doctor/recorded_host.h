// A host that was recorded into a folder (see tree.h).
#pragma once

#include <string>

#include "cli/doctor/host.h"
#include "cli/doctor/tree.h"

namespace ringroad::cli::doctor {

class RecordedHost final : public Host {
 public:
  explicit RecordedHost(std::string root);

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
  // The recorded error of `path` itself or of what it leads through; 0: none.
  int error_of(const std::string& path) const;

  const std::string root_;
  const Meta meta_;
  bool later_ = false;
};

}  // namespace ringroad::cli::doctor
