#include "tests/preload/programs/random_calls.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <limits>
#include <vector>

namespace ringroad::test {

const char kBytes[kWaitBytes] = {};
char received[65'536];

namespace {

char waited[kWaitBytes];
constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();

// The compiler is not to know them.
template <typename T>
T told(T value) {
  const volatile T hidden = value;
  return hidden;
}

template <typename T>
T* null() {
  return told(static_cast<T*>(nullptr));
}

constexpr std::size_t kTooMany = IOV_MAX + 1;

long send_message(int fd, iovec* vectors, std::size_t count) {
  msghdr message{};
  message.msg_iov = vectors;
  message.msg_iovlen = count;
  return ::sendmsg(fd, &message, MSG_NOSIGNAL);
}

long receive_message(int fd, iovec* vectors, std::size_t count) {
  msghdr message{};
  message.msg_iov = vectors;
  message.msg_iovlen = count;
  return ::recvmsg(fd, &message, MSG_DONTWAIT);
}

constexpr Call kBadSends[] = {
    {"write of -1", [](int fd) { return ::write(fd, kBytes, told(kNever)); }},
    {"write of 2^63", [](int fd) { return ::write(fd, kBytes, told(std::size_t{1} << 63)); }},
    {"write of null", [](int fd) { return ::write(fd, null<char>(), told(std::size_t{5})); }},
    {"send of null", [](int fd) { return ::send(fd, null<char>(), told(std::size_t{5}), MSG_NOSIGNAL); }},
    {"send of nothing at null", [](int fd) { return ::send(fd, null<char>(), 0, MSG_NOSIGNAL); }},
    {"writev of -1",
     [](int fd) {
       iovec one{received, told(kNever)};
       return ::writev(fd, &one, 1);
     }},
    {"writev of 8 and -1",
     [](int fd) {
       iovec two[2] = {{received, 8}, {received, told(kNever)}};
       return ::writev(fd, two, 2);
     }},
    {"writev of -1 vectors",
     [](int fd) {
       iovec one{received, 8};
       return ::writev(fd, &one, told(-1));
     }},
    {"writev from null", [](int fd) { return ::writev(fd, null<iovec>(), told(1)); }},
    {"writev of too many",
     [](int fd) {
       static iovec many[kTooMany] = {};
       return ::writev(fd, many, told(static_cast<int>(kTooMany)));
     }},
    {"sendmsg of -1",
     [](int fd) {
       iovec one{received, told(kNever)};
       return send_message(fd, &one, 1);
     }},
    {"sendmsg of too many",
     [](int fd) {
       iovec one{received, 1};
       return send_message(fd, &one, told(kTooMany));
     }},
    {"sendmsg of null",
     [](int fd) {
       iovec one{null<char>(), 5};
       return send_message(fd, &one, 1);
     }},
    {"sendmsg from null",
     [](int fd) { return static_cast<long>(::sendmsg(fd, null<msghdr>(), MSG_NOSIGNAL)); }},
    {"pwritev2 of -1 vectors",
     [](int fd) {
       iovec one{received, 1};
       return ::pwritev2(fd, &one, told(-1), -1, 0);
     }},
    {"pwrite", [](int fd) { return ::pwrite(fd, kBytes, 1, 0); }},
    {"sendfile from -1", [](int fd) { return ::sendfile(fd, -1, nullptr, 10); }},
};

constexpr Call kBadReceives[] = {
    {"recv of -1", [](int fd) { return ::recv(fd, received, told(kNever), MSG_DONTWAIT); }},
    {"recv to null", [](int fd) { return ::recv(fd, null<char>(), told(std::size_t{5}), MSG_DONTWAIT); }},
    {"recv of nothing to null", [](int fd) { return ::recv(fd, null<char>(), 0, MSG_DONTWAIT); }},
    {"recvmsg of -1",
     [](int fd) {
       iovec one{received, told(kNever)};
       return receive_message(fd, &one, 1);
     }},
    {"recvmsg of 8 and -1",
     [](int fd) {
       iovec two[2] = {{received, 8}, {received, told(kNever)}};
       return receive_message(fd, two, 2);
     }},
    {"recvmsg of too many",
     [](int fd) {
       iovec one{received, 1};
       return receive_message(fd, &one, told(kTooMany));
     }},
    {"recvmsg to null",
     [](int fd) {
       iovec one{null<char>(), 5};
       return receive_message(fd, &one, 1);
     }},
    {"recvmsg from null",
     [](int fd) { return static_cast<long>(::recvmsg(fd, null<msghdr>(), MSG_DONTWAIT)); }},
    {"readv of -1",
     [](int fd) {
       iovec one{received, told(kNever)};
       return ::readv(fd, &one, 1);
     }},
    {"readv of -1 vectors",
     [](int fd) {
       iovec one{received, 8};
       return ::readv(fd, &one, told(-1));
     }},
    {"readv from null", [](int fd) { return ::readv(fd, null<iovec>(), told(1)); }},
    {"pread", [](int fd) { return ::pread(fd, received, 1, 0); }},
    {"preadv2 of -1 vectors",
     [](int fd) {
       iovec one{received, 1};
       return ::preadv2(fd, &one, told(-1), -1, 0);
     }},
};

constexpr Call kTakenBack[] = {
    {"recv of urgent bytes", [](int fd) { return ::recv(fd, received, 1, MSG_OOB | MSG_DONTWAIT); }},
    {"recv of errors", [](int fd) { return ::recv(fd, received, 1, MSG_ERRQUEUE | MSG_DONTWAIT); }},
    {"SIOCATMARK",
     [](int fd) {
       int value = 0;
       return static_cast<long>(::ioctl(fd, SIOCATMARK, &value));
     }},
};

long wait_with(int epoll, int most, epoll_event* events) { return ::epoll_wait(epoll, events, most, 0); }

long control_with(int fd, int op, epoll_event* event) {
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  const long result = ::epoll_ctl(epoll, op, fd, event);
  const int saved = errno;
  ::close(epoll);
  errno = saved;
  return result;
}

constexpr Call kMisuses[] = {
    {"poll of null", [](int) { return static_cast<long>(::poll(null<pollfd>(), told(nfds_t{1}), 0)); }},
    {"poll of too many",
     [](int) { return static_cast<long>(::poll(null<pollfd>(), told(nfds_t{1} << 31), 0)); }},
    {"poll of more than the limit",
     [](int fd) {
       rlimit limit{};
       ::getrlimit(RLIMIT_NOFILE, &limit);
       std::vector<pollfd> all(limit.rlim_cur + 1, pollfd{-1, 0, 0});
       all[1] = {fd, 0, 0};
       return static_cast<long>(::poll(all.data(), all.size(), 0));
     }},
    {"poll of as many as the limit",
     [](int fd) {
       rlimit limit{};
       ::getrlimit(RLIMIT_NOFILE, &limit);
       std::vector<pollfd> all(limit.rlim_cur, pollfd{-1, 0, 0});
       all[1] = {fd, POLLOUT, 0};
       all.back() = {fd, POLLIN, 0};
       return static_cast<long>(::poll(all.data(), all.size(), 0));
     }},
    {"ppoll with a wrong time",
     [](int fd) {
       pollfd one{fd, POLLIN, 0};
       const timespec wrong{0, 2'000'000'000};
       return static_cast<long>(::ppoll(&one, 1, &wrong, nullptr));
     }},
    {"select of -1",
     [](int) {
       timeval none{0, 0};
       return static_cast<long>(::select(told(-1), nullptr, nullptr, nullptr, &none));
     }},
    {"select with a wrong time",
     [](int fd) {
       fd_set set;
       FD_ZERO(&set);
       FD_SET(fd, &set);
       timeval wrong{-1, 0};
       return static_cast<long>(::select(fd + 1, &set, nullptr, nullptr, &wrong));
     }},
    {"epoll_wait on a stream",
     [](int fd) {
       epoll_event event;
       return wait_with(fd, 1, &event);
     }},
    {"epoll_ctl without an event",
     [](int fd) { return control_with(fd, EPOLL_CTL_ADD, null<epoll_event>()); }},
    {"epoll_ctl of another kind",
     [](int fd) {
       epoll_event event{EPOLLIN, {}};
       return control_with(fd, told(77), &event);
     }},
    {"epoll_ctl of what is not in it",
     [](int fd) {
       epoll_event event{EPOLLIN, {}};
       return control_with(fd, EPOLL_CTL_MOD, &event);
     }},
    {"epoll_ctl of exclusive one-shot",
     [](int fd) {
       epoll_event event{EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT, {}};
       return control_with(fd, EPOLL_CTL_ADD, &event);
     }},
    {"shutdown in another way", [](int fd) { return static_cast<long>(::shutdown(fd, told(7))); }},
    {"accept", [](int fd) { return static_cast<long>(::accept(fd, nullptr, nullptr)); }},
    {"dup2 to itself", [](int fd) { return static_cast<long>(::dup2(fd, fd) == fd); }},
    {"dup3 to itself", [](int fd) { return static_cast<long>(::dup3(fd, fd, 0)); }},
    {"dup2 to -1", [](int fd) { return static_cast<long>(::dup2(fd, told(-1))); }},
    {"dup2 from -1", [](int fd) { return static_cast<long>(::dup2(told(-1), fd)); }},
    {"F_DUPFD from -1", [](int fd) { return static_cast<long>(::fcntl(fd, F_DUPFD, told(-1))); }},
    {"F_DUPFD from 2^30", [](int fd) { return static_cast<long>(::fcntl(fd, F_DUPFD, 1 << 30)); }},
    {"another fcntl", [](int fd) { return static_cast<long>(::fcntl(fd, told(7777), 0)); }},
    {"FIONREAD to null", [](int fd) { return static_cast<long>(::ioctl(fd, FIONREAD, null<int>())); }},
    {"another ioctl", [](int fd) { return static_cast<long>(::ioctl(fd, told(0x12345678UL), 0)); }},
    {"SO_TYPE to null",
     [](int fd) {
       return static_cast<long>(::getsockopt(fd, SOL_SOCKET, SO_TYPE, null<int>(), null<socklen_t>()));
     }},
    {"TCP_NODELAY of one byte",
     [](int fd) {
       char on = 1;
       return static_cast<long>(::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, 1));
     }},
    {"lseek", [](int fd) { return ::lseek(fd, 0, SEEK_CUR); }},
    {"fsync", [](int fd) { return static_cast<long>(::fsync(fd)); }},
    {"recv from -1", [](int) { return ::recv(told(-1), received, 1, 0); }},
    {"close of -1", [](int) { return static_cast<long>(::close(told(-1))); }},
    {"close of 2^30", [](int) { return static_cast<long>(::close(told(1 << 30))); }},
    {"close_range the wrong way", [](int) { return static_cast<long>(::close_range(900, 800, 0)); }},
};

constexpr std::size_t kManyEntries = 40;

constexpr Wait kWaits[] = {
    {"recv", true, true, [](int fd, int) { return ::recv(fd, waited, kWaitBytes, 0); }},
    {"read", true, true, [](int fd, int) { return ::read(fd, waited, kWaitBytes); }},
    {"readv", true, true,
     [](int fd, int) {
       iovec two[2] = {{waited, 3}, {waited + 3, kWaitBytes - 3}};
       return ::readv(fd, two, 2);
     }},
    {"recvmsg", true, true,
     [](int fd, int) {
       iovec one{waited, kWaitBytes};
       msghdr message{};
       message.msg_iov = &one;
       message.msg_iovlen = 1;
       return ::recvmsg(fd, &message, 0);
     }},
    {"recv of all", true, true, [](int fd, int) { return ::recv(fd, waited, kAll, MSG_WAITALL); }},
    {"peek", true, false, [](int fd, int) { return ::recv(fd, waited, kWaitBytes, MSG_PEEK); }},
    {"poll", false, false,
     [](int fd, int) {
       pollfd one{fd, POLLIN, 0};
       return static_cast<long>(::poll(&one, 1, -1));
     }},
    {"poll of many", false, false,
     [](int fd, int) {
       pollfd many[kManyEntries];
       for (pollfd& entry : many) entry = {-1, 0, 0};
       many[kManyEntries / 2] = {fd, POLLIN, 0};
       return static_cast<long>(::poll(many, kManyEntries, -1));
     }},
    {"ppoll", false, false,
     [](int fd, int) {
       pollfd one{fd, POLLIN, 0};
       const timespec long_time{1000, 0};
       return static_cast<long>(::ppoll(&one, 1, &long_time, nullptr));
     }},
    {"select", false, false,
     [](int fd, int) {
       fd_set set;
       FD_ZERO(&set);
       FD_SET(fd, &set);
       return static_cast<long>(::select(fd + 1, &set, nullptr, nullptr, nullptr));
     }},
    {"pselect", false, false,
     [](int fd, int) {
       fd_set set;
       FD_ZERO(&set);
       FD_SET(fd, &set);
       return static_cast<long>(::pselect(fd + 1, &set, nullptr, nullptr, nullptr, nullptr));
     }},
    {"epoll_wait", false, false,
     [](int, int epoll) {
       epoll_event event;
       return static_cast<long>(::epoll_wait(epoll, &event, 1, -1));
     }},
};

}  // namespace

std::span<const Call> bad_sends() { return kBadSends; }
std::span<const Call> bad_receives() { return kBadReceives; }
std::span<const Call> calls_for_the_kernel() { return kTakenBack; }
std::span<const Call> misuses() { return kMisuses; }
std::span<const Wait> waits() { return kWaits; }

}  // namespace ringroad::test
