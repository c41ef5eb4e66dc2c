// Calls that few programs make: reads and writes at an offset, splice(2), requests of aio(7), sets
// of any size, and names that the compiler puts in place of the usual ones.
#include <aio.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <vector>

#include "tests/preload/drivers/actor.h"
#include "tests/preload/scenarios/epoll_calls.h"

// What _FORTIFY_SOURCE and old programs call, and what glibc 2.36 declares for C alone.
extern "C" {
int pidfd_open(pid_t process, unsigned flags) noexcept;
int pidfd_getfd(int pidfd, int fd, unsigned flags) noexcept;
int fortified_dprintf(int fd, int flag, const char* format, ...) asm("__dprintf_chk");
int fortified_vdprintf(int fd, int flag, const char* format, va_list args) asm("__vdprintf_chk");
std::FILE* old_fdopen(int fd, const char* mode) asm("_IO_fdopen");
int old_fcntl(int fd, int cmd, ...) asm("__fcntl");
}

namespace ringroad::test {
namespace {

// Both ways, so that a stream that is promoted midway is.
void talk(Actor& a, int fd) {
  for (int i = 0; i < 4; ++i) {
    a.client([&] { a.send(fd, "ping"); });
    a.server([&] {
      a.recv(fd, 4, MSG_WAITALL);
      a.send(fd, "pong");
    });
    a.client([&] { a.recv(fd, 4, MSG_WAITALL); });
  }
}

// A set with room for so many numbers, and words behind it that are nobody's.
class Set {
 public:
  explicit Set(int room) : words_(static_cast<std::size_t>(room) / kBits + 1 + kGuard, kNobodys) {
    std::fill(words_.begin(), words_.end() - kGuard, 0UL);
  }
  void put(int fd) { words_[static_cast<std::size_t>(fd) / kBits] |= 1UL << fd % kBits; }
  bool has(int fd) const {
    return (words_[static_cast<std::size_t>(fd) / kBits] >> fd % kBits & 1) != 0;
  }
  bool intact() const {
    return std::all_of(words_.end() - kGuard, words_.end(),
                       [](auto word) { return word == kNobodys; });
  }
  fd_set* get() { return reinterpret_cast<fd_set*>(words_.data()); }

 private:
  static constexpr int kBits = 64;
  static constexpr int kGuard = 32;
  static constexpr unsigned long kNobodys = 0x5a5a5a5a5a5a5a5a;
  std::vector<unsigned long> words_;
};

void ask(Actor& a, const char* what, int count, int fd, Set& in, Set& out, Set& except) {
  in.put(fd);
  out.put(fd);
  except.put(fd);
  timeval soon{2, 0};
  a.result(what, ::select(count, in.get(), out.get(), except.get(), &soon));
  a.log("in %d, out %d, except %d, nobody's words %s", in.has(fd), out.has(fd), except.has(fd),
        in.intact() && out.intact() && except.intact() ? "intact" : "overwritten");
}

void copy_of_ones_own(Actor& a, const std::function<int(int self, int fd)>& get) {
  const int fd = a.stream();
  talk(a, fd);
  a.client([&] { a.send(fd, "unread"); });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    const int self = ::pidfd_open(::getpid(), 0);
    const int copy = get(self, fd);
    a.log("copied: %d", copy >= 0);
    a.result("no such number", get(self, 5000));
    a.recv(copy, 3);
    a.close(fd);
    a.recv(copy, 9);
    a.send(copy, "by the copy");
    ::close(self);
  });
  a.client([&] { a.recv(fd, 20); });
}

}  // namespace

