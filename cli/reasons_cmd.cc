#include "cli/reasons_cmd.h"

#include <cstddef>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cli/json_writer.h"
#include "cli/reason_help.h"

namespace ringroad::cli {
namespace {

enum ExitStatus { kTold = 0, kWrongArguments = 2 };

struct Arguments {
  std::vector<std::string> names;
  bool json = false;
};

std::vector<Reason> all_reasons() {
  std::vector<Reason> all;
  for (std::size_t i = 0; i < static_cast<std::size_t>(Reason::kCount); ++i)
    all.push_back(static_cast<Reason>(i));
  return all;
}

// Reason::kCount: there is none of that name.
Reason reason_named(const std::string& name) {
  for (const Reason reason : all_reasons()) {
    if (name == reason_name(reason)) return reason;
  }
  return Reason::kCount;
}

void print_text(const std::vector<Reason>& reasons) {
  for (const Reason reason : reasons) {
    const ReasonHelp& help = help_of(reason);
    std::printf("%s\n  means  %s\n", reason_name(reason), reason_text(reason));
    if (help.more[0] != '\0') std::printf("         %s\n", help.more);
    std::printf("  do     %s\n", help.remedy);
  }
}

void print_json(const std::vector<Reason>& reasons) {
  std::string text;
  JsonWriter json(text);
  json.begin_array(true);
  for (const Reason reason : reasons) {
    json.begin_object()
        .member("reason", reason_name(reason))
        .member("means", reason_text(reason))
        .member("more", help_of(reason).more)
        .member("do", help_of(reason).remedy)
        .end_object();
  }
  json.end_array();
  std::printf("%s\n", text.c_str());
}

int run(const Arguments& arguments) {
  std::vector<Reason> reasons;
  for (const std::string& name : arguments.names) {
    reasons.push_back(reason_named(name));
    if (reasons.back() == Reason::kCount) {
      std::fprintf(stderr, "ringroad: there is no reason \"%s\"; ringroad reasons names all\n", name.c_str());
      return kWrongArguments;
    }
  }
  if (reasons.empty()) reasons = all_reasons();
  arguments.json ? print_json(reasons) : print_text(reasons);
  return kTold;
}

}  // namespace

void add_reasons_command(CLI::App& app, int& exit_status) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      app.add_subcommand("reasons", "Tell what a reason for TCP means, and what to do about it");
  command->add_option("NAME", arguments->names, "a reason that ringroad ss shows; default: every one")
      ->option_text("...");
  command->add_flag("--json", arguments->json, "as JSON");
  command->footer(
      "Examples:\n"
      "  ringroad reasons\n"
      "  ringroad reasons peer_has_no_ringroad memlock\n"
      "\n"
      "Exit status:\n"
      "  0  told\n"
      "  2  wrong arguments, or there is no such reason\n");
  command->callback([arguments, &exit_status] { exit_status = run(*arguments); });
}

}  // namespace ringroad::cli
