// The same calls by the other names that libc has for them: what _FORTIFY_SOURCE, old programs and
// programs with large files call. Each is called by that name; exports_test.cc sees to it that none
// is left out.
#include <aio.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "tests/preload/drivers/actor.h"

extern "C" {
int name_connect(int fd, const sockaddr* address, socklen_t length) asm("__connect");
ssize_t name_send(int fd, const void* bytes, std::size_t n, int flags) asm("__send");
ssize_t name_read(int fd, void* bytes, std::size_t n) asm("__read");
ssize_t name_write(int fd, const void* bytes, std::size_t n) asm("__write");
int name_close(int fd) asm("__close");
int name_poll(pollfd* fds, nfds_t count, int timeout_ms) asm("__poll");
int name_select(int count, fd_set* in, fd_set* out, fd_set* except,
                timeval* timeout) asm("__select");
int name_dup2(int from, int to) asm("__dup2");
int name_fcntl64(int fd, int cmd, ...) asm("fcntl64");
int name_sigaction(int signo, const struct sigaction* action,
                   struct sigaction* old) asm("__sigaction");
sighandler_t name_bsd_signal(int signo, sighandler_t handler) asm("bsd_signal");
sighandler_t name_sysv_signal(int signo, sighandler_t handler) asm("__sysv_signal");
ssize_t fortified_read(int fd, void* bytes, std::size_t n, std::size_t size) asm("__read_chk");
ssize_t fortified_recv(int fd, void* bytes, std::size_t n, std::size_t size,
                       int flags) asm("__recv_chk");
ssize_t fortified_recvfrom(int fd, void* bytes, std::size_t n, std::size_t size, int flags,
                           sockaddr* address, socklen_t* length) asm("__recvfrom_chk");
int fortified_poll(pollfd* fds, nfds_t count, int timeout_ms, std::size_t size) asm("__poll_chk");
int fortified_ppoll(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask,
                    std::size_t size) asm("__ppoll_chk");
long fortified_place(long fd) asm("__fdelt_chk");
}

namespace ringroad::test {
namespace {

sigjmp_buf before_the_end;

void come_back(int) { siglongjmp(before_the_end, 1); }

// libc ends the program for a buffer that is too small, with some words on standard error.
void ends(Actor& a, const char* call, const std::function<void()>& body) {
  std::fflush(nullptr);
  const int error = ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 200);
  const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  ::dup2(nowhere, STDERR_FILENO);
  struct sigaction aborted {};
  struct sigaction before {};
  aborted.sa_handler = come_back;
  ::sigaction(SIGABRT, &aborted, &before);
  if (sigsetjmp(before_the_end, 1) == 0) {
    body();
    a.log("%s goes on", call);
  } else {
    a.log("%s ends the program", call);
  }
  ::sigaction(SIGABRT, &before, nullptr);
  ::dup2(error, STDERR_FILENO);
  ::close(error);
  ::close(nowhere);
}

volatile sig_atomic_t handled = 0;
void handle(int) { handled = handled + 1; }

std::atomic<int> talking{-1};
void say_so(int) {
  const int saved = errno;
  ::send(talking.load(), "h", 1, MSG_NOSIGNAL);
  handled = handled + 1;
  errno = saved;
}

}  // namespace

SCENARIO(calls_by_their_fortified_names, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "0123456789abcdefghij"); });
  a.server([&] {
    char bytes[8] = {};
    pollfd entry{fd, POLLIN, 0};
    a.result("__poll_chk", fortified_poll(&entry, 1, 4000, sizeof entry));
    a.log("%s", poll_names(entry.revents).c_str());
    const timespec soon{4, 0};
    entry.revents = 0;
    a.result("__ppoll_chk", fortified_ppoll(&entry, 1, &soon, nullptr, sizeof entry));
    a.log("%s", poll_names(entry.revents).c_str());
    a.settle(fd, POLLIN, POLLIN);
    a.result("__read_chk", fortified_read(fd, bytes, 4, sizeof bytes));
    a.log("%s", quoted({bytes, 8}).c_str());
    a.result("__recv_chk", fortified_recv(fd, bytes, 6, sizeof bytes, MSG_WAITALL));
    a.log("%s", quoted({bytes, 8}).c_str());
    a.result("__recv_chk, PEEK", fortified_recv(fd, bytes, 3, sizeof bytes, MSG_PEEK));
    a.log("%s", quoted({bytes, 8}).c_str());
    sockaddr_in from{};
    socklen_t length = sizeof from;
    auto* any = reinterpret_cast<sockaddr*>(&from);
    a.result("__recvfrom_chk",
             fortified_recvfrom(fd, bytes, 8, sizeof bytes, MSG_WAITALL, any, &length));
    a.log("%s, an address of %u", quoted({bytes, 8}).c_str(), length);
    a.recv(fd, 2, MSG_WAITALL);
    a.result("__recv_chk of nothing", fortified_recv(fd, bytes, 8, sizeof bytes, MSG_DONTWAIT));
    entry.revents = 0;
    a.timed(30, [&] { a.result("__poll_chk", fortified_poll(&entry, 1, 30, sizeof entry)); });
    a.log("__fdelt_chk %ld %ld", fortified_place(fd) - fd / 64, fortified_place(FD_SETSIZE - 1));
  });
}