SCENARIO(reads_and_writes_at_an_offset, kStaysOnChannel) {
  const int fd = a.stream();
  char memory[16] = "0123456789";
  iovec iov[2] = {{memory, 3}, {memory + 3, 2}};
  a.client([&] {
    a.result("pwritev2 at -1", ::pwritev2(fd, iov, 2, -1, 0));
    a.result("pwritev64v2 at -1", ::pwritev64v2(fd, iov, 1, -1, 0));
    a.result("pwritev2 at 0", ::pwritev2(fd, iov, 2, 0, 0));
    a.result("pwritev2 at -2", ::pwritev2(fd, iov, 2, -2, 0));
    a.result("pwritev2 of none", ::pwritev2(fd, iov, 0, -1, 0));
    a.result("pwrite", ::pwrite(fd, memory, 1, 0));
    a.result("pwrite64 at -1", ::pwrite64(fd, memory, 1, -1));
    a.result("pwritev", ::pwritev(fd, iov, 2, 0));
    a.result("pwritev64 at -1", ::pwritev64(fd, iov, 2, -1));
  });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    a.result("preadv2 at 0", ::preadv2(fd, iov, 2, 0, 0));
    a.result("preadv2 at -2", ::preadv2(fd, iov, 2, -2, 0));
    a.result("pread", ::pread(fd, memory, 1, 0));
    a.result("pread64 at -1", ::pread64(fd, memory, 1, -1));
    a.result("preadv", ::preadv(fd, iov, 2, 0));
    a.result("preadv64 at -1", ::preadv64(fd, iov, 2, -1));
    a.result("preadv2 at -1", ::preadv2(fd, iov, 2, -1, 0));
    a.log("%s", quoted({memory, 5}).c_str());
    a.result("preadv64v2 at -1", ::preadv64v2(fd, iov, 1, -1, 0));
    a.log("%s", quoted({memory, 3}).c_str());
    a.set_nonblocking(fd);
    a.result("preadv2 of what is not there", ::preadv2(fd, iov, 2, -1, 0));
    a.result("preadv2 into nothing", ::preadv2(fd, iov, 0, -1, 0));
    a.result("preadv2 into too much", ::preadv2(fd, iov, 1025, -1, 0));
    a.result("a number that is not open", ::preadv2(5000, iov, 1, -1, 0));
  });
  a.client([&] { a.shutdown(fd, SHUT_WR); });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    a.result("preadv2 at the end", ::preadv2(fd, iov, 2, -1, 0));
  });
}

SCENARIO(flags_of_preadv2_are_the_kernels, kComesBack) {
  char memory[4] = "xyz";
  iovec iov{memory, 3};
  for (const int flags : {RWF_NOWAIT, RWF_HIPRI | RWF_SYNC | RWF_DSYNC, RWF_APPEND, 1 << 20}) {
    const int fd = a.stream();
    talk(a, fd);
    a.client([&] {
      a.result("pwritev2", ::pwritev2(fd, &iov, 1, -1, flags));
      a.send(fd, "abc");
    });
    a.server([&] {
      if (flags < 1 << 20) a.recv(fd, 3, MSG_WAITALL);
      a.settle(fd, POLLIN, POLLIN);
      a.set_nonblocking(fd);
      a.result("preadv2", ::preadv2(fd, &iov, 1, -1, flags));
      a.result("and again", ::preadv2(fd, &iov, 1, -1, flags));
      a.recv(fd, 9);
    });
    a.both([&] { a.close(fd); });
  }
}

SCENARIO(splice_from_a_stream_and_to_it, kComesBack) {
  const int from = a.stream();
  const int to = a.stream();
  talk(a, from);
  talk(a, to);
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) return;
  a.client([&] {
    a.send(from, "before");
    a.send(from, "after");
  });
  a.server([&] {
    a.settle(from, POLLIN, POLLIN);
    a.recv(from, 6, MSG_WAITALL);
    a.settle(from, POLLIN, POLLIN);
    a.result("from it", ::splice(from, nullptr, ends[1], nullptr, 5, SPLICE_F_MOVE));
    a.result("to another", ::splice(ends[0], nullptr, to, nullptr, 5, SPLICE_F_MORE));
    a.set_nonblocking(from);
    a.result("what is not there", ::splice(from, nullptr, ends[1], nullptr, 5, SPLICE_F_NONBLOCK));
    a.set_nonblocking(from, false);
    off64_t offset = 0;
    a.result("at an offset", ::splice(from, &offset, ends[1], nullptr, 5, 0));
    a.result("without a pipe", ::splice(from, nullptr, to, nullptr, 5, 0));
  });
  a.client([&] {
    a.recv(to, 5, MSG_WAITALL);
    a.send(to, "answer");
  });
  if (a.is_server()) {
    a.recv(to, 6, MSG_WAITALL);
    Thread mover(
        a, [&] { a.result("of what comes", ::splice(from, nullptr, ends[1], nullptr, 9, 0)); });
    mover.wait_asleep();
    a.sync();
    mover.join();
    char memory[9] = {};
    a.result("read", ::read(ends[0], memory, sizeof memory));
    a.log("%s", quoted({memory, 9}).c_str());
  } else {
    a.sync();
    a.send(from, "late");
  }
  a.sync();
  a.client([&] { a.shutdown(from, SHUT_WR); });
  a.server([&] {
    a.settle(from, POLLIN, POLLIN);
    a.result("at the end", ::splice(from, nullptr, ends[1], nullptr, 9, 0));
  });
}

SCENARIO(sendfile_from_a_stream, kComesBack) {
  const int fd = a.stream();
  talk(a, fd);
  a.client([&] { a.send(fd, "to a pipe"); });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return;
    a.result("sendfile", ::sendfile(ends[1], fd, nullptr, 9));
    char memory[9] = {};
    a.result("read", ::read(ends[0], memory, sizeof memory));
    a.log("%s", quoted({memory, 9}).c_str());
    const int file = ::memfd_create("no pipe", MFD_CLOEXEC);
    a.result("to a file", ::sendfile(file, fd, nullptr, 9));
    a.send(fd, "done");
  });
  a.client([&] { a.recv(fd, 9); });
}

