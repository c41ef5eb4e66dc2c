// Lays down whatever is asked of another host in a folder (see tree.h): what the checks look at,
// and nothing else.
#pragma once

#include <string>

#include "cli/doctor/host.h"
#include "cli/doctor/tree.h"

namespace ringroad::cli::doctor {

class RecordingHost final : public Host {
 public:
  // `root` must be an empty folder. REQUIRES: `host` outlives this.
  RecordingHost(Host& host, std::string root) : host_(host), root_(std::move(root)) {}

  FileText read(const std::string& path) override;
  FolderNames list(const std::string& path) override;
  FileText link(const std::string& path) override;
  FileStatus status(const std::string& path) override;
  FileText ask(const std::string& path, const std::string& question) override;
  CommandResult run(const Command& command) override;
  ProgramFacts program(const ProgramPlace& place) override;
  void pass(std::chrono::milliseconds time) override;
  using Host::run;

  // Another file of the tree; `path` begins with a slash.
  void write(const std::string& path, const std::string& text);
  // To be called when all has been asked. False with `why`: something could not be written.
  bool finish(std::string& why);

 private:
  bool make_folder(const std::string& path);

  Host& host_;
  const std::string root_;
  Meta meta_;
  bool later_ = false;
  std::string problem_;  // the first
};

}  // namespace ringroad::cli::doctor
