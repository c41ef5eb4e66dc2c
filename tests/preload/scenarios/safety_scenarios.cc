// What signal-safety(7) lets a handler call asks nobody for memory: the handler may have interrupted
// malloc(3).
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "tests/preload/drivers/actor.h"

// libc's, by the names that stay.
extern "C" {
void* __libc_malloc(std::size_t n);
void* __libc_calloc(std::size_t n, std::size_t size);
void* __libc_realloc(void* memory, std::size_t n);
void* __libc_memalign(std::size_t alignment, std::size_t n);
void __libc_free(void* memory);
}

namespace {

thread_local constinit volatile sig_atomic_t in_handler = 0;
thread_local constinit volatile sig_atomic_t asked = 0;

void note() {
  if (in_handler != 0) asked = asked + 1;
}

}  // namespace

// The whole process', the preloaded library's too.
extern "C" {
__attribute__((visibility("default"))) void* malloc(std::size_t n) {
  note();
  return __libc_malloc(n);
}
__attribute__((visibility("default"))) void* calloc(std::size_t n, std::size_t size) {
  note();
  return __libc_calloc(n, size);
}
__attribute__((visibility("default"))) void* realloc(void* memory, std::size_t n) {
  note();
  return __libc_realloc(memory, n);
}
__attribute__((visibility("default"))) void* aligned_alloc(std::size_t alignment, std::size_t n) {
  note();
  return __libc_memalign(alignment, n);
}
__attribute__((visibility("default"))) void free(void* memory) {
  if (memory != nullptr) note();
  __libc_free(memory);
}
}

namespace ringroad::test {
namespace {

constexpr int kMany = 100;

void (*to_do)() = nullptr;
int fd = -1;
int other = -1;
int epoll = -1;
long outcome = 0;
sockaddr_storage to;
socklen_t to_length = 0;
char buffer[16];
iovec piece{buffer, 4};
msghdr message;

void handler(int) {
  in_handler = 1;
  to_do();
  in_handler = 0;
}

struct Call {
  const char* name;
  void (*make)();
};

void make_in_handler(Actor& a, const Call& call) {
  asked = 0;
  outcome = 0;
  to_do = call.make;
  ::raise(SIGUSR1);
  a.log("%s = %ld, memory asked for: %s", call.name, outcome, asked != 0 ? "yes" : "no");
}

template <std::size_t count>
void make_each(Actor& a, const Call (&calls)[count]) {
  struct sigaction action {};
  action.sa_handler = handler;
  ::sigaction(SIGUSR1, &action, nullptr);
  for (const Call& call : calls) make_in_handler(a, call);
}

int poll_many() {
  std::array<pollfd, kMany> all;
  all.fill({-1, 0, 0});
  all[kMany / 2] = {fd, POLLOUT, 0};
  return ::poll(all.data(), all.size(), 1000);
}

int select_many(bool with_mask) {
  fd_set set;
  FD_ZERO(&set);
  for (int number = 0; number <= fd; ++number) FD_SET(number, &set);
  const timespec second{1, 0};
  timeval same{1, 0};
  sigset_t none;
  sigemptyset(&none);
  return with_mask ? ::pselect(fd + 1, nullptr, &set, nullptr, &second, &none)
                   : ::select(fd + 1, nullptr, &set, nullptr, &same);
}

constexpr Call kOfClient[] = {
    {"socket",
     [] {
       fd = ::socket(AF_INET, SOCK_STREAM, 0);
       outcome = fd >= 0;
     }},
    {"connect", [] { outcome = ::connect(fd, reinterpret_cast<sockaddr*>(&to), to_length); }},
    {"send", [] { outcome = ::send(fd, buffer, 4, MSG_NOSIGNAL); }},
    {"sendto", [] { outcome = ::sendto(fd, buffer, 4, MSG_NOSIGNAL, nullptr, 0); }},
    {"sendmsg", [] { outcome = ::sendmsg(fd, &message, MSG_NOSIGNAL); }},
    {"write", [] { outcome = ::write(fd, buffer, 4); }},
    {"writev", [] { outcome = ::writev(fd, &piece, 1); }},
    {"poll", [] { outcome = poll_many(); }},
    {"select", [] { outcome = select_many(false) > 0; }},
    {"pselect", [] { outcome = select_many(true) > 0; }},
    {"setsockopt",
     [] {
       const int on = 1;
       outcome = ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
     }},
    {"getsockopt",
     [] {
       int error = 1;
       socklen_t length = sizeof error;
       outcome = ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) + error;
     }},
    {"fcntl", [] { outcome = ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL)); }},
    {"dup",
     [] {
       other = ::dup(fd);
       outcome = other >= 0;
     }},
    {"dup2", [] { outcome = ::dup2(fd, other) == other; }},
    {"close of a duplicate", [] { outcome = ::close(other); }},
    {"epoll_ctl",
     [] {
       epoll_event event{EPOLLOUT, {.fd = fd}};
       outcome = ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
     }},
    {"epoll_wait",
     [] {
       epoll_event event;
       outcome = ::epoll_wait(epoll, &event, 1, 1000);
     }},
    {"sigaction",
     [] {
       struct sigaction action {};
       action.sa_handler = handler;
       outcome = ::sigaction(SIGUSR2, &action, nullptr);
     }},
    {"signal", [] { outcome = ::signal(SIGUSR2, SIG_DFL) == handler; }},
    {"shutdown", [] { outcome = ::shutdown(fd, SHUT_WR); }},
};