SCENARIO(many_messages_with_a_time_out, kComesBack) {
  const int fd = a.stream();
  talk(a, fd);
  char memory[3][2];
  iovec iov[3];
  mmsghdr messages[3] = {};
  for (std::size_t i = 0; i < 3; ++i) {
    iov[i] = {memory[i], 2};
    messages[i].msg_hdr.msg_iov = &iov[i];
    messages[i].msg_hdr.msg_iovlen = 1;
  }
  const auto receive = [&](const char* what, unsigned count, int flags, timespec timeout) {
    const long whole = timeout.tv_sec;
    a.result(what, ::recvmmsg(fd, messages, count, flags, &timeout));
    a.log("left: %s", timeout.tv_sec == 0 && timeout.tv_nsec == 0       ? "nothing"
                      : timeout.tv_sec == whole && timeout.tv_nsec == 0 ? "all"
                                                                        : "some");
  };
  a.client([&] { a.send(fd, "abcdefghij"); });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    receive("two of two", 2, 0, {5, 0});
    receive("one, the time is over", 2, 0, {0, 0});
    receive("a wrong time", 2, 0, {0, 1'000'000'000});
    receive("two of three", 3, MSG_WAITFORONE, {5, 0});
    receive("none", 3, MSG_DONTWAIT, {5, 0});
  });
  // The time is looked at between messages only: recvmmsg(2).
  if (a.is_server()) {
    Thread receiver(a, [&] {
      receive("it came late", 2, 0, {0, 50'000'000});
      a.log("%u", messages[0].msg_len);
    });
    receiver.wait_asleep();
    ::usleep(60'000);
    a.sync();
    receiver.join();
  } else {
    a.sync();
    a.send(fd, "kk");
  }
  a.sync();
}

SCENARIO(epoll_pwait2_has_its_mask_while_it_waits, kStaysOnChannel) {
  const int fd = a.stream();
  const int epoll = make();
  a.server([&] {
    count_signal(SIGUSR1, false);
    add(a, epoll, fd, EPOLLIN);
    sigset_t blocked;
    sigset_t none;
    sigemptyset(&none);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
    epoll_event events[2];
    const timespec second{1, 0};
    const timespec short_time{0, 20'000'000};
    ::raise(SIGUSR1);
    a.result("pwait2 without a mask", ::epoll_pwait2(epoll, events, 2, &short_time, nullptr));
    a.log("signals %d", signals_seen());
    a.result("pwait2", ::epoll_pwait2(epoll, events, 2, &second, &none));
    a.log("signals %d", signals_seen());
    ::raise(SIGUSR1);
    a.timed(20,
            [&] { a.result("pwait2", ::epoll_pwait2(epoll, events, 2, &short_time, &blocked)); });
    a.log("signals %d", signals_seen());
    a.result("pwait2 for ever", ::epoll_pwait2(epoll, events, 2, nullptr, &none));
    a.log("signals %d", signals_seen());
    Thread waiter(a, [&] {
      a.result("pwait2 in a thread", ::epoll_pwait2(epoll, events, 2, nullptr, &none));
    });
    waiter.wait_asleep();
    waiter.signal(SIGUSR1);
    waiter.join();
    a.log("signals %d", signals_seen());
    pthread_sigmask(SIG_UNBLOCK, &blocked, nullptr);
  });
}

SCENARIO(requests_that_libc_carries_out_later, kComesBack) {
  const int fd = a.stream();
  talk(a, fd);
  const int other = a.stream();
  talk(a, other);
  char in[8] = {};
  char out[] = "by a thread";
  const auto request = [&](int file, void* memory, std::size_t size, int what) {
    aiocb block{};
    block.aio_fildes = file;
    block.aio_buf = memory;
    block.aio_nbytes = size;
    block.aio_lio_opcode = what;
    return block;
  };
  a.client([&] {
    a.send(fd, "request");
    a.send(other, "another");
  });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    a.settle(other, POLLIN, POLLIN);
    aiocb reads = request(fd, in, 7, LIO_READ);
    const aiocb* list[] = {&reads};
    a.result("aio_read", ::aio_read(&reads));
    a.result("aio_suspend", ::aio_suspend(list, 1, nullptr));
    a.result("aio_error", ::aio_error(&reads));
    a.result("aio_return", ::aio_return(&reads));
    a.log("%s", quoted({in, 7}).c_str());
    aiocb writes = request(fd, out, 11, LIO_WRITE);
    list[0] = &writes;
    a.result("aio_write", ::aio_write(&writes));
    a.result("aio_suspend", ::aio_suspend(list, 1, nullptr));
    a.result("aio_return", ::aio_return(&writes));
    aiocb one = request(other, in, 7, LIO_READ);
    aiocb two = request(other, out, 4, LIO_WRITE);
    aiocb none = request(5000, out, 4, LIO_NOP);
    aiocb* both[] = {&one, nullptr, &two, &none};
    a.result("lio_listio", ::lio_listio(LIO_WAIT, both, 4, nullptr));
    a.log("%s", quoted({in, 7}).c_str());
  });
  a.client([&] {
    a.recv(fd, 11, MSG_WAITALL);
    a.recv(other, 4, MSG_WAITALL);
  });
}

