// System calls that are made by number, by programs that do not ask libc (node, Go's runtime,
// libuv).
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "tests/preload/drivers/actor.h"
#include "tests/preload/scenarios/epoll_calls.h"

namespace ringroad::test {
namespace {

constexpr long kMaskSize = _NSIG / 8;

// What is left of `whole`, where the kernel says so.
void tell_rest(Actor& a, const timespec& left, long whole_ms) {
  const long ms = left.tv_sec * 1000 + left.tv_nsec / 1'000'000;
  a.log("left: %s", ms == whole_ms                          ? "all"
                    : left.tv_sec == 0 && left.tv_nsec == 0 ? "nothing"
                                                            : "some");
}

sigset_t mask_of(int signo) {
  sigset_t mask;
  sigemptyset(&mask);
  if (signo != 0) sigaddset(&mask, signo);
  return mask;
}

// With the signal blocked and pending: `wait` lets it in.
void lets_a_signal_in(Actor& a, const std::function<long(const sigset_t*)>& wait) {
  count_signal(SIGUSR1, true);
  const sigset_t blocked = mask_of(SIGUSR1);
  const sigset_t none = mask_of(0);
  pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
  ::raise(SIGUSR1);
  a.log("signals %d", signals_seen());
  a.result("interrupted", wait(&none));
  a.log("signals %d", signals_seen());
  pthread_sigmask(SIG_UNBLOCK, &blocked, nullptr);
}

}  // namespace

SCENARIO(poll_and_select_by_number, kStaysOnChannel) {
  const int fd = a.stream();
  fd_set in;
  const auto select = [&](long ms) {
    FD_ZERO(&in);
    FD_SET(fd, &in);
    timeval timeout{ms / 1000, ms % 1000 * 1000};
    const long n =
        a.result("SYS_select", ::syscall(SYS_select, fd + 1L, &in, nullptr, nullptr, &timeout));
    a.log("in %d, time left %d", FD_ISSET(fd, &in) != 0, timeout.tv_sec + timeout.tv_usec > 0);
    return n;
  };
  const auto pselect = [&](long ms, const sigset_t* mask, long size = kMaskSize) {
    FD_ZERO(&in);
    FD_SET(fd, &in);
    timespec timeout{ms / 1000, ms % 1000 * 1'000'000};
    const struct {
      const sigset_t* mask;
      long size;
    } sized{mask, size};
    errno = 0;
    const long n = ::syscall(SYS_pselect6, fd + 1L, &in, nullptr, nullptr, &timeout, &sized);
    a.result("SYS_pselect6", n);
    a.log("in %d", FD_ISSET(fd, &in) != 0);
    tell_rest(a, timeout, ms);
    return n;
  };
  const auto ppoll = [&](long ms, const sigset_t* mask, long size = kMaskSize) {
    pollfd entry{fd, POLLIN, 0};
    timespec timeout{ms / 1000, ms % 1000 * 1'000'000};
    const long n = ::syscall(SYS_ppoll, &entry, 1L, &timeout, mask, size);
    a.result("SYS_ppoll", n);
    a.log("%s", poll_names(entry.revents).c_str());
    tell_rest(a, timeout, ms);
    return n;
  };
  a.server([&] {
    a.timed(60, [&] { select(60); });
    a.timed(60, [&] { pselect(60, nullptr); });
    a.timed(60, [&] { ppoll(60, nullptr); });
    for (const long ms : {0L, -5000L}) {
      select(ms);
      pselect(ms, nullptr);
      ppoll(ms, nullptr);
    }
    const sigset_t none = mask_of(0);
    pselect(50, &none, 4);
    ppoll(50, &none, 128);
    lets_a_signal_in(a, [&](const sigset_t* mask) { return pselect(4000, mask); });
    lets_a_signal_in(a, [&](const sigset_t* mask) { return ppoll(4000, mask); });
  });
  a.client([&] { a.send(fd, "x"); });
  a.server([&] {
    select(4000);
    pselect(4000, nullptr);
    ppoll(4000, nullptr);
    a.result("SYS_pselect6 for ever",
             ::syscall(SYS_pselect6, fd + 1L, &in, nullptr, nullptr, nullptr, nullptr));
    a.recv(fd, 9);
  });
}

// The kernel neither minds a time-out that it cannot write back, nor reads what is not there.
SCENARIO(waits_by_number_with_pointers_of_all_kinds, kStaysOnChannel) {
  const int fd = a.stream();
  static const timespec kShort{0, 30'000'000};
  auto* const nowhere = reinterpret_cast<void*>(8);  // NOLINT: nothing is there
  pollfd entry{fd, POLLIN, 0};
  epoll_event event{};
  a.server([&] {
    const int epoll = epoll_create1(EPOLL_CLOEXEC);
    event.events = EPOLLIN;
    a.result("epoll_ctl", epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
    a.result("SYS_ppoll const", ::syscall(SYS_ppoll, &entry, 1L, &kShort, nullptr, kMaskSize));
    a.result("SYS_pselect6 const",
             ::syscall(SYS_pselect6, 0L, nullptr, nullptr, nullptr, &kShort, nullptr));
    a.result("SYS_ppoll nowhere", ::syscall(SYS_ppoll, &entry, 1L, nowhere, nullptr, kMaskSize));
    a.result("SYS_pselect6 nowhere",
             ::syscall(SYS_pselect6, 0L, nullptr, nullptr, nullptr, nowhere, nullptr));
    a.result("SYS_pselect6 no mask",
             ::syscall(SYS_pselect6, 0L, nullptr, nullptr, nullptr, &kShort, nowhere));
    a.result("SYS_epoll_pwait2 nowhere",
             ::syscall(SYS_epoll_pwait2, epoll, &event, 1L, nowhere, nullptr, kMaskSize));
    a.result("SYS_io_submit", ::syscall(SYS_io_submit, 0L, 1L, nowhere));
    close(epoll);
  });
}

SCENARIO(epoll_by_number, kStaysOnChannel) {
  const int fd = a.stream();
  const int epoll =
      static_cast<int>(::syscall(SYS_epoll_create1, static_cast<long>(EPOLL_CLOEXEC)));
  epoll_event events[4] = {};
  const auto pwait = [&](long ms, const sigset_t* mask, long size = kMaskSize) {
    return a.result("SYS_epoll_pwait",
                    ::syscall(SYS_epoll_pwait, epoll, events, 4L, ms, mask, size));
  };
  const auto pwait2 = [&](long ms, const sigset_t* mask, long size = kMaskSize) {
    const timespec timeout{ms / 1000, ms % 1000 * 1'000'000};
    return a.result("SYS_epoll_pwait2",
                    ::syscall(SYS_epoll_pwait2, epoll, events, 4L, &timeout, mask, size));
  };
  a.server([&] {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = 77;
    a.result("SYS_epoll_ctl",
             ::syscall(SYS_epoll_ctl, epoll, static_cast<long>(EPOLL_CTL_ADD), fd, &event));
    a.timed(60, [&] { pwait(60, nullptr); });
    a.timed(60, [&] { pwait2(60, nullptr); });
    a.result("SYS_epoll_wait", ::syscall(SYS_epoll_wait, epoll, events, 4L, 20L));
    const sigset_t none = mask_of(0);
    pwait(20, &none, 4);
    pwait2(20, &none, 128);
    pwait2(-1000, nullptr);
    lets_a_signal_in(a, [&](const sigset_t* mask) { return pwait(4000, mask); });
    lets_a_signal_in(a, [&](const sigset_t* mask) { return pwait2(4000, mask); });
  });
  a.client([&] { a.send(fd, "x"); });
  a.server([&] {
    pwait2(4000, nullptr);
    a.log("%s of %d", poll_names(static_cast<int>(events[0].events)).c_str(),
          static_cast<int>(events[0].data.u64));
    pwait(4000, nullptr);
    a.result("for ever",
             ::syscall(SYS_epoll_pwait2, epoll, events, 4L, nullptr, nullptr, kMaskSize));
    a.recv(fd, 9);
  });
}

SCENARIO(bytes_moved_by_number, kStaysOnChannel) {
  const int fd = a.stream();
  char memory[32];
  iovec iov{memory, sizeof memory};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  a.client([&] {
    std::memcpy(memory, "0123456789", 10);
    iov.iov_len = 4;
    a.result("SYS_writev", ::syscall(SYS_writev, fd, &iov, 1L));
    a.result("SYS_pwritev2", ::syscall(SYS_pwritev2, fd, &iov, 1L, -1L, -1L, 0L));
    a.result("SYS_pwritev2 at 0", ::syscall(SYS_pwritev2, fd, &iov, 1L, 0L, 0L, 0L));
    a.result("SYS_pwrite64", ::syscall(SYS_pwrite64, fd, memory, 3L, 0L));
    a.result("SYS_pwritev", ::syscall(SYS_pwritev, fd, &iov, 1L, 0L, 0L));
    a.result("SYS_sendmsg", ::syscall(SYS_sendmsg, fd, &message, static_cast<long>(MSG_NOSIGNAL)));
  });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    iov.iov_len = 2;
    a.result("SYS_readv", ::syscall(SYS_readv, fd, &iov, 1L));
    a.result("SYS_preadv2", ::syscall(SYS_preadv2, fd, &iov, 1L, -1L, -1L, 0L));
    a.log("%s", quoted({memory, 2}).c_str());
    a.result("SYS_preadv2 at 0", ::syscall(SYS_preadv2, fd, &iov, 1L, 0L, 0L, 0L));
    a.result("SYS_preadv2 at -2", ::syscall(SYS_preadv2, fd, &iov, 1L, -2L, -1L, 0L));
    a.result("SYS_pread64", ::syscall(SYS_pread64, fd, memory, 2L, 0L));
    a.result("SYS_preadv", ::syscall(SYS_preadv, fd, &iov, 1L, 0L, 0L));
    a.result("SYS_lseek", ::syscall(SYS_lseek, fd, 0L, static_cast<long>(SEEK_CUR)));
    a.result("SYS_recvmsg", ::syscall(SYS_recvmsg, fd, &message, 0L));
    a.log("%s", quoted({memory, 2}).c_str());
    a.recv(fd, 6, MSG_WAITALL);
  });
}

