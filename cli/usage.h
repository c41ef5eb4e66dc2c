// A usage line of a command's own, where the parser's would not say how its words are meant.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <utility>

namespace ringroad::cli {

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

}  // namespace ringroad::cli
