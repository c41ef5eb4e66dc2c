// What several commands say in their usage.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <utility>

#include "cli/segment_reader.h"

namespace ringroad::cli {

// A usage line of a command's own, where the parser's would not say how its words are meant.
class UsageFormatter final : public CLI::Formatter {
 public:
  explicit UsageFormatter(std::string usage) : usage_(std::move(usage)) {}
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: " + usage_ + "\n";
  }

 private:
  std::string usage_;
};

// `usage`: "ringroad run [OPTIONS] ...".
inline void set_usage(CLI::App& command, std::string usage) {
  command.formatter(std::make_shared<UsageFormatter>(std::move(usage)));
  command.get_formatter()->column_width(26);
}

inline void add_directory_option(CLI::App& command, std::string& directory) {
  command
      .add_option("--directory", directory,
                  "where the processes' files are; default: $RINGROAD_RUNTIME_DIR,\n"
                  "else /dev/shm/ringroad")
      ->option_text("DIR");
}

// What that option names, or the default.
inline std::string directory_of(const std::string& option) {
  return option.empty() ? segment_directory() : option;
}

}  // namespace ringroad::cli
