#include "tests/preload/drivers/actor.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace ringroad::test {
namespace {

thread_local std::string* notes = nullptr;  // of a thread that is not the process' first
std::atomic<int> signal_count{0};

void count_one(int) { signal_count.fetch_add(1); }

using Clock = std::chrono::steady_clock;

bool write_all(int fd, const void* data, std::size_t n) {
  const auto* p = static_cast<const char*>(data);
  while (n > 0) {
    const ssize_t done = ::write(fd, p, n);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    p += done;
    n -= static_cast<std::size_t>(done);
  }
  return true;
}

bool read_all(int fd, void* data, std::size_t n) {
  auto* p = static_cast<char*>(data);
  while (n > 0) {
    const ssize_t done = ::read(fd, p, n);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    p += done;
    n -= static_cast<std::size_t>(done);
  }
  return true;
}

}  // namespace

std::vector<Scenario>& scenarios() {
  static std::vector<Scenario> all;
  return all;
}

Registration::Registration(const char* name, unsigned traits, void (*run)(Actor&)) {
  scenarios().push_back({name, traits, run});
}

std::string patterned(std::uint64_t offset, std::size_t n) {
  std::string bytes(n, '\0');
  for (std::size_t i = 0; i < n; ++i) bytes[i] = pattern(offset + i);
  return bytes;
}

void count_signal(int signo, bool restart) {
  signal_count.store(0);
  struct sigaction action {};
  action.sa_handler = count_one;
  action.sa_flags = restart ? SA_RESTART : 0;
  sigaction(signo, &action, nullptr);
}

int signals_seen() { return signal_count.exchange(0); }

// ---- Threads

Thread::Thread(Actor& actor, std::function<void()> body)
    : actor_(&actor), shared_(std::make_shared<Shared>()) {
  thread_ = std::make_unique<std::thread>([shared = shared_, run = std::move(body)] {
    notes = &shared->notes;
    shared->tid.store(static_cast<pid_t>(::syscall(SYS_gettid)));
    run();
    notes = nullptr;
  });
}

bool wait_until_asleep(const std::atomic<pid_t>& thread) {
  const auto until = Clock::now() + std::chrono::seconds(5);
  int in_a_row = 0;
  while (Clock::now() < until) {
    const pid_t tid = thread.load();
    char state = '?';
    if (tid != 0) {
      char path[64];
      std::snprintf(path, sizeof path, "/proc/self/task/%d/stat", static_cast<int>(tid));
      if (std::FILE* file = std::fopen(path, "re")) {
        char text[512] = {};
        if (std::fgets(text, sizeof text, file) != nullptr) {
          const char* name_end = std::strrchr(text, ')');
          if (name_end != nullptr && name_end[1] == ' ') state = name_end[2];
        }
        std::fclose(file);
      }
    }
    // Not the short sleep of a contended lock.
    in_a_row = state == 'S' ? in_a_row + 1 : 0;
    if (in_a_row >= 10) return true;
    ::usleep(1000);
  }
  return false;
}

void Thread::wait_asleep() {
  if (!wait_until_asleep(shared_->tid)) actor_->log("the thread does not sleep");
}

void Thread::signal(int signo) { pthread_kill(thread_->native_handle(), signo); }

void Thread::join() {
  if (thread_ == nullptr) return;
  thread_->join();
  thread_.reset();
  actor_->emit(shared_->notes);
}

// ---- The transcript

void Actor::emit(const std::string& text) {
  if (notes != nullptr) {
    *notes += text;
  } else {
    write_all(log_fd_, text.data(), text.size());
  }
}

void Actor::log(const char* format, ...) {
  const int saved = errno;
  char line[1024];
  va_list args;
  va_start(args, format);
  std::vsnprintf(line, sizeof line, format, args);
  va_end(args);
  emit(std::string(1, side_) + " " + line + "\n");
  errno = saved;
}

void Actor::finish() {
  log("end");
  const char end = '\0';
  write_all(log_fd_, &end, 1);
}

// ---- Lock-step

void Actor::sync() {
  if (alone_) return;
  const char byte = '.';
  char other = 0;
  alone_ = !write_all(to_peer_, &byte, 1) || !read_all(from_peer_, &other, 1);
}

void Actor::server(const std::function<void()>& turn) {
  if (is_server()) turn();
  sync();
}

void Actor::client(const std::function<void()>& turn) {
  if (is_client()) turn();
  sync();
}

void Actor::both(const std::function<void()>& turn) {
  turn();
  sync();
}

// ---- Connections

