#include "integration/bench/net_load/server.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <system_error>
#include <vector>

#include "integration/bench/net_load/bytes.h"
#include "integration/bench/net_load/exchange.h"
#include "integration/bench/net_load/run.h"

namespace net_load {
namespace {

constexpr std::uint64_t kTakenAtOnce = 64 << 10;

volatile std::sig_atomic_t asked_to_end = 0;

// So that it ends as programs do, and not as one that is killed.
void end_when_asked() {
  struct sigaction action {};
  action.sa_handler = [](int) { asked_to_end = 1; };
  sigaction(SIGTERM, &action, nullptr);
}

// False: it is asked to end. A signal between the look and the sleep would be missed if it were not held
// back.
bool wait_for_client(int listener) {
  sigset_t asks;
  sigset_t before;
  sigemptyset(&asks);
  sigaddset(&asks, SIGTERM);
  sigprocmask(SIG_BLOCK, &asks, &before);
  pollfd entry{listener, POLLIN, 0};
  int n = 0;
  while (asked_to_end == 0 && n == 0) n = ppoll(&entry, 1, nullptr, &before);
  const int error = errno;
  sigprocmask(SIG_SETMASK, &before, nullptr);
  if (asked_to_end == 0 && n < 0) fail(error, "ppoll");
  return asked_to_end == 0;
}

void drain(int fd, const Run& run) {
  std::vector<char> buffer(kTakenAtOnce);
  for (std::uint64_t left = run.size * run.count; left > 0;) {
    const ssize_t n = recv(fd, buffer.data(), std::min(left, kTakenAtOnce), 0);
    if (n < 0) fail(errno, "recv");
    if (n == 0) fail(ECONNRESET, "recv");
    left -= static_cast<std::uint64_t>(n);
  }
}

void answer_queries(int listener, const Address& address, const Run& run) {
  std::vector<char> message(run.size);
  for (std::uint64_t i = 0; i < run.count; ++i) {
    const int fd = accept_from(listener, address);
    if (!receive_all(fd, message.data(), message.size())) fail(ECONNRESET, "recv");
    send_all(fd, message.data(), message.size());
    // The client closes first.
    receive_all(fd, message.data(), 1);
    close(fd);
  }
}

void serve_client(int listener, const Address& address, int first) {
  std::vector<int> connections = {first};
  const std::size_t wanted = std::stoul(receive_line(first));
  while (connections.size() < wanted) connections.push_back(accept_from(listener, address));
  send_line(first, "accepted");
  for (std::string line; !(line = receive_line(first)).empty();) {
    const Run run = parse_run(line);
    send_line(first, "ready");
    const Usage before = usage_now();
    if (run.kind == Kind::kPingpong) exchange(connections, run, End::kAnswers);
    if (run.kind == Kind::kStream) drain(first, run);
    if (run.kind == Kind::kQueries) answer_queries(listener, address, run);
    send_line(first, usage_line(usage_now() - before));
  }
  for (const int fd : connections) close(fd);
}

}  // namespace

void serve(const Address& address) {
  end_when_asked();
  const int listener = listen_at(address);
  std::printf("listening\n");
  std::fflush(stdout);
  while (wait_for_client(listener)) {
    try {
      serve_client(listener, address, accept_from(listener, address));
    } catch (const std::system_error&) {
      if (asked_to_end == 0) throw;  // else a call was interrupted
    }
  }
}

}  // namespace net_load
