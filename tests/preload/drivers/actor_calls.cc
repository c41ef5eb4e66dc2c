// The Actor's logged calls.
#include <sys/ioctl.h>
#include <sys/time.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "tests/preload/drivers/actor.h"

namespace ringroad::test {
namespace {

using Clock = std::chrono::steady_clock;

struct Name {
  int bit;
  const char* text;
};

std::string names(int bits, const Name* table, std::size_t count) {
  std::string out;
  for (std::size_t i = 0; i < count; ++i) {
    if ((bits & table[i].bit) == 0) continue;
    if (!out.empty()) out += '|';
    out += table[i].text;
    bits &= ~table[i].bit;
  }
  if (bits != 0) {
    char rest[16];
    std::snprintf(rest, sizeof rest, "%s0x%x", out.empty() ? "" : "|", static_cast<unsigned>(bits));
    out += rest;
  }
  return out.empty() ? "0" : out;
}

// How much later than it should a timed call may end, on a loaded machine.
constexpr int kLateMs = 900;

}  // namespace

std::string poll_names(int events) {
  static constexpr Name kTable[] = {
      {POLLIN, "IN"},         {POLLOUT, "OUT"},       {POLLPRI, "PRI"},
      {POLLRDHUP, "RDHUP"},   {POLLERR, "ERR"},       {POLLHUP, "HUP"},
      {POLLNVAL, "NVAL"},     {POLLRDNORM, "RDNORM"}, {POLLRDBAND, "RDBAND"},
      {POLLWRNORM, "WRNORM"}, {POLLWRBAND, "WRBAND"},
  };
  return names(events, kTable, std::size(kTable));
}

std::string flag_names(int flags) {
  static constexpr Name kTable[] = {
      {MSG_DONTWAIT, "DONTWAIT"}, {MSG_PEEK, "PEEK"},     {MSG_WAITALL, "WAITALL"},
      {MSG_TRUNC, "TRUNC"},       {MSG_OOB, "OOB"},       {MSG_NOSIGNAL, "NOSIGNAL"},
      {MSG_MORE, "MORE"},         {MSG_ERRQUEUE, "ERRQUEUE"},
  };
  return flags == 0 ? "" : ", " + names(flags, kTable, std::size(kTable));
}

std::string quoted(std::string_view bytes) {
  std::string out = "\"";
  for (const char c : bytes.substr(0, 40)) {
    if (c >= ' ' && c <= '~') {
      out += c;
    } else {
      char hex[8];
      std::snprintf(hex, sizeof hex, "\\x%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
      out += hex;
    }
  }
  out += '"';
  if (bytes.size() > 40) {
    std::uint64_t sum = 14695981039346656037U;  // FNV-1a
    for (const char c : bytes) sum = (sum ^ static_cast<unsigned char>(c)) * 1099511628211U;
    char tail[48];
    std::snprintf(tail, sizeof tail, "... sum %016llx", static_cast<unsigned long long>(sum));
    out += tail;
  }
  return out;
}

long Actor::result(const char* call, long value) {
  if (value == -1) {
    log("%s = -1 %s", call, strerrorname_np(errno));
  } else {
    log("%s = %ld", call, value);
  }
  return value;
}

void Actor::received(const std::string& call, ssize_t n, const char* buffer) {
  if (n < 0) {
    result(call.c_str(), n);
  } else {
    log("%s = %zd %s", call.c_str(), n,
        quoted(std::string_view(buffer, static_cast<std::size_t>(n))).c_str());
  }
}

ssize_t Actor::send(int fd, std::string_view bytes, int flags) {
  errno = 0;
  const ssize_t n = ::send(fd, bytes.data(), bytes.size(), flags);
  return result(("send(" + quoted(bytes) + flag_names(flags) + ")").c_str(), n);
}

ssize_t Actor::write(int fd, std::string_view bytes) {
  errno = 0;
  const ssize_t n = ::write(fd, bytes.data(), bytes.size());
  return result(("write(" + quoted(bytes) + ")").c_str(), n);
}

ssize_t Actor::recv(int fd, std::size_t n, int flags) {
  std::vector<char> buffer(n + 1, '-');
  errno = 0;
  const ssize_t got = ::recv(fd, buffer.data(), n, flags);
  received("recv(" + std::to_string(n) + flag_names(flags) + ")", got, buffer.data());
  return got;
}

ssize_t Actor::read(int fd, std::size_t n) {
  std::vector<char> buffer(n + 1, '-');
  errno = 0;
  const ssize_t got = ::read(fd, buffer.data(), n);
  received("read(" + std::to_string(n) + ")", got, buffer.data());
  return got;
}

short Actor::poll(int fd, short events, int timeout_ms) {
  pollfd entry{fd, events, -1};
  const int n = ::poll(&entry, 1, timeout_ms);
  if (n < 0) {
    result(("poll " + poll_names(events)).c_str(), n);
    return 0;
  }
  log("poll %s -> %s = %d", poll_names(events).c_str(), poll_names(entry.revents).c_str(), n);
  return entry.revents;
}

short Actor::settle(int fd, short events, short bits) {
  const auto until = Clock::now() + std::chrono::seconds(2);
  pollfd entry{fd, events, 0};
  while (Clock::now() < until) {
    if (::poll(&entry, 1, 0) > 0 && (entry.revents & bits) == bits) break;
    ::usleep(500);
  }
  return poll(fd, events, 0);
}

void Actor::keep_full_ring(int fd) {
  const unsigned ms = 30'000;
  result("TCP_USER_TIMEOUT", ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms));
}

void Actor::settle_unread(int fd, int bytes) {
  const auto until = Clock::now() + std::chrono::seconds(2);
  for (int value = 0; value < bytes && Clock::now() < until; ::usleep(500)) ::ioctl(fd, FIONREAD, &value);
}

void Actor::poll_table(int fd, const char* phase) {
  static constexpr short kSets[] = {
      0,       POLLIN,  POLLOUT, POLLIN | POLLOUT,       POLLRDHUP,
      POLLPRI, POLLERR, POLLHUP, POLLRDNORM | POLLWRNORM, POLLRDBAND | POLLWRBAND,
      POLLIN | POLLOUT | POLLRDHUP | POLLPRI};
  log("-- %s", phase);
  for (const short events : kSets) poll(fd, events);
}

int Actor::shutdown(int fd, int how) {
  const char* name = how == SHUT_RD ? "shutdown(RD)" : how == SHUT_WR ? "shutdown(WR)"
                     : how == SHUT_RDWR ? "shutdown(RDWR)" : "shutdown(?)";
  return static_cast<int>(result(name, ::shutdown(fd, how)));
}

int Actor::close(int fd) { return static_cast<int>(result("close", ::close(fd))); }

int Actor::error(int fd) {
  int value = -1;
  socklen_t length = sizeof value;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &length) != 0) {
    result("SO_ERROR", -1);
    return -1;
  }
  log("SO_ERROR = %s", value == 0 ? "0" : strerrorname_np(value));
  return value;
}

int Actor::unread(int fd) {
  int value = -1;
  if (::ioctl(fd, FIONREAD, &value) != 0) {
    result("FIONREAD", -1);
    return -1;
  }
  log("FIONREAD = %d", value);
  return value;
}

void Actor::set_nonblocking(int fd, bool on) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (::fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK) != 0) {
    result("F_SETFL", -1);
  }
}

void Actor::set_timeout(int fd, int option, int ms) {
  const timeval tv{ms / 1000, static_cast<suseconds_t>(ms % 1000) * 1000};
  if (::setsockopt(fd, SOL_SOCKET, option, &tv, sizeof tv) != 0) result("setsockopt", -1);
}

void Actor::timed(int ms, const std::function<void()>& call) {
  const auto start = Clock::now();
  call();
  const auto took = static_cast<int>(
      std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start).count());
  // SO_RCVTIMEO and its like count in ticks of the kernel's clock, of up to 10 ms.
  if (took + 500 < ms * 1000) {
    log("too early: %d us instead of %d ms", took, ms);
  } else if (took > (ms + kLateMs) * 1000) {
    log("too late: %d us instead of %d ms", took, ms);
  } else {
    log("after %d ms", ms);
  }
}

}  // namespace ringroad::test