sockaddr_storage Actor::address(int family, socklen_t& length) const {
  sockaddr_storage storage{};
  if (family == AF_INET) {
    auto& in = reinterpret_cast<sockaddr_in&>(storage);
    in.sin_family = AF_INET;
    in.sin_port = htons(port_);
    // Loopback, or where a test over RDMA has its devices.
    const char* named = std::getenv("RINGROAD_TEST_ADDRESS");
    if (named == nullptr || ::inet_pton(AF_INET, named, &in.sin_addr) != 1) {
      in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    }
    length = sizeof in;
  } else {
    auto& in = reinterpret_cast<sockaddr_in6&>(storage);
    in.sin6_family = AF_INET6;
    in.sin6_port = htons(port_);
    in.sin6_addr = in6addr_loopback;
    length = sizeof in;
  }
  return storage;
}

int Actor::listen_somewhere(int family) {
  listener_ = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  socklen_t length = 0;
  port_ = 0;
  sockaddr_storage at = address(family, length);
  if (::bind(listener_, reinterpret_cast<sockaddr*>(&at), length) != 0 ||
      ::listen(listener_, 128) != 0 ||
      ::getsockname(listener_, reinterpret_cast<sockaddr*>(&at), &length) != 0) {
    log("cannot listen: %s", strerrorname_np(errno));
    return -1;
  }
  port_ = ntohs(reinterpret_cast<sockaddr_in&>(at).sin_port);  // at the same place in both
  return listener_;
}

int Actor::connect_blocking(int family) {
  const int fd = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  socklen_t length = 0;
  sockaddr_storage at = address(family, length);
  if (::connect(fd, reinterpret_cast<sockaddr*>(&at), length) != 0) {
    log("connect: %s", strerrorname_np(errno));
  }
  return fd;
}

int Actor::accept_blocking() {
  const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd < 0) log("accept: %s", strerrorname_np(errno));
  return fd;
}

void Actor::meet(int family) {
  if (port_ != 0) return;
  if (is_server()) {
    listen_somewhere(family);
    write_all(to_peer_, &port_, sizeof port_);
  } else if (!read_all(from_peer_, &port_, sizeof port_)) {
    alone_ = true;
  }
}

int Actor::stream(int family) {
  meet(family);
  const int fd = is_server() ? accept_blocking() : connect_blocking(family);
  sync();
  return fd;
}

// ---- Bulk

bool Actor::send_pattern(int fd, std::uint64_t from, std::uint64_t n, std::size_t chunk) {
  std::uint64_t done = 0;
  while (done < n) {
    const std::string bytes =
        patterned(from + done, static_cast<std::size_t>(std::min<std::uint64_t>(chunk, n - done)));
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) {
      log("send of %llu bytes failed after %llu: %s", static_cast<unsigned long long>(n),
          static_cast<unsigned long long>(done), strerrorname_np(errno));
      return false;
    }
    done += static_cast<std::uint64_t>(sent);
  }
  log("sent %llu bytes from %llu", static_cast<unsigned long long>(n),
      static_cast<unsigned long long>(from));
  return true;
}

bool Actor::recv_pattern(int fd, std::uint64_t from, std::uint64_t n, std::size_t chunk) {
  std::uint64_t done = 0;
  std::vector<char> buffer(chunk);
  while (done < n) {
    const auto want = static_cast<std::size_t>(std::min<std::uint64_t>(chunk, n - done));
    const ssize_t got = ::recv(fd, buffer.data(), want, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      log("receive of %llu bytes ended after %llu: %s", static_cast<unsigned long long>(n),
          static_cast<unsigned long long>(done), got == 0 ? "end of file" : strerrorname_np(errno));
      return false;
    }
    for (ssize_t i = 0; i < got; ++i) {
      if (buffer[static_cast<std::size_t>(i)] != pattern(from + done + static_cast<std::uint64_t>(i))) {
        log("wrong byte at %llu", static_cast<unsigned long long>(from + done) +
                                      static_cast<unsigned long long>(i));
        return false;
      }
    }
    done += static_cast<std::uint64_t>(got);
  }
  log("received %llu bytes from %llu", static_cast<unsigned long long>(n),
      static_cast<unsigned long long>(from));
  return true;
}

void Actor::drain_to_end(int fd) {
  std::uint64_t done = 0;
  char buffer[16384];
  for (;;) {
    const ssize_t got = ::recv(fd, buffer, sizeof buffer, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      log("drained %llu bytes, then %s", static_cast<unsigned long long>(done),
          got == 0 ? "end of file" : strerrorname_np(errno));
      return;
    }
    for (ssize_t i = 0; i < got; ++i) {
      if (buffer[i] != pattern(done + static_cast<std::uint64_t>(i))) {
        log("wrong byte at %llu", static_cast<unsigned long long>(done) +
                                      static_cast<unsigned long long>(i));
        return;
      }
    }
    done += static_cast<std::uint64_t>(got);
  }
}

}  // namespace ringroad::test