SCENARIO(bytes_handed_back_by_number, kComesBack) {
  const auto talk = [&](int fd, const std::function<void()>& call) {
    a.client([&] { a.send(fd, "ping"); });
    a.server([&] {
      a.recv(fd, 4, MSG_WAITALL);
      a.send(fd, "pong");
    });
    a.client([&] {
      a.recv(fd, 4, MSG_WAITALL);
      a.send(fd, "abcd");
    });
    a.server([&] {
      a.settle(fd, POLLIN, POLLIN);
      call();
    });
    a.client([&] { a.recv(fd, 4, MSG_WAITALL); });
  };
  char memory[4] = {};
  iovec iov{memory, 4};
  mmsghdr message{};
  message.msg_hdr.msg_iov = &iov;
  message.msg_hdr.msg_iovlen = 1;
  int fd = a.stream();
  talk(fd, [&] {
    a.result("SYS_recvmmsg",
             ::syscall(SYS_recvmmsg, fd, &message, 1L, static_cast<long>(MSG_WAITALL), nullptr));
    a.log("%s", quoted({memory, 4}).c_str());
    a.result("SYS_sendmmsg", ::syscall(SYS_sendmmsg, fd, &message, 1L, 0L));
  });
  fd = a.stream();
  talk(fd, [&] {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return;
    a.result("SYS_splice", ::syscall(SYS_splice, fd, nullptr, ends[1], nullptr, 4L, 0L));
    a.result("SYS_splice back", ::syscall(SYS_splice, ends[0], nullptr, fd, nullptr, 4L, 0L));
  });
  fd = a.stream();
  talk(fd, [&] {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return;
    a.result("SYS_sendfile to a pipe", ::syscall(SYS_sendfile, ends[1], fd, nullptr, 4L));
    a.result("SYS_splice back", ::syscall(SYS_splice, ends[0], nullptr, fd, nullptr, 4L, 0L));
  });
  fd = a.stream();
  talk(fd, [&] {
    tcp_zerocopy_receive request{};
    char copied[64] = {};
    request.copybuf_address = reinterpret_cast<std::uintptr_t>(copied);
    request.copybuf_len = sizeof copied;
    socklen_t length = sizeof request;
    a.result("SYS_getsockopt",
             ::syscall(SYS_getsockopt, fd, static_cast<long>(IPPROTO_TCP),
                       static_cast<long>(TCP_ZEROCOPY_RECEIVE), &request, &length));
    a.log("%d: %s", request.copybuf_len, copied);
    a.send(fd, "over");
  });
  fd = a.stream();
  talk(fd, [&] {
    aio_context_t context = 0;
    a.result("SYS_io_setup", ::syscall(SYS_io_setup, 4L, &context));
    iocb read{};
    read.aio_fildes = static_cast<__u32>(fd);
    read.aio_lio_opcode = IOCB_CMD_PREAD;
    read.aio_buf = reinterpret_cast<std::uintptr_t>(memory);
    read.aio_nbytes = 4;
    iocb* requests[] = {&read};
    io_event done{};
    a.result("SYS_io_submit", ::syscall(SYS_io_submit, context, 1L, requests));
    a.result("SYS_io_getevents", ::syscall(SYS_io_getevents, context, 1L, 1L, &done, nullptr));
    a.log("%lld: %s", static_cast<long long>(done.res), quoted({memory, 4}).c_str());
    a.result("SYS_io_destroy", ::syscall(SYS_io_destroy, context));
    a.send(fd, "over");
  });
}

