#include "integration/bench/net_load/exchange.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <exception>
#include <thread>

#include "integration/bench/net_load/bytes.h"

namespace net_load {
namespace {

// ---- a thread for each connection

Samples block(int fd, const Run& run, End end) {
  std::vector<char> message(run.size, 'x');
  Samples samples;
  if (end == End::kAsks) samples.reserve(run.count);
  for (std::uint64_t i = 0; i < run.count; ++i) {
    const auto start = Clock::now();
    if (end == End::kAsks) send_all(fd, message.data(), message.size());
    if (!receive_all(fd, message.data(), message.size())) fail(ECONNRESET, "recv");
    if (end == End::kAnswers) {
      send_all(fd, message.data(), message.size());
    } else {
      samples.add(nanoseconds_since(start));
    }
  }
  return samples;
}

Samples block_in_threads(const std::vector<int>& connections, const Run& run, End end) {
  std::vector<Samples> samples(connections.size());
  std::vector<std::exception_ptr> problems(connections.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < connections.size(); ++i) {
      threads.emplace_back([&, i] {
        try {
          samples[i] = block(connections[i], run, end);
        } catch (...) {
          problems[i] = std::current_exception();
          // The others' peers may wait for what this one's does not do any more.
          for (const int fd : connections) shutdown(fd, SHUT_RDWR);
        }
      });
    }
  }
  Samples all;
  for (std::size_t i = 0; i < connections.size(); ++i) {
    if (problems[i]) std::rethrow_exception(problems[i]);
    all.add(samples[i]);
  }
  return all;
}

// ---- one thread

class Connection {
 public:
  Connection(int fd, const Run& run, End end)
      : fd_(fd), end_(end), message_(run.size, 'x'), turns_left_(run.count) {}

  int fd() const { return fd_; }
  bool done() const { return turns_left_ == 0; }
  bool wants_to_send() const { return sending_ && !done(); }

  void begin() {
    if (end_ == End::kAsks) ask();
  }

  // Goes on as far as the socket lets it.
  void proceed(Samples& samples) {
    while (!done() && (sending_ ? send_some() : receive_some(samples))) {
    }
  }

 private:
  void ask() {
    sending_ = true;
    start_ = Clock::now();
  }

  bool send_some() {
    if (!moved(send(fd_, message_.data() + at_, message_.size() - at_, MSG_NOSIGNAL), "send")) {
      return false;
    }
    if (at_ < message_.size()) return true;
    at_ = 0;
    sending_ = false;
    if (end_ == End::kAnswers) --turns_left_;
    // Nothing can have come in answer to what has only just gone.
    return false;
  }

  bool receive_some(Samples& samples) {
    if (!moved(recv(fd_, message_.data() + at_, message_.size() - at_, 0), "recv")) return false;
    if (at_ < message_.size()) return true;
    at_ = 0;
    sending_ = true;
    if (end_ == End::kAsks) {
      samples.add(nanoseconds_since(start_));
      --turns_left_;
      ask();
    }
    return true;
  }

  bool moved(ssize_t n, const char* call) {
    if (n < 0 && errno == EAGAIN) return false;
    if (n < 0) fail(errno, call);
    if (n == 0) fail(ECONNRESET, call);
    at_ += static_cast<std::size_t>(n);
    return true;
  }

  int fd_;
  End end_;
  std::vector<char> message_;
  std::size_t at_ = 0;
  bool sending_ = false;
  std::uint64_t turns_left_;
  Clock::time_point start_;
};

void set_blocking(int fd, bool blocking) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0) fail(errno, "fcntl");
  if (fcntl(fd, F_SETFL, blocking ? flags & ~O_NONBLOCK : flags | O_NONBLOCK) != 0) {
    fail(errno, "fcntl");
  }
}

// The descriptor of an epoll instance, closed with it.
struct Instance {
  int fd = epoll_create1(0);

  Instance() {
    if (fd < 0) fail(errno, "epoll_create1");
  }
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;
  ~Instance() { close(fd); }

  void control(int operation, Connection& connection) {
    epoll_event event{};
    event.events = connection.wants_to_send() ? EPOLLIN | EPOLLOUT : EPOLLIN;
    event.data.ptr = &connection;
    if (epoll_ctl(fd, operation, connection.fd(), &event) != 0) fail(errno, "epoll_ctl");
  }
};

Samples wait_for_all(const std::vector<int>& fds, const Run& run, End end) {
  std::vector<Connection> connections;
  connections.reserve(fds.size());
  Samples samples;
  if (end == End::kAsks) samples.reserve(fds.size() * run.count);
  Instance instance;
  for (const int fd : fds) {
    set_blocking(fd, false);
    instance.control(EPOLL_CTL_ADD, connections.emplace_back(fd, run, end));
  }
  std::size_t left = connections.size();
  const auto serve = [&](Connection& connection) {
    const bool wanted = connection.wants_to_send();
    connection.proceed(samples);
    if (connection.wants_to_send() != wanted) instance.control(EPOLL_CTL_MOD, connection);
    if (connection.done()) --left;
  };
  for (Connection& connection : connections) {
    connection.begin();
    connection.proceed(samples);
    if (connection.wants_to_send()) instance.control(EPOLL_CTL_MOD, connection);
  }
  while (left > 0) {
    std::array<epoll_event, 64> events;
    const int n = epoll_wait(instance.fd, events.data(), static_cast<int>(events.size()), -1);
    if (n < 0 && errno != EINTR) fail(errno, "epoll_wait");
    for (int i = 0; i < n; ++i) {
      auto& connection = *static_cast<Connection*>(events[static_cast<std::size_t>(i)].data.ptr);
      if (!connection.done()) serve(connection);
    }
  }
  for (const int fd : fds) set_blocking(fd, true);
  return samples;
}

}  // namespace

Samples exchange(const std::vector<int>& connections, const Run& run, End end) {
  if (run.wait == Wait::kEpoll) return wait_for_all(connections, run, end);
  if (connections.size() == 1) return block(connections.front(), run, end);
  return block_in_threads(connections, run, end);
}

}  // namespace net_load
