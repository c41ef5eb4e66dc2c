// How much of a thread's stack each function of the library's needs, beyond what libc's own does: programs
// have threads with a few kilobytes. Here those that serve a stream on a channel.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "tests/preload/drivers/actor.h"
#include "tests/preload/scenarios/stack_measure.h"

namespace ringroad::test {
namespace {

// ---- Calls that a stream on a channel serves

const Measured kServed[] = {
    {"read", [](Call& c) { c.value = c.as<decltype(::read)>()(c.fd, memory, 8); }},
    {"readv", [](Call& c) { c.value = c.as<decltype(::readv)>()(c.fd, &piece, 1); }},
    {"preadv2", [](Call& c) { c.value = c.as<decltype(::preadv2)>()(c.fd, &piece, 1, -1, 0); }},
    {"preadv64v2", [](Call& c) { c.value = c.as<decltype(::preadv2)>()(c.fd, &piece, 1, -1, 0); }},
    {"recv", [](Call& c) { c.value = c.as<decltype(::recv)>()(c.fd, memory, 8, 0); }},
    {"recvfrom",
     [](Call& c) {
       c.value = c.as<ssize_t(int, void*, size_t, int, void*, void*)>()(c.fd, memory, 8, 0, nullptr, nullptr);
     }},
    {"recvmsg",
     [](Call& c) {
       msghdr message{};
       message.msg_iov = &piece;
       message.msg_iovlen = 1;
       c.value = c.as<decltype(::recvmsg)>()(c.fd, &message, 0);
     }},
    {"__read", [](Call& c) { c.value = c.as<decltype(::read)>()(c.fd, memory, 8); }},
    {"__read_chk",
     [](Call& c) { c.value = c.as<ssize_t(int, void*, size_t, size_t)>()(c.fd, memory, 8, 64); }},
    {"__recv_chk",
     [](Call& c) { c.value = c.as<ssize_t(int, void*, size_t, size_t, int)>()(c.fd, memory, 8, 64, 0); }},
    {"__recvfrom_chk",
     [](Call& c) {
       c.value = c.as<ssize_t(int, void*, size_t, size_t, int, void*, void*)>()(c.fd, memory, 8, 64, 0,
                                                                               nullptr, nullptr);
     }},
    {"write", [](Call& c) { c.value = c.as<decltype(::write)>()(c.fd, memory, 8); }},
    {"__write", [](Call& c) { c.value = c.as<decltype(::write)>()(c.fd, memory, 8); }},
    {"writev", [](Call& c) { c.value = c.as<decltype(::writev)>()(c.fd, &piece, 1); }},
    {"pwritev2", [](Call& c) { c.value = c.as<decltype(::pwritev2)>()(c.fd, &piece, 1, -1, 0); }},
    {"pwritev64v2", [](Call& c) { c.value = c.as<decltype(::pwritev2)>()(c.fd, &piece, 1, -1, 0); }},
    {"send", [](Call& c) { c.value = c.as<decltype(::send)>()(c.fd, memory, 8, 0); }},
    {"__send", [](Call& c) { c.value = c.as<decltype(::send)>()(c.fd, memory, 8, 0); }},
    {"sendto",
     [](Call& c) {
       c.value =
           c.as<ssize_t(int, const void*, size_t, int, void*, socklen_t)>()(c.fd, memory, 8, 0, nullptr, 0);
     }},
    {"sendmsg",
     [](Call& c) {
       msghdr message{};
       message.msg_iov = &piece;
       message.msg_iovlen = 1;
       c.value = c.as<decltype(::sendmsg)>()(c.fd, &message, 0);
     }},
    {"sendfile",
     [](Call& c) {
       off_t at = 0;
       c.value = c.as<decltype(::sendfile)>()(c.fd, c.other, &at, 8);
     }},
    {"sendfile64",
     [](Call& c) {
       off_t at = 0;
       c.value = c.as<decltype(::sendfile)>()(c.fd, c.other, &at, 8);
     }},
    {"ioctl", [](Call& c) { c.value = c.as<decltype(::ioctl)>()(c.fd, FIONREAD, &c.value); }},
    {"getsockopt",
     [](Call& c) {
       socklen_t length = sizeof(int);
       c.value = c.as<decltype(::getsockopt)>()(c.fd, SOL_SOCKET, SO_ERROR, memory, &length);
     }},
    {"setsockopt",
     [](Call& c) {
       const int on = 1;
       c.value = c.as<decltype(::setsockopt)>()(c.fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
     }},
    {"fcntl", [](Call& c) { c.value = c.as<decltype(::fcntl)>()(c.fd, F_GETFL, 0); }},
    {"__fcntl", [](Call& c) { c.value = c.as<decltype(::fcntl)>()(c.fd, F_GETFL, 0); }},
    {"fcntl64", [](Call& c) { c.value = c.as<decltype(::fcntl)>()(c.fd, F_SETFL, O_RDWR); }},
    // Each makes a number and closes it.
    {"dup", [](Call& c) { ::close(static_cast<int>(c.value = c.as<decltype(::dup)>()(c.fd))); }},
    {"dup2", [](Call& c) { ::close(static_cast<int>(c.value = c.as<decltype(::dup2)>()(c.fd, 300))); }},
    {"__dup2", [](Call& c) { ::close(static_cast<int>(c.value = c.as<decltype(::dup2)>()(c.fd, 300))); }},
    {"dup3",
     [](Call& c) { ::close(static_cast<int>(c.value = c.as<decltype(::dup3)>()(c.fd, 300, O_CLOEXEC))); }},
    {"close", [](Call& c) { c.value = c.as<decltype(::close)>()(::dup(c.fd)); }},
    {"__close", [](Call& c) { c.value = c.as<decltype(::close)>()(::dup(c.fd)); }},
    {"close_range",
     [](Call& c) {
       const auto copy = static_cast<unsigned>(::dup(c.fd));
       c.value = c.as<int(unsigned, unsigned, int)>()(copy, copy, 0);
     }},
    {"closefrom", [](Call& c) { c.as<void(int)>()((::dup2(c.fd, 100'000), 100'000)); }},
    {"syscall",
     [](Call& c) {
       c.value = c.as<decltype(::syscall)>()(SYS_sendto, c.fd, memory, 8, MSG_NOSIGNAL, nullptr, 0);
     }},
};

// ---- Calls that wait, for a moment in which nothing comes, on a stream on a channel

constexpr int kMoment = 5;
const timespec kMomentOf{0, kMoment * 1'000'000};

const Measured kWaiting[] = {
    {"recv", [](Call& c) { c.value = c.as<decltype(::recv)>()(c.fd, memory, 8, 0); }},
    {"read", [](Call& c) { c.value = c.as<decltype(::read)>()(c.fd, memory, 8); }},
    {"readv", [](Call& c) { c.value = c.as<decltype(::readv)>()(c.fd, &piece, 1); }},
    {"poll",
     [](Call& c) {
       pollfd entry{c.fd, POLLIN, 0};
       c.value = c.as<decltype(::poll)>()(&entry, 1, kMoment);
     }},
    {"__poll",
     [](Call& c) {
       pollfd entry{c.fd, POLLIN, 0};
       c.value = c.as<decltype(::poll)>()(&entry, 1, kMoment);
     }},
    {"ppoll",
     [](Call& c) {
       pollfd entry{c.fd, POLLIN, 0};
       c.value = c.as<decltype(::ppoll)>()(&entry, 1, &kMomentOf, nullptr);
     }},
    {"__poll_chk",
     [](Call& c) {
       pollfd entry{c.fd, POLLIN, 0};
       c.value = c.as<int(pollfd*, nfds_t, int, size_t)>()(&entry, 1, kMoment, sizeof entry);
     }},
    {"__ppoll_chk",
     [](Call& c) {
       pollfd entry{c.fd, POLLIN, 0};
       c.value = c.as<int(pollfd*, nfds_t, const timespec*, const sigset_t*, size_t)>()(
           &entry, 1, &kMomentOf, nullptr, sizeof entry);
     }},
    {"select",
     [](Call& c) {
       fd_set in;
       FD_ZERO(&in);
       FD_SET(c.fd, &in);
       timeval moment{0, kMoment * 1000};
       c.value = c.as<decltype(::select)>()(c.fd + 1, &in, nullptr, nullptr, &moment);
     }},
    {"__select",
     [](Call& c) {
       fd_set in;
       FD_ZERO(&in);
       FD_SET(c.fd, &in);
       timeval moment{0, kMoment * 1000};
       c.value = c.as<decltype(::select)>()(c.fd + 1, &in, nullptr, nullptr, &moment);
     }},
    {"pselect",
     [](Call& c) {
       fd_set in;
       FD_ZERO(&in);
       FD_SET(c.fd, &in);
       c.value = c.as<decltype(::pselect)>()(c.fd + 1, &in, nullptr, nullptr, &kMomentOf, nullptr);
     }},
};

// The same of a set of eight, a stream and what is no stream.
const Measured kWaitingForMany[] = {
    {"poll",
     [](Call& c) {
       pollfd set[8];
       for (pollfd& entry : set) entry = {c.other, POLLIN, 0};
       set[3].fd = c.fd;
       c.value = c.as<decltype(::poll)>()(set, 8, kMoment);
     }},
};

// `fd` is the instance, `other` what it holds already.
const Measured kEpoll[] = {
    {"epoll_ctl",
     [](Call& c) {
       epoll_event event{};
       event.events = EPOLLIN;
       c.value = c.as<decltype(::epoll_ctl)>()(c.fd, EPOLL_CTL_MOD, c.other, &event);
     }},
    {"epoll_wait",
     [](Call& c) {
       epoll_event event{};
       c.value = c.as<decltype(::epoll_wait)>()(c.fd, &event, 1, kMoment);
     }},
    {"epoll_pwait",
     [](Call& c) {
       epoll_event event{};
       c.value = c.as<decltype(::epoll_pwait)>()(c.fd, &event, 1, kMoment, nullptr);
     }},
    {"epoll_pwait2",
     [](Call& c) {
       epoll_event event{};
       c.value = c.as<int(int, epoll_event*, int, const timespec*, const sigset_t*)>()(
           c.fd, &event, 1, &kMomentOf, nullptr);
     }},
};

void drain(int fd) {
  char buffer[4096];
  while (::recv(fd, buffer, sizeof buffer, 0) > 0) {
  }
}

}  // namespace

SCENARIO(stack_of_calls_on_a_channel, kStaysOnChannel) {
  const int fd = a.stream();
  a.server([&] {
    const std::string bytes(4096, 's');
    if (::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) a.log("nothing to read");
  });
  a.client([&] {
    int ends[2];
    const int plain = plain_socket(ends);
    const int file = file_of_bytes();
    a.settle_unread(fd, 4096);
    for (const Measured& one : kServed) expect_bound(a, one, fd, plain, file);
    for (const Measured& one : kServed) expect_bound(a, one, plain, plain, file);
    for (const int end : {ends[0], ends[1], file}) ::close(end);
    a.shutdown(fd, SHUT_WR);
  });
  a.server([&] {
    drain(fd);
    a.log("all drained");
  });
}

SCENARIO(stack_of_calls_that_wait, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "something"); });
  a.server([&] { a.recv(fd, 100); });
  a.both([&] {
    int ends[2];
    ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends);
    const timeval moment{0, kMoment * 1000};
    for (const int one : {fd, ends[0]}) ::setsockopt(one, SOL_SOCKET, SO_RCVTIMEO, &moment, sizeof moment);
    for (const Measured& one : kWaiting) expect_bound(a, one, fd, ends[0]);
    for (const Measured& one : kWaiting) expect_bound(a, one, ends[0], ends[0]);
    for (const Measured& one : kWaitingForMany) expect_bound(a, one, fd, ends[0], ends[1]);
    int instances[2];
    epoll_event event{};
    event.events = EPOLLIN;
    for (int& instance : instances) instance = ::epoll_create1(EPOLL_CLOEXEC);
    ::epoll_ctl(instances[0], EPOLL_CTL_ADD, fd, &event);
    ::epoll_ctl(instances[0], EPOLL_CTL_ADD, ends[0], &event);
    ::epoll_ctl(instances[1], EPOLL_CTL_ADD, fd, &event);
    ::epoll_ctl(instances[1], EPOLL_CTL_ADD, ends[0], &event);
    for (const Measured& one : kEpoll) expect_bound(a, one, instances[0], instances[1], fd);
    for (const Measured& one : kEpoll) expect_bound(a, one, instances[1], instances[1], ends[0]);
    for (const int end : {ends[0], ends[1], instances[0], instances[1]}) ::close(end);
  });
}

}  // namespace ringroad::test