SCENARIO(fortified_names_refuse_what_is_too_small, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "still there"); });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    char bytes[8] = {};
    pollfd entry{fd, POLLIN, 0};
    const timespec nothing{};
    ends(a, "__read_chk", [&] { fortified_read(fd, bytes, 9, sizeof bytes); });
    ends(a, "__recv_chk", [&] { fortified_recv(fd, bytes, 9, sizeof bytes, 0); });
    ends(a, "__recvfrom_chk",
         [&] { fortified_recvfrom(fd, bytes, 9, sizeof bytes, 0, nullptr, nullptr); });
    ends(a, "__poll_chk", [&] { fortified_poll(&entry, 2, 0, sizeof entry); });
    ends(a, "__ppoll_chk", [&] { fortified_ppoll(&entry, 2, &nothing, nullptr, sizeof entry); });
    ends(a, "__fdelt_chk", [&] { fortified_place(FD_SETSIZE); });
    a.recv(fd, 20);
  });
}

SCENARIO(calls_by_their_old_names, kStaysOnChannel) {
  a.meet();
  int fd = -1;
  if (a.is_client()) {
    fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t length = 0;
    sockaddr_storage to = a.address(AF_INET, length);
    a.result("__connect", name_connect(fd, reinterpret_cast<sockaddr*>(&to), length));
  } else {
    fd = a.accept_blocking();
  }
  a.sync();
  a.client([&] {
    a.result("__send", name_send(fd, "by send", 7, 0));
    a.result("__write", name_write(fd, ", by write", 10));
  });
  a.server([&] {
    pollfd entry{fd, POLLIN, 0};
    a.result("__poll", name_poll(&entry, 1, 4000));
    fd_set in;
    FD_ZERO(&in);
    FD_SET(fd, &in);
    timeval soon{4, 0};
    a.result("__select", name_select(fd + 1, &in, nullptr, nullptr, &soon));
    a.log("in %d", FD_ISSET(fd, &in) != 0);
    char bytes[32] = {};
    a.result("__read", name_read(fd, bytes, 7));
    a.log("%s", bytes);
    const int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 120);
    a.result("__dup2", name_dup2(copy, 121));
    a.result("__close", name_close(copy));
    a.result("__close", name_close(fd));
    a.result("__close again", name_close(fd));
    // The number is another file's.
    const int zeroes = ::open("/dev/zero", O_RDONLY | O_CLOEXEC);
    a.log("the same number: %d", zeroes == fd);
    a.read(zeroes, 2);
    a.result("__close", name_close(zeroes));
    fd = 121;
    a.recv(fd, 10, MSG_WAITALL);
    const int flags = name_fcntl64(fd, F_GETFL);
    a.result("fcntl64", name_fcntl64(fd, F_SETFL, flags | O_NONBLOCK));
    a.recv(fd, 1);
    a.result("fcntl64", name_fcntl64(fd, F_SETFL, flags));
    a.result("__close", name_close(name_fcntl64(fd, F_DUPFD_CLOEXEC, 130)));
    a.send(fd, "answer");
  });
  a.client([&] { a.recv(fd, 6, MSG_WAITALL); });
  // The close of the last number is a close.
  a.server([&] { a.result("__close", name_close(fd)); });
  a.client([&] {
    a.settle(fd, POLLRDHUP, POLLRDHUP);
    a.recv(fd, 9);
  });
}

SCENARIO(handlers_are_installed_by_other_names, kStaysOnChannel) {
  const int fd = a.stream();
  a.both([&] {
    const auto told = [&](const char* name, sighandler_t before) {
      struct sigaction now {};
      ::sigaction(SIGUSR1, nullptr, &now);
      a.log("%s: before %d, now %d, flags %x", name, before == handle, now.sa_handler == handle,
            static_cast<unsigned>(now.sa_flags));
    };
    struct sigaction action {};
    struct sigaction old {};
    action.sa_handler = handle;
    a.result("__sigaction", name_sigaction(SIGUSR1, &action, nullptr));
    a.result("__sigaction", name_sigaction(SIGUSR1, nullptr, &old));
    told("__sigaction", old.sa_handler);
    told("bsd_signal", name_bsd_signal(SIGUSR1, handle));
    told("__sysv_signal", name_sysv_signal(SIGUSR1, handle));
    told("bsd_signal", name_bsd_signal(SIGUSR1, handle));
    ::raise(SIGUSR1);
    a.log("handled %d", static_cast<int>(handled));
  });
  a.client([&] { a.send(fd, "x"); });
  a.server([&] { a.recv(fd, 1); });
}