SCENARIO(descriptors_by_number, kStaysOnChannel) {
  a.meet();
  int fd = -1;
  if (a.is_client()) {
    fd = static_cast<int>(
        ::syscall(SYS_socket, static_cast<long>(AF_INET), SOCK_STREAM | SOCK_CLOEXEC, 0L));
    socklen_t length = 0;
    sockaddr_storage to = a.address(AF_INET, length);
    a.result("SYS_connect", ::syscall(SYS_connect, fd, &to, static_cast<long>(length)));
  } else {
    fd = static_cast<int>(
        ::syscall(SYS_accept4, a.listening(), nullptr, nullptr, static_cast<long>(SOCK_CLOEXEC)));
    a.log("SYS_accept4: %d", fd >= 0);
  }
  a.sync();
  // A listener of its own, which nobody but the kernel and the library has heard of. Its port,
  // which differs from run to run, is no matter of the transcript.
  sockaddr_storage at{};
  socklen_t length = 0;
  int another = -1;
  if (a.is_server()) {
    at = a.address(AF_INET, length);
    reinterpret_cast<sockaddr_in&>(at).sin_port = 0;
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    a.result("bind", ::bind(listener, reinterpret_cast<sockaddr*>(&at), length));
    a.result("SYS_listen", ::syscall(SYS_listen, listener, 128L));
    ::getsockname(listener, reinterpret_cast<sockaddr*>(&at), &length);
    ::send(fd, &at, sizeof at, 0);
    another = static_cast<int>(::syscall(SYS_accept, listener, nullptr, nullptr));
    a.result("SYS_close", ::syscall(SYS_close, listener));
  } else {
    ::recv(fd, &at, sizeof at, MSG_WAITALL);
    another = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    a.result("connect", ::connect(another, reinterpret_cast<sockaddr*>(&at), sizeof(sockaddr_in)));
  }
  a.sync();
  a.client([&] { a.send(another, "another"); });
  a.server([&] { a.recv(another, 7, MSG_WAITALL); });
  a.client([&] { a.send(fd, "abcdefgh"); });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    int value = -1;
    length = sizeof value;
    a.result("SYS_ioctl", ::syscall(SYS_ioctl, fd, static_cast<long>(FIONREAD), &value));
    a.log("%d", value);
    a.result("SYS_getsockopt", ::syscall(SYS_getsockopt, fd, static_cast<long>(SOL_SOCKET),
                                         static_cast<long>(SO_ERROR), &value, &length));
    a.log("%d", value);
    value = 1;
    a.result("SYS_setsockopt", ::syscall(SYS_setsockopt, fd, static_cast<long>(IPPROTO_TCP),
                                         static_cast<long>(TCP_NODELAY), &value, 4L));
    for (const int ms : {30, 90}) {
      const timeval time{0, ms * 1000};
      a.result("SYS_setsockopt", ::syscall(SYS_setsockopt, another, static_cast<long>(SOL_SOCKET),
                                           static_cast<long>(SO_RCVTIMEO), &time, sizeof time));
      a.timed(ms, [&] { a.recv(another, 1); });
    }
    const long flags = ::syscall(SYS_fcntl, fd, static_cast<long>(F_GETFL), 0L);
    a.result("SYS_fcntl", ::syscall(SYS_fcntl, fd, static_cast<long>(F_SETFL), flags | O_NONBLOCK));
    const long copies[] = {::syscall(SYS_dup, fd), ::syscall(SYS_dup2, fd, 300L),
                           ::syscall(SYS_dup3, fd, 301L, static_cast<long>(O_CLOEXEC)),
                           ::syscall(SYS_fcntl, fd, static_cast<long>(F_DUPFD_CLOEXEC), 310L)};
    a.result("SYS_close", ::syscall(SYS_close, fd));
    // The number is another file's.
    const int zeroes = ::open("/dev/zero", O_RDONLY | O_CLOEXEC);
    a.log("the same number: %d", zeroes == fd);
    a.read(zeroes, 2);
    ::close(zeroes);
    for (const long copy : copies) {
      a.recv(static_cast<int>(copy), 2);
      a.send(static_cast<int>(copy), "by a copy");
      a.result("SYS_close_range", ::syscall(SYS_close_range, copy, copy, 0L));
      a.recv(static_cast<int>(copy), 2);
    }
  });
  a.client([&] {
    a.recv(fd, 36, MSG_WAITALL);
    a.recv(fd, 9);
  });
}

