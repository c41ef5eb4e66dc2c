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

// Also no "nan", which CLI::Range lets pass.
inline CLI::Validator seconds_within(int least, int most) {
  const std::string wanted =
      "a number of seconds from " + std::to_string(least) + " to " + std::to_string(most);
  return {[=](std::string& text) -> std::string {
            double value = 0;
            const bool number = CLI::detail::lexical_cast(text, value);
            if (number && value >= least && value <= most) return {};
            return "it is " + wanted + ", not \"" + text + "\"";
          },
          ""};
}

inline void add_directory_option(CLI::App& command, std::string& directory) {
  command
      .add_option("--directory", directory,
                  "the only directory to look for processes' files in; default:\n"
                  "$RINGROAD_RUNTIME_DIR, else /dev/shm/ringroad and those of containers")
      ->option_text("DIR");
}

// What that option or the variable names, or the default: the host's directory and those of containers.
inline SegmentSource source_of(const std::string& option) {
  if (!option.empty()) return option;
  SegmentSource source = segment_directory();
  source.and_containers = !names_segment_directory();
  return source;
}

}  // namespace ringroad::cli
