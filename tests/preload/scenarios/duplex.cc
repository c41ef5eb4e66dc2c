#include "tests/preload/scenarios/duplex.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/preload/drivers/actor.h"

namespace ringroad::test {
namespace {

constexpr std::size_t kChunk = 48 * 1024;
constexpr int kPatienceMs = 8'000;
constexpr int kReset = 3;  // exit status

void set_nonblocking(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }

bool passing() { return errno == EAGAIN || errno == EINTR; }

// All that has come so far, of which the trailer may be the end.
class Incoming {
 public:
  explicit Incoming(std::uint64_t before) : at_(before) {}

  // False: a wrong byte.
  bool take(const char* bytes, std::size_t n) {
    tail_.append(bytes, n);
    const std::size_t behind = trailer(0).size();
    const std::size_t sure = tail_.size() > behind ? tail_.size() - behind : 0;
    for (std::size_t i = 0; i < sure; ++i) {
      if (tail_[i] != pattern(at_ + i)) {
        wrong_ = "wrong byte at " + std::to_string(at_ + i);
        return false;
      }
    }
    tail_.erase(0, sure);
    at_ += sure;
    return true;
  }

  std::string ended() const {
    if (!wrong_.empty()) return wrong_;
    if (tail_ == trailer(at_)) return "";
    return "cut short after " + std::to_string(at_ + tail_.size());
  }

 private:
  std::uint64_t at_;
  std::string tail_;
  std::string wrong_;
};

int receive_descriptor(int socket) {
  char byte = 0;
  iovec piece{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (::recvmsg(socket, &message, 0) != 1 || CMSG_FIRSTHDR(&message) == nullptr) return -1;
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
  return fd;
}

}  // namespace

bool is_reset(const std::string& how_it_was) {
  const auto says = [&](const char* text) { return how_it_was.find(text) != std::string::npos; };
  return (says("ECONNRESET") || says("ENOTCONN")) && !says("wrong byte") && !says("cut short") &&
         !says("too long");
}

std::string trailer(std::uint64_t total) {
  char text[32];
  std::snprintf(text, sizeof text, "|%014llu|", static_cast<unsigned long long>(total));
  return text;
}

std::string Duplex::run() {
  if (in >= 0) set_nonblocking(in);
  if (out >= 0) set_nonblocking(out);
  Incoming incoming(received);
  const std::string behind = trailer(total);
  std::uint64_t behind_sent = 0;
  bool reads = in >= 0;
  bool writes = out >= 0;
  std::string wrong;
  std::string buffer(kChunk, '\0');
  while (reads || writes) {
    pollfd fds[2] = {{reads ? in : -1, POLLIN, 0}, {writes ? out : -1, POLLOUT, 0}};
    const int n = ::poll(fds, 2, kPatienceMs);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return "nothing for too long" + (reads ? ", reading: " + incoming.ended() : "");
    if (reads && fds[0].revents != 0) {
      const ssize_t got = ::read(in, buffer.data(), buffer.size());
      if (got > 0) {
        reads = incoming.take(buffer.data(), static_cast<std::size_t>(got));
        if (!reads) wrong = incoming.ended();
      } else if (got == 0) {
        wrong += incoming.ended();
        reads = false;
      } else if (!passing()) {
        wrong += std::string("read: ") + strerrorname_np(errno);
        reads = false;
      }
    }
    if (writes && fds[1].revents != 0) {
      const std::string next =
          sent < total
              ? patterned(sent, static_cast<std::size_t>(std::min<std::uint64_t>(kChunk, total - sent)))
              : behind.substr(behind_sent);
      const ssize_t done = ::write(out, next.data(), next.size());
      if (done >= 0) {
        (sent < total ? sent : behind_sent) += static_cast<std::uint64_t>(done);
        if (behind_sent == behind.size()) {
          writes = false;
          ::shutdown(out, SHUT_WR);
        }
      } else if (!passing()) {
        wrong += std::string("write: ") + strerrorname_np(errno);
        writes = false;
      }
    }
  }
  return wrong.empty() ? "whole" : wrong;
}

int duplex_program(int argc, char** argv) {
  ::signal(SIGPIPE, SIG_IGN);
  Duplex duplex;
  const std::string how = argv[1];
  const auto number = [&](int i) { return i < argc ? std::strtoull(argv[i], nullptr, 10) : 0; };
  int next = 2;
  if (how == "--receive") {
    duplex.in = duplex.out = receive_descriptor(std::atoi(argv[next++]));
  } else {
    duplex.in = std::atoi(argv[next]);
    duplex.out = std::atoi(argv[next + 1]);
    next += 2;
  }
  duplex.received = number(next);
  duplex.sent = number(next + 1);
  duplex.total = number(next + 2);
  if (next + 3 < argc && std::strcmp(argv[next + 3], "silent") == 0) duplex.out = -1;
  const std::string how_it_was = duplex.run();
  if (how_it_was == "whole") return 0;
  if (is_reset(how_it_was)) return kReset;
  std::fprintf(stderr, "%s\n", how_it_was.c_str());
  return 1;
}

}  // namespace ringroad::test