// None of these has to do with the bytes of a stream, and the kernel answers for the real socket.
SCENARIO(calls_by_number_that_are_the_kernels, kStaysOnChannel) {
  const int fd = a.stream();
  struct Call {
    const char* name;
    long number;
    long arguments[5];
  };
  char memory[256];
  const long buffer = reinterpret_cast<long>(memory);
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return;
  iovec iov{memory, 1};
  const long vector = reinterpret_cast<long>(&iov);
  const Call calls[] = {
      {"SYS_fsync", SYS_fsync, {}},
      {"SYS_fdatasync", SYS_fdatasync, {}},
      {"SYS_syncfs", SYS_syncfs, {}},
      {"SYS_ftruncate", SYS_ftruncate, {1}},
      {"SYS_fallocate", SYS_fallocate, {0, 0, 1}},
      {"SYS_fadvise64", SYS_fadvise64, {0, 1, 0}},
      {"SYS_readahead", SYS_readahead, {0, 1}},
      {"SYS_sync_file_range", SYS_sync_file_range, {0, 1, 0}},
      {"SYS_copy_file_range", SYS_copy_file_range, {0, ends[1], 0, 1}},
      {"SYS_tee", SYS_tee, {ends[1], 1, 0}},
      {"SYS_vmsplice", SYS_vmsplice, {vector, 1, 0}},
      {"SYS_getdents64", SYS_getdents64, {buffer, sizeof memory}},
      {"SYS_fchdir", SYS_fchdir, {}},
      {"SYS_fstat", SYS_fstat, {buffer}},
      {"SYS_fgetxattr", SYS_fgetxattr, {reinterpret_cast<long>("user.none"), buffer, 9}},
      {"SYS_flock", SYS_flock, {5}},
      {"SYS_getsockname", SYS_getsockname, {buffer, 0}},
      {"SYS_timerfd_gettime", SYS_timerfd_gettime, {buffer}},
      {"SYS_inotify_rm_watch", SYS_inotify_rm_watch, {1}},
      {"SYS_mq_getsetattr", SYS_mq_getsetattr, {0, buffer}},
      {"SYS_pidfd_send_signal", SYS_pidfd_send_signal, {0, 0, 0}},
      {"SYS_setns", SYS_setns, {0}},
      {"SYS_io_uring_enter", SYS_io_uring_enter, {0, 0, 0}},
  };
  a.client([&] { a.send(fd, "ab"); });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    for (const Call& call : calls) {
      const long* x = call.arguments;
      errno = 0;
      a.result(call.name, ::syscall(call.number, fd, x[0], x[1], x[2], x[3], x[4]));
    }
    a.recv(fd, 9);
    a.send(fd, "still there");
  });
  a.client([&] { a.recv(fd, 20); });
}

}  // namespace ringroad::test
