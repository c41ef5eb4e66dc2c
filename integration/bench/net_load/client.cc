#include "integration/bench/net_load/client.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <iostream>
#include <vector>

#include "integration/bench/net_load/bytes.h"
#include "integration/bench/net_load/exchange.h"
#include "integration/bench/net_load/run.h"

namespace net_load {
namespace {

Samples stream(int fd, const Run& run) {
  const std::vector<char> message(run.size, 'x');
  for (std::uint64_t i = 0; i < run.count; ++i) send_all(fd, message.data(), message.size());
  return {};
}

Samples query(const Address& address, const Run& run) {
  std::vector<char> message(run.size, 'x');
  Samples samples;
  samples.reserve(run.count);
  for (std::uint64_t i = 0; i < run.count; ++i) {
    const auto start = Clock::now();
    const int fd = connect_to(address);
    send_all(fd, message.data(), message.size());
    if (!receive_all(fd, message.data(), message.size())) fail(ECONNRESET, "recv");
    close(fd);
    samples.add(nanoseconds_since(start));
  }
  return samples;
}

void print_latency(Samples& samples) {
  if (samples.size() == 0) {
    std::printf("\"latency_us\": null");
    return;
  }
  samples.sort();
  std::printf("\"latency_us\": {\"min\": %.3f, \"mean\": %.3f", samples.percentile_us(0),
              samples.mean_us());
  for (const char* percent : {"50", "90", "99", "99.9"}) {
    std::printf(", \"p%s\": %.3f", percent, samples.percentile_us(std::stod(percent)));
  }
  std::printf(", \"max\": %.3f}", samples.percentile_us(100));
}

void print_end(const char* name, const Usage& usage, double operations) {
  std::printf("\"%s\": {\"cpu_us_per_operation\": %.4f, \"switches_per_operation\": %.4f}, ", name,
              usage.cpu_us / operations, static_cast<double>(usage.switches) / operations);
}

void perform(const Address& address, const std::vector<int>& connections, const std::string& line) {
  const Run run = parse_run(line);
  const int first = connections.front();
  send_line(first, line);
  if (receive_line(first) != "ready") throw std::runtime_error("the server is not ready");

  const Usage before = usage_now();
  const auto start = Clock::now();
  Samples samples = run.kind == Kind::kStream    ? stream(first, run)
                    : run.kind == Kind::kQueries ? query(address, run)
                                                 : exchange(connections, run, End::kAsks);
  const std::string report = receive_line(first);
  const double seconds = static_cast<double>(nanoseconds_since(start)) / 1e9;
  const Usage ours = usage_now() - before;
  const Usage theirs = parse_usage(report);

  const double operations =
      static_cast<double>(run.count) *
      static_cast<double>(run.kind == Kind::kPingpong ? connections.size() : 1);
  std::printf(
      "{\"run\": \"%s\", \"connections\": %zu, \"operations\": %.0f, \"seconds\": %.6f, "
      "\"operations_per_s\": %.3f, \"bytes_per_s\": %.1f, ",
      line.c_str(), connections.size(), operations, seconds, operations / seconds,
      operations * static_cast<double>(run.size) / seconds);
  print_end("client", ours, operations);
  print_end("server", theirs, operations);
  print_latency(samples);
  std::printf("}\n");
  std::fflush(stdout);
}

}  // namespace

void ask(const Address& address, std::size_t connections) {
  std::vector<int> fds;
  for (std::size_t i = 0; i < connections; ++i) {
    fds.push_back(connect_to(address));
    if (i == 0) send_line(fds.front(), std::to_string(connections));
  }
  // The last one has been accepted, too.
  if (receive_line(fds.front()) != "accepted") throw std::runtime_error("the server hung up");
  std::printf("connected\n");
  std::fflush(stdout);
  std::string line;
  while (std::getline(std::cin, line)) perform(address, fds, line);
  for (const int fd : fds) close(fd);
}

}  // namespace net_load