SCENARIO(a_copy_by_way_of_ones_own_process, kComesBack) {
  copy_of_ones_own(a, [](int self, int fd) { return ::pidfd_getfd(self, fd, 0); });
}
SCENARIO(a_copy_by_number_of_ones_own, kComesBack) {
  copy_of_ones_own(a, [](int self, int fd) {
    return static_cast<int>(::syscall(SYS_pidfd_getfd, self, fd, 0L));
  });
}

SCENARIO(received_by_an_option, kComesBack) {
  const int fd = a.stream();
  talk(a, fd);
  a.client([&] { a.send(fd, "by an option"); });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    char memory[64] = {};
    tcp_zerocopy_receive request{};
    request.copybuf_address = reinterpret_cast<std::uintptr_t>(memory);
    request.copybuf_len = sizeof memory;
    socklen_t length = sizeof request;
    a.result("TCP_ZEROCOPY_RECEIVE",
             ::getsockopt(fd, IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, &request, &length));
    a.log("%d: %s", request.copybuf_len, memory);
  });
}

SCENARIO(names_that_the_compiler_puts_in, kComesBack) {
  int fd = a.stream();
  talk(a, fd);
  a.server([&] { a.result("__dprintf_chk", fortified_dprintf(fd, 1, "%d and %s\n", 42, "more")); });
  a.client([&] { a.recv(fd, 12, MSG_WAITALL); });
  fd = a.stream();
  talk(a, fd);
  a.server([&] {
    const auto print = [&](const char* format, ...) {
      va_list args;
      va_start(args, format);
      a.result("__vdprintf_chk", fortified_vdprintf(fd, 1, format, args));
      va_end(args);
    };
    print("%s\n", "a list");
  });
  a.client([&] { a.recv(fd, 7, MSG_WAITALL); });
  fd = a.stream();
  talk(a, fd);
  a.client([&] { a.send(fd, "a line\n"); });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    std::FILE* file = old_fdopen(old_fcntl(fd, F_DUPFD_CLOEXEC, 100), "r");
    char line[16] = {};
    a.log("fgets: %s", std::fgets(line, sizeof line, file) != nullptr ? line : "nothing");
    std::fclose(file);
  });
}

SCENARIO(select_of_more_than_an_fd_set_holds, kStaysOnChannel) {
  const int fd = a.stream();
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  a.result("more numbers", ::setrlimit(RLIMIT_NOFILE, &limit));
  constexpr int kFar = 2100;
  a.client([&] { a.send(fd, "x"); });
  a.server([&] {
    a.log("far: %d", ::dup2(fd, kFar) == kFar);
    a.settle(kFar, POLLIN, POLLIN);
    Set in(kFar);
    Set out(kFar);
    Set except(kFar);
    ask(a, "a far number", kFar + 1, kFar, in, out, except);
    in.put(fd);
    ask(a, "and a near one", kFar + 1, kFar, in, out, except);
    a.log("near %d", in.has(fd));
    in.put(kFar - 1);
    ask(a, "one that is not open", kFar + 1, kFar, in, out, except);
    Set shorter(kFar - 1);
    Set out_shorter(kFar - 1);
    Set except_shorter(kFar - 1);
    ask(a, "beyond the count", kFar, fd, shorter, out_shorter, except_shorter);
  });
}

// As programs do that ask for getdtablesize() numbers, and that make room for no more than they
// have.
SCENARIO(select_of_more_numbers_than_there_is_room_for, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "x"); });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    for (const int count : {1 << 20, FD_SETSIZE + 1, 1 << 30}) {
      // The kernel has room for 2048 numbers or fewer, with the library or without.
      Set in(4096);
      Set out(4096);
      Set except(4096);
      ask(a, "more than there are", count, fd, in, out, except);
    }
    Set in(fd);
    Set out(fd);
    Set except(fd);
    ask(a, "just enough", fd + 1, fd, in, out, except);
    a.recv(fd, 9);
    timeval nothing{0, 0};
    in.put(fd);
    a.result("nothing there", ::select(fd + 1, in.get(), nullptr, nullptr, &nothing));
    a.log("in %d, %s", in.has(fd), in.intact() ? "intact" : "overwritten");
  });
}

}  // namespace ringroad::test
