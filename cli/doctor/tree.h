// How a host is laid down in a folder, by `ringroad doctor --record` or by hand:
//
//   sys/..., proc/..., etc/...   files as they are on the host, and folders that were listed
//   meta                         a line for what a copy cannot hold:
//                                  error PATH ENAME         it cannot be read, and why
//                                  status PATH MODE UID GID MODE in octal, as stat(2) has it
//                                  link PATH TARGET         it is a symbolic link
//   commands/NAME                what a command said, on its standard output
//   commands/NAME.exit           its exit status, or killed N, failed N or timeout; with what
//                                it said on standard error in the lines that follow. Left out: 0.
//                                A command without either file is not installed
//   answers/NAME                 what a file of the kernel's answered to a question. Without it: EINVAL
//   programs/NAME                facts of a program's file, as JSON
//   later/...                    files as they were when time had passed
//   policy/...                   the policy, without its keys
//
// Paths with a white space in them are left out of `meta`.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cli/doctor/host.h"

namespace ringroad::cli::doctor {

// The name of a command's or a program's file: no two that are asked share one.
std::string file_name(const std::vector<std::string>& words);

struct Meta {
  std::map<std::string, int> errors;
  std::map<std::string, FileStatus> statuses;
  std::map<std::string, std::string> links;
};

// Lines that make no sense are passed over.
Meta parse_meta(const std::string& text);
std::string to_text(const Meta& meta);

// The content of NAME.exit, and back.
std::string exit_text(const CommandResult& result);
void apply_exit(const std::string& text, CommandResult& result);

}  // namespace ringroad::cli::doctor