// On the very stream whose call it may interrupt.
SCENARIO(a_handler_installed_by_another_name_sends, kStaysOnChannel) {
  const int fd = a.stream();
  constexpr int kSignals = 40;
  if (a.is_client()) {
    talking.store(fd);
    struct sigaction action {};
    action.sa_handler = say_so;
    action.sa_flags = SA_RESTART;
    a.result("__sigaction", name_sigaction(SIGALRM, &action, nullptr));
    const itimerval often{{0, 1000}, {0, 1000}};
    const itimerval never{};
    ::setitimer(ITIMER_REAL, &often, nullptr);
    while (handled < kSignals) ::send(fd, "m", 1, MSG_NOSIGNAL);
    ::setitimer(ITIMER_REAL, &never, nullptr);
    const int sent = handled;
    a.shutdown(fd, SHUT_WR);
    a.sync();
    char told = 0;
    a.result("recv", ::recv(fd, &told, 1, 0));
    a.log("all of them: %d", told == static_cast<char>(sent));
  } else {
    char buffer[4096];
    char seen = 0;
    ssize_t n;
    while ((n = ::recv(fd, buffer, sizeof buffer, 0)) > 0) {
      seen += static_cast<char>(std::count(buffer, buffer + n, 'h'));
    }
    a.sync();
    a.result("send", ::send(fd, &seen, 1, 0));
  }
  a.sync();
}

SCENARIO(sendfile64_to_a_stream, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] {
    const int file = ::memfd_create("content", MFD_CLOEXEC);
    a.result("write", ::write(file, "0123456789", 10));
    off64_t offset = 2;
    a.result("sendfile64", ::sendfile64(fd, file, &offset, 5));
    a.log("at %ld", static_cast<long>(offset));
  });
  a.server([&] { a.recv(fd, 5, MSG_WAITALL); });
}

SCENARIO(requests_with_large_files, kComesBack) {
  const auto new_stream = [&] {
    const int fd = a.stream();
    a.client([&] { a.send(fd, "ping"); });
    a.server([&] {
      a.recv(fd, 4, MSG_WAITALL);
      a.send(fd, "pong");
    });
    a.client([&] {
      a.recv(fd, 4, MSG_WAITALL);
      a.send(fd, "request");
    });
    a.server([&] { a.settle(fd, POLLIN, POLLIN); });
    return fd;
  };
  char in[8] = {};
  char out[] = "done";
  const auto request = [](int fd, char* bytes, std::size_t n, int what) {
    aiocb64 block{};
    block.aio_fildes = fd;
    block.aio_buf = bytes;
    block.aio_nbytes = n;
    block.aio_lio_opcode = what;
    return block;
  };
  const auto finish = [&](aiocb64& block) {
    const aiocb64* list[] = {&block};
    a.result("aio_suspend64", ::aio_suspend64(list, 1, nullptr));
    a.result("aio_return64", ::aio_return64(&block));
  };
  int fd = new_stream();
  a.server([&] {
    aiocb64 reads = request(fd, in, 7, LIO_READ);
    a.result("aio_read64", ::aio_read64(&reads));
    finish(reads);
    a.log("%s", in);
  });
  fd = new_stream();
  a.server([&] {
    aiocb64 writes = request(fd, out, 4, LIO_WRITE);
    a.result("aio_write64", ::aio_write64(&writes));
    finish(writes);
    a.recv(fd, 7, MSG_WAITALL);
  });
  a.client([&] { a.recv(fd, 4, MSG_WAITALL); });
  fd = new_stream();
  a.server([&] {
    aiocb64 reads = request(fd, in, 7, LIO_READ);
    aiocb64 writes = request(fd, out, 4, LIO_WRITE);
    aiocb64* both[] = {&reads, &writes};
    a.result("lio_listio64", ::lio_listio64(LIO_WAIT, both, 2, nullptr));
    a.log("%s", in);
  });
  a.client([&] { a.recv(fd, 4, MSG_WAITALL); });
}

SCENARIO(vdprintf_to_a_stream, kComesBack) {
  const int fd = a.stream();
  const auto print = [&](const char* format, ...) {
    va_list args;
    va_start(args, format);
    a.result("vdprintf", ::vdprintf(fd, format, args));
    va_end(args);
  };
  a.client([&] { a.send(fd, "before, "); });
  a.client([&] { print("%d and %s\n", 42, "more"); });
  a.server([&] { a.recv(fd, 20, MSG_WAITALL); });
}

}  // namespace ringroad::test