constexpr Call kOfServer[] = {
    {"accept", [] { fd = ::accept(other, nullptr, nullptr); outcome = fd >= 0; }},
    {"recv", [] { outcome = ::recv(fd, buffer, 4, MSG_WAITALL); }},
    {"recvfrom", [] { outcome = ::recvfrom(fd, buffer, 4, MSG_WAITALL, nullptr, nullptr); }},
    {"recvmsg", [] { outcome = ::recvmsg(fd, &message, MSG_WAITALL); }},
    {"read", [] { outcome = ::read(fd, buffer, 4); }},
    {"readv", [] { outcome = ::readv(fd, &piece, 1); }},
    {"FIONREAD", [] { int unread = -1; outcome = ::ioctl(fd, FIONREAD, &unread) + unread; }},
    {"recv of the end", [] { outcome = ::recv(fd, buffer, 4, 0); }},
    {"close", [] { outcome = ::close(fd); }},
};

}  // namespace

SCENARIO(handlers_ask_for_no_memory, 0) {
  const int first = a.stream();
  message = {};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  std::memset(buffer, 'b', sizeof buffer);
  a.client([&] {
    to = a.address(AF_INET, to_length);
    epoll = ::epoll_create1(EPOLL_CLOEXEC);
    make_each(a, kOfClient);
  });
  a.server([&] {
    other = a.listening();
    make_each(a, kOfServer);
  });
  a.client([&] {
    make_in_handler(a, {"close", [] { outcome = ::close(fd); }});
    ::close(epoll);
  });
  a.client([&] { a.send(first, "ping"); });
  a.server([&] { a.recv(first, 4); });
}

SCENARIO(the_first_connection_of_a_process_in_a_handler, 0) {
  a.meet();
  a.client([&] {
    to = a.address(AF_INET, to_length);
    constexpr Call kCalls[] = {kOfClient[0], kOfClient[1], kOfClient[2]};
    make_each(a, kCalls);
  });
  a.server([&] {
    const int accepted = ::accept(a.listening(), nullptr, nullptr);
    a.recv(accepted, 4);
  });
  const int stream = a.stream();  // as any
  a.client([&] { a.send(stream, "ping"); });
  a.server([&] { a.recv(stream, 4); });
}

}  // namespace ringroad::test
