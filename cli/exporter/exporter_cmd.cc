#include "cli/exporter/exporter_cmd.h"

#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "cli/exporter/http_server.h"
#include "cli/exporter/metrics.h"
#include "cli/usage.h"

namespace ringroad::cli {
namespace {

// Of the 900 ports from 9100 on none is free (github.com/prometheus/prometheus/wiki, "Default port
// allocations").
constexpr const char* kDefaultListen = "127.0.0.1:9071";

struct Arguments {
  std::vector<std::string> listen;
  bool once = false;
  std::size_t most_processes = exporter::kMostProcesses;
  std::string directory;
};

int serve(const Arguments& arguments, exporter::Collector& collector) {
  exporter::HttpServer server([&](exporter::Format format) { return collector.collect(format); });
  const std::vector<std::string> wanted =
      arguments.listen.empty() ? std::vector<std::string>{kDefaultListen} : arguments.listen;
  for (const std::string& address : wanted) {
    std::string why;
    if (!server.listen(address, why)) {
      std::fprintf(stderr, "ringroad exporter: %s\n", why.c_str());
      return 1;
    }
  }
  for (const std::string& address : server.addresses()) {
    std::fprintf(stderr, "ringroad exporter: listening on http://%s/metrics\n", address.c_str());
  }
  server.run();
  return 0;
}

int run(const Arguments& arguments) {
  exporter::Collector collector(source_of(arguments.directory), arguments.most_processes);
  if (!arguments.once) return serve(arguments, collector);
  std::fputs(collector.collect(exporter::Format::kPrometheus).c_str(), stdout);
  return 0;
}

}  // namespace

void add_exporter_command(CLI::App& app, int& exit_status) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      app.add_subcommand("exporter", "Serve metrics of every preloaded process to Prometheus");
  CLI::Option* listen =
      command
          ->add_option("--listen", arguments->listen,
                       "address and port, [ADDRESS]:PORT for IPv6, :PORT for every\n"
                       "address of the host; may be given several times;\n"
                       "default: " +
                           std::string(kDefaultListen))
          ->option_text("ADDRESS")
          ->allow_extra_args(false);
  command->add_flag("--once", arguments->once, "print the metrics to stdout instead, and end")
      ->excludes(listen);
  command
      ->add_option("--max-processes", arguments->most_processes,
                   "tell about so many processes at most, those with the lowest\n"
                   "numbers; default: " +
                       std::to_string(exporter::kMostProcesses))
      ->option_text("N")
      ->check(CLI::Range(std::size_t{1}, std::size_t{100000}));
  add_directory_option(*command, arguments->directory);
  command->footer(
      "GET /metrics gives Prometheus' text format 0.0.4, or OpenMetrics 1.0.0 to a client that accepts\n"
      "it. Each metric has the labels pid and program, and container of a process in one; none has one\n"
      "for a single connection. To see containers' processes it has to run as root.\n"
      "The processes are not stopped or asked. A client that can connect can read: there is no\n"
      "password and no TLS. Ends with SIGTERM.\n"
      "\n"
      "Examples:\n"
      "  ringroad exporter\n"
      "  ringroad exporter --listen 10.9.1.1:9071 --listen '[fd00:9::1]:9071'\n"
      "  ringroad exporter --once >ringroad.prom.new && mv ringroad.prom.new \\\n"
      "      /var/lib/prometheus/node-exporter/ringroad.prom\n"
      "\n"
      "Exit status:\n"
      "  0  ended by SIGTERM or SIGINT; with --once: printed\n"
      "  1  cannot listen there; with --once: the output could not be written\n"
      "  2  wrong arguments\n");
  command->callback([arguments, &exit_status] { exit_status = run(*arguments); });
}

}  // namespace ringroad::cli
