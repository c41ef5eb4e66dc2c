// How many descriptors a program can open while its connections are on channels: as many as without the
// library.
#include <dirent.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tests/preload/drivers/actor.h"
#include "tests/preload/scenarios/settling.h"

extern "C" {
int old_open(const char* path, int flags, ...) asm("__open");
int old_open64(const char* path, int flags, ...) asm("__open64");
int fortified_open(const char* path, int flags) asm("__open_2");
int fortified_open64(const char* path, int flags) asm("__open64_2");
int fortified_openat(int directory, const char* path, int flags) asm("__openat_2");
int fortified_openat64(int directory, const char* path, int flags) asm("__openat64_2");
}

namespace ringroad::test {
namespace {

void lower_limit(rlim_t to, bool hard_too) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = to;
  if (hard_too) limit.rlim_max = to;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

void exchange(Actor& a, int fd, int times) {
  for (int i = 0; i < times; ++i) {
    char bytes[4];
    if (a.is_client()) ::send(fd, "ping", 4, MSG_NOSIGNAL);
    if (::recv(fd, bytes, 4, MSG_WAITALL) != 4) a.log("no bytes");
    if (a.is_server()) ::send(fd, bytes, 4, MSG_NOSIGNAL);
  }
}

// Beyond its first messages, slept on by poll() and by an epoll instance.
int used_stream(Actor& a, int epoll) {
  const int fd = a.stream();
  epoll_event event{EPOLLIN, {.fd = fd}};
  a.result("epoll_ctl", ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
  exchange(a, fd, 50);
  for (int i = 0; i < 20; ++i) {
    if (a.is_client()) ::send(fd, "ping", 4, MSG_NOSIGNAL);
    if (::epoll_wait(epoll, &event, 1, 10'000) != 1) a.log("nothing is ready");
    exchange(a, fd, a.is_client() ? 0 : 1);
    char bytes[4];
    if (a.is_client() && ::recv(fd, bytes, 4, MSG_WAITALL) != 4) a.log("no bytes");
  }
  return fd;
}

// All that are left, and what the first call beyond says.
void open_all(Actor& a, int from, std::vector<int>& opened) {
  for (int copy; (copy = ::dup(from)) >= 0;) opened.push_back(copy);
  const int error = errno;
  a.log("opened %zu, then %s", opened.size(), std::strerror(error));
}

void open_what_the_limit_allows(Actor& a, rlim_t limit, bool hard_too) {
  lower_limit(limit, hard_too);
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  const int fd = used_stream(a, epoll);
  std::vector<int> opened;
  open_all(a, epoll, opened);
  exchange(a, fd, 5);
  for (const int copy : opened) ::close(copy);
  opened.clear();
  open_all(a, epoll, opened);
  exchange(a, fd, 5);
  for (const int copy : opened) ::close(copy);
  if (a.is_client()) ::send(fd, "ping", 4, MSG_NOSIGNAL);
  epoll_event event{};
  if (a.is_server()) a.result("epoll_wait", ::epoll_wait(epoll, &event, 1, 10'000));
  a.sync();
}

}  // namespace

SCENARIO(descriptors_up_to_a_soft_limit_of_64, kStaysOnChannel) {
  open_what_the_limit_allows(a, 64, false);
}
SCENARIO(descriptors_up_to_a_soft_limit_of_256, kStaysOnChannel) {
  open_what_the_limit_allows(a, 256, false);
}
SCENARIO(descriptors_up_to_a_soft_limit_of_1024, kStaysOnChannel) {
  open_what_the_limit_allows(a, 1024, false);
}
SCENARIO(descriptors_up_to_a_hard_limit_of_64, 0) { open_what_the_limit_allows(a, 64, true); }
SCENARIO(descriptors_up_to_a_hard_limit_of_256, 0) { open_what_the_limit_allows(a, 256, true); }
SCENARIO(descriptors_up_to_a_hard_limit_of_1024, 0) { open_what_the_limit_allows(a, 1024, true); }

// Where the soft limit is below the hard one, a number above it is nobody's.
SCENARIO(any_number_can_be_duplicated_to, 0) {
  for (const bool hard_too : {false, true}) {
    lower_limit(1024, hard_too);
    const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
    const int fd = used_stream(a, epoll);
    int made = 0;
    for (int number = 700; number < 1100; ++number) {
      if (::dup2(epoll, number) == number) ++made;
    }
    a.log("made %d", made);
    exchange(a, fd, 5);
    for (int number = 700; number < 1100; ++number) ::close(number);
    a.sync();
  }
}

// ---- Calls that make descriptors of other kinds

namespace {

const char kFile[] = "/dev/null";

// A call that makes a descriptor, or two at a time. False: it fails.
using Make = bool();

bool by_open() { return ::open(kFile, O_RDONLY) >= 0; }
bool by_open64() { return ::open64(kFile, O_RDONLY) >= 0; }
bool by_old_open() { return old_open(kFile, O_RDONLY) >= 0; }
bool by_old_open64() { return old_open64(kFile, O_RDONLY) >= 0; }
bool by_fortified_open() { return fortified_open(kFile, O_RDONLY) >= 0; }
bool by_fortified_open64() { return fortified_open64(kFile, O_RDONLY) >= 0; }
bool by_openat() { return ::openat(AT_FDCWD, kFile, O_RDONLY) >= 0; }
bool by_openat64() { return ::openat64(AT_FDCWD, kFile, O_RDONLY) >= 0; }
bool by_fortified_openat() { return fortified_openat(AT_FDCWD, kFile, O_RDONLY) >= 0; }
bool by_fortified_openat64() { return fortified_openat64(AT_FDCWD, kFile, O_RDONLY) >= 0; }
bool by_creat() { return ::creat(kFile, 0600) >= 0; }
bool by_creat64() { return ::creat64(kFile, 0600) >= 0; }
bool by_fopen() { return std::fopen(kFile, "re") != nullptr; }
bool by_fopen64() { return ::fopen64(kFile, "re") != nullptr; }
bool by_opendir() { return ::opendir("/") != nullptr; }
bool by_pipe() { int ends[2]; return ::pipe(ends) == 0; }
bool by_pipe2() { int ends[2]; return ::pipe2(ends, O_CLOEXEC) == 0; }
bool by_socketpair() { int ends[2]; return ::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0; }
bool by_number_pipe2() { int ends[2]; return ::syscall(SYS_pipe2, ends, O_CLOEXEC) == 0; }
bool by_number_socketpair() {
  int ends[2];
  return ::syscall(SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, ends) == 0;
}
bool by_eventfd() { return ::eventfd(0, EFD_CLOEXEC) >= 0; }
bool by_epoll_create() { return ::epoll_create(1) >= 0; }
bool by_epoll_create1() { return ::epoll_create1(EPOLL_CLOEXEC) >= 0; }
bool by_timerfd_create() { return ::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC) >= 0; }
bool by_signalfd() {
  sigset_t none;
  ::sigemptyset(&none);
  return ::signalfd(-1, &none, SFD_CLOEXEC) >= 0;
}
bool by_memfd_create() { return ::memfd_create("none", MFD_CLOEXEC) >= 0; }
bool by_dup() { return ::dup(STDIN_FILENO) >= 0; }
bool by_fcntl() { return ::fcntl(STDIN_FILENO, F_DUPFD, 3) >= 0; }
bool by_socket() { return ::socket(AF_INET, SOCK_STREAM, 0) >= 0; }
bool by_inotify_init() { return ::inotify_init() >= 0; }
bool by_inotify_init1() { return ::inotify_init1(IN_CLOEXEC) >= 0; }
// The library does not see this one.
bool by_mkostemp() {
  char path[] = "/tmp/ringroad-test-XXXXXX";
  const int fd = ::mkostemp(path, O_CLOEXEC);
  if (fd >= 0) ::unlink(path);
  return fd >= 0;
}

// Enough for each descriptor of the library's own to count.
constexpr int kStreams = 24;
constexpr rlim_t kLimit = 1024;

std::vector<int> used_streams(Actor& a) {
  std::vector<int> streams;
  for (int i = 0; i < kStreams; ++i) {
    streams.push_back(a.stream());
    exchange(a, streams.back(), 10);
    settle_by_libc(a, streams.back());
  }
  return streams;
}

void lower_limit_to_hard_one() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  lower_limit(limit.rlim_max, true);
}

void make_all(Actor& a, Make& make) {
  int made = 0;
  while (make()) ++made;
  const int error = errno;
  a.log("made %d, then %s", made, std::strerror(error));
}

// The library hears of the limit by this call's failure.
void meet_a_limit(Actor& a, Make& make) {
  lower_limit_to_hard_one();
  const std::vector<int> streams = used_streams(a);
  lower_limit(kLimit, true);
  make_all(a, make);
  for (const int fd : streams) exchange(a, fd, 2);
  a.sync();
}

// And by this one's number, so that there is room for calls that it does not see.
void come_near_a_limit(Actor& a, Make& make) {
  lower_limit(kLimit, true);
  const std::vector<int> streams = used_streams(a);
  // Copies of numbers that are no streams are looked at only when they fail.
  while (true) {
    const int copy = ::dup(STDIN_FILENO);
    if (copy >= static_cast<int>(kLimit * 3 / 4)) {
      ::close(copy);
      break;
    }
  }
  if (!make()) a.log("none is made: %s", std::strerror(errno));
  make_all(a, by_mkostemp);
  for (const int fd : streams) exchange(a, fd, 2);
  a.sync();
}

}  // namespace

#define LIMIT_IS_MET(kind) \
  SCENARIO(a_limit_is_met_by_##kind, 0) { meet_a_limit(a, by_##kind); }
#define LIMIT_IS_NEAR(kind) \
  SCENARIO(a_limit_is_near_by_##kind, 0) { come_near_a_limit(a, by_##kind); }

LIMIT_IS_MET(open)
LIMIT_IS_MET(open64)
LIMIT_IS_MET(old_open)
LIMIT_IS_MET(old_open64)
LIMIT_IS_MET(fortified_open)
LIMIT_IS_MET(fortified_open64)
LIMIT_IS_MET(openat)
LIMIT_IS_MET(openat64)
LIMIT_IS_MET(fortified_openat)
LIMIT_IS_MET(fortified_openat64)
LIMIT_IS_MET(creat)
LIMIT_IS_MET(creat64)
LIMIT_IS_MET(fopen)
LIMIT_IS_MET(fopen64)
LIMIT_IS_MET(opendir)
LIMIT_IS_MET(pipe)
LIMIT_IS_MET(pipe2)
LIMIT_IS_MET(socketpair)
LIMIT_IS_MET(eventfd)
LIMIT_IS_MET(epoll_create)
LIMIT_IS_MET(epoll_create1)
LIMIT_IS_MET(timerfd_create)
LIMIT_IS_MET(signalfd)
LIMIT_IS_MET(memfd_create)
LIMIT_IS_MET(dup)
LIMIT_IS_MET(fcntl)
LIMIT_IS_MET(socket)
LIMIT_IS_MET(number_pipe2)
LIMIT_IS_MET(number_socketpair)

LIMIT_IS_NEAR(open)
LIMIT_IS_NEAR(fopen)
LIMIT_IS_NEAR(opendir)
LIMIT_IS_NEAR(pipe)
LIMIT_IS_NEAR(socketpair)
LIMIT_IS_NEAR(number_pipe2)
LIMIT_IS_NEAR(number_socketpair)
LIMIT_IS_NEAR(inotify_init)
LIMIT_IS_NEAR(inotify_init1)

// ---- Calls that bring descriptors in messages

namespace {

using Receive = ssize_t(int fd, msghdr& message);

ssize_t by_recvmsg(int fd, msghdr& message) { return ::recvmsg(fd, &message, MSG_CMSG_CLOEXEC); }
ssize_t by_recvmmsg(int fd, msghdr& message) {
  mmsghdr several{message, 0};
  const int received = ::recvmmsg(fd, &several, 1, MSG_CMSG_CLOEXEC, nullptr);
  message = several.msg_hdr;
  return received == 1 ? static_cast<ssize_t>(several.msg_len) : -1;
}

// How many come in one message of so many. -1: it does not come.
int pass_on(const int (&ends)[2], int count, Receive& receive, bool& all) {
  constexpr int kAtMost = 20;
  alignas(cmsghdr) char control[CMSG_SPACE(kAtMost * sizeof(int))] = {};
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(int);
  char byte = 0;
  iovec piece{&byte, 1};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(bytes);
  cmsghdr* const part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(bytes);
  int passed[kAtMost];
  std::fill_n(passed, kAtMost, STDIN_FILENO);
  std::memcpy(CMSG_DATA(part), passed, bytes);
  if (::sendmsg(ends[0], &message, MSG_NOSIGNAL) != 1) return -1;
  message.msg_controllen = sizeof control;
  if (receive(ends[1], message) != 1) return -1;
  all = (message.msg_flags & MSG_CTRUNC) == 0;
  const cmsghdr* const got = CMSG_FIRSTHDR(&message);
  return got == nullptr ? 0 : static_cast<int>((got->cmsg_len - CMSG_LEN(0)) / sizeof(int));
}

// The kernel drops what there is no number for, and says so in the message.
void meet_a_limit_by_messages(Actor& a, Receive& receive) {
  constexpr int kAtATime = 20;
  lower_limit(kLimit, true);
  const std::vector<int> streams = used_streams(a);
  int ends[2];
  a.result("socketpair", ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
  int received = 0;
  for (bool all = true; all;) {
    const int came = pass_on(ends, kAtATime, receive, all);
    if (came < 0) break;
    received += came;
  }
  a.log("received %d", received);
  for (const int fd : streams) exchange(a, fd, 2);
  a.sync();
}

}  // namespace

SCENARIO(a_limit_is_met_by_recvmsg, 0) { meet_a_limit_by_messages(a, by_recvmsg); }
SCENARIO(a_limit_is_met_by_recvmmsg, 0) { meet_a_limit_by_messages(a, by_recvmmsg); }

SCENARIO(descriptors_are_made_by_number, 0) {
  lower_limit_to_hard_one();
  const std::vector<int> streams = used_streams(a);
  lower_limit(kLimit, true);
  int ends[2];
  sigset_t none;
  ::sigemptyset(&none);
  const long file = reinterpret_cast<long>(kFile);
  struct {
    std::uint64_t flags = O_RDONLY, mode = 0, resolve = 0;
  } how;
  const struct {
    const char* name;
    long number;
    long arguments[4];
  } calls[] = {
      {"openat", SYS_openat, {AT_FDCWD, file, O_RDONLY}},
      {"openat2", SYS_openat2, {AT_FDCWD, file, reinterpret_cast<long>(&how), sizeof how}},
      {"open_by_handle_at", SYS_open_by_handle_at, {AT_FDCWD, 0, 0}},
      {"pipe2", SYS_pipe2, {reinterpret_cast<long>(ends), O_CLOEXEC}},
      {"socketpair", SYS_socketpair, {AF_UNIX, SOCK_STREAM, 0, reinterpret_cast<long>(ends)}},
      {"eventfd2", SYS_eventfd2, {0, EFD_CLOEXEC}},
      {"signalfd4", SYS_signalfd4, {-1, reinterpret_cast<long>(&none), _NSIG / 8, SFD_CLOEXEC}},
      {"epoll_create1", SYS_epoll_create1, {EPOLL_CLOEXEC}},
      {"memfd_create", SYS_memfd_create, {reinterpret_cast<long>("none"), MFD_CLOEXEC}},
      {"timerfd_create", SYS_timerfd_create, {CLOCK_MONOTONIC, TFD_CLOEXEC}},
      {"pidfd_open", SYS_pidfd_open, {::getpid(), 0}},
      {"userfaultfd", SYS_userfaultfd, {O_CLOEXEC | 1}},  // UFFD_USER_MODE_ONLY
      {"inotify_init1", SYS_inotify_init1, {IN_CLOEXEC}},
      {"fanotify_init", SYS_fanotify_init, {-1, -1}},
#ifdef SYS_open
      {"open", SYS_open, {file, O_RDONLY}},
      {"creat", SYS_creat, {file, 0600}},
      {"pipe", SYS_pipe, {reinterpret_cast<long>(ends)}},
      {"eventfd", SYS_eventfd, {0}},
      {"signalfd", SYS_signalfd, {-1, reinterpret_cast<long>(&none), _NSIG / 8}},
      {"epoll_create", SYS_epoll_create, {1}},
      {"inotify_init", SYS_inotify_init, {}},
#endif
  };
  for (const auto& call : calls) {
    const auto& [first, second, third, fourth] = call.arguments;
    const long made = ::syscall(call.number, first, second, third, fourth);
    a.result(call.name, made < 0 ? -1 : 0);
  }
  int more = 0;
  while (::syscall(SYS_eventfd2, 0L, EFD_CLOEXEC) >= 0) ++more;
  const int error = errno;
  a.log("%d more, then %s", more, std::strerror(error));
  for (const int fd : streams) exchange(a, fd, 2);
  a.sync();
}

}  // namespace ringroad::test
