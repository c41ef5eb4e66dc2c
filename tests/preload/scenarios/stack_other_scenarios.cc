// How much of a thread's stack each function of the library's needs, beyond what libc's own does: programs
// have threads with a few kilobytes. Here those by which a stream goes back to the kernel, and all the
// others.
#include <aio.h>
#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>

#include "tests/preload/drivers/actor.h"
#include "tests/preload/scenarios/stack_measure.h"

namespace ringroad::test {
namespace {

// ---- Calls by which a stream goes back to the kernel

int print_to(int fd, void* function, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int result = reinterpret_cast<decltype(::vdprintf)*>(function)(fd, format, arguments);
  va_end(arguments);
  return result;
}
int print_checked_to(int fd, void* function, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int result =
      reinterpret_cast<int (*)(int, int, const char*, va_list)>(function)(fd, 1, format, arguments);
  va_end(arguments);
  return result;
}

void request(Call& c) {
  static aiocb block;
  block = aiocb{};
  block.aio_fildes = c.fd;
  block.aio_buf = memory;
  block.aio_nbytes = 0;
  c.value = c.as<decltype(::aio_write)>()(&block);
  const aiocb* const all[] = {&block};
  if (c.value == 0) ::aio_suspend(all, 1, nullptr);
}
void request_of_a_list(Call& c) {
  static aiocb block;
  block = aiocb{};
  block.aio_fildes = c.fd;
  block.aio_buf = memory;
  block.aio_nbytes = 0;
  block.aio_lio_opcode = LIO_WRITE;
  aiocb* const all[] = {&block};
  c.value = c.as<decltype(::lio_listio)>()(LIO_WAIT, all, 1, nullptr);
}

const Measured kReturning[] = {
    {"recvmmsg",
     [](Call& c) {
       mmsghdr message{};
       message.msg_hdr.msg_iov = &piece;
       message.msg_hdr.msg_iovlen = 1;
       c.value = c.as<decltype(::recvmmsg)>()(c.fd, &message, 1, MSG_DONTWAIT, nullptr);
     }},
    {"sendmmsg",
     [](Call& c) {
       mmsghdr message{};
       message.msg_hdr.msg_iov = &piece;
       message.msg_hdr.msg_iovlen = 1;
       c.value = c.as<decltype(::sendmmsg)>()(c.fd, &message, 1, MSG_DONTWAIT);
     }},
    {"splice",
     [](Call& c) {
       c.value = c.as<decltype(::splice)>()(c.other, nullptr, c.fd, nullptr, 8, SPLICE_F_NONBLOCK);
     }},
    {"aio_read", request},
    {"aio_read64", request},
    {"aio_write", request},
    {"aio_write64", request},
    {"lio_listio", request_of_a_list},
    {"lio_listio64", request_of_a_list},
    {"fdopen",
     [](Call& c) { c.value = c.as<decltype(::fdopen)>()(c.fd, "r") != nullptr ? 1 : 0; }},
    {"_IO_fdopen",
     [](Call& c) { c.value = c.as<decltype(::fdopen)>()(c.fd, "r") != nullptr ? 1 : 0; }},
    {"dprintf", [](Call& c) { c.value = c.as<decltype(::dprintf)>()(c.fd, "%d", 8); }},
    {"vdprintf", [](Call& c) { c.value = print_to(c.fd, c.function, "%d", 8); }},
    {"__dprintf_chk",
     [](Call& c) { c.value = c.as<int(int, int, const char*, ...)>()(c.fd, 1, "%d", 8); }},
    {"__vdprintf_chk", [](Call& c) { c.value = print_checked_to(c.fd, c.function, "%d", 8); }},
    {"pidfd_getfd",
     [](Call& c) { c.value = c.as<int(int, int, unsigned)>()(c.other, c.fd, 0); }},
    {"connect",
     [](Call& c) {
       const sockaddr none{AF_UNSPEC, {}};
       c.value = c.as<int(int, const sockaddr*, socklen_t)>()(c.fd, &none, sizeof none);
     }},
};

// ---- What concerns no descriptor, or makes one

void nothing(int) {}

template <typename Buffer>
void jump(Call& c, Buffer& buffer) {
  if (::sigsetjmp(buffer, 0) == 0) c.as<void(Buffer&, int)>()(buffer, 1);
}

int nothing_in_a_child(void*) { return 0; }

void in_a_child(Call& c) {
  alignas(16) static char stack[64 * 1024];
  const int child = c.as<decltype(::clone)>()(nothing_in_a_child, stack + sizeof stack,
                                              CLONE_VM | CLONE_VFORK | SIGCHLD, nullptr);
  c.value = ::waitpid(child, nullptr, 0);
}
void spawn(Call& c) {
  pid_t child = -1;
  char name[] = "true";
  char* const arguments[] = {name, nullptr};
  char* const environment[] = {nullptr};
  c.value = c.as<decltype(::posix_spawn)>()(&child, "/bin/true", nullptr, nullptr, arguments, environment);
  ::waitpid(child, nullptr, 0);
}
template <typename... Args>
void fail_to_become(Call& c, Args... args) {
  c.value = c.as<int(Args...)>()(args...);
}
const char* const kNone = "/nowhere/at/all";
char none_of[] = "none";
char* const kArguments[] = {none_of, nullptr};

// Each makes a descriptor, or two, and closes it.
void open_null(Call& c) { ::close(c.as<decltype(::open)>()("/dev/null", O_RDONLY)); }
void open_null_at(Call& c) { ::close(c.as<decltype(::openat)>()(AT_FDCWD, "/dev/null", O_RDONLY)); }
void create_null(Call& c) { ::close(c.as<int(const char*, mode_t)>()("/dev/null", 0600)); }
void fopen_null(Call& c) {
  if (std::FILE* const file = c.as<std::FILE*(const char*, const char*)>()("/dev/null", "re"))
    std::fclose(file);
}
void close_both(const int (&ends)[2]) {
  for (const int end : ends) ::close(end);
}

const Measured kOthers[] = {
    {"open", open_null},
    {"open64", open_null},
    {"__open", open_null},
    {"__open64", open_null},
    {"__open_2", open_null},
    {"__open64_2", open_null},
    {"openat", open_null_at},
    {"openat64", open_null_at},
    {"__openat_2", open_null_at},
    {"__openat64_2", open_null_at},
    {"creat", create_null},
    {"creat64", create_null},
    {"fopen", fopen_null},
    {"fopen64", fopen_null},
    {"opendir",
     [](Call& c) {
       if (DIR* const directory = c.as<DIR*(const char*)>()("/")) ::closedir(directory);
     }},
    {"pipe",
     [](Call& c) {
       int ends[2] = {-1, -1};
       c.value = c.as<int(int*)>()(ends);
       close_both(ends);
     }},
    {"pipe2",
     [](Call& c) {
       int ends[2] = {-1, -1};
       c.value = c.as<int(int*, int)>()(ends, O_CLOEXEC);
       close_both(ends);
     }},
    {"socketpair",
     [](Call& c) {
       int ends[2] = {-1, -1};
       c.value = c.as<int(int, int, int, int*)>()(AF_UNIX, SOCK_STREAM, 0, ends);
       close_both(ends);
     }},
    {"eventfd", [](Call& c) { ::close(c.as<int(unsigned, int)>()(0, 0)); }},
    {"epoll_create", [](Call& c) { ::close(c.as<int(int)>()(1)); }},
    {"epoll_create1", [](Call& c) { ::close(c.as<int(int)>()(0)); }},
    {"timerfd_create", [](Call& c) { ::close(c.as<int(int, int)>()(CLOCK_MONOTONIC, 0)); }},
    {"signalfd",
     [](Call& c) {
       sigset_t none;
       ::sigemptyset(&none);
       ::close(c.as<int(int, const sigset_t*, int)>()(-1, &none, 0));
     }},
    {"inotify_init", [](Call& c) { ::close(c.as<int()>()()); }},
    {"inotify_init1", [](Call& c) { ::close(c.as<int(int)>()(0)); }},
    {"memfd_create", [](Call& c) { ::close(c.as<int(const char*, unsigned)>()("none", 0)); }},
    {"socket", [](Call& c) { ::close(c.as<decltype(::socket)>()(AF_INET, SOCK_STREAM, 0)); }},
    {"listen",
     [](Call& c) {
       const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
       sockaddr_in any{};
       any.sin_family = AF_INET;
       any.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
       ::bind(fd, reinterpret_cast<sockaddr*>(&any), sizeof any);
       c.value = c.as<decltype(::listen)>()(fd, 1);
       ::close(fd);
     }},
    {"prctl", [](Call& c) { c.value = c.as<decltype(::prctl)>()(PR_GET_DUMPABLE, 0, 0, 0, 0); }},
    {"sigaction",
     [](Call& c) {
       struct sigaction action {};
       action.sa_handler = nothing;
       c.value = c.as<int(int, const struct sigaction*, struct sigaction*)>()(SIGUSR2, &action, nullptr);
     }},
    {"__sigaction",
     [](Call& c) {
       struct sigaction action {};
       action.sa_handler = nothing;
       c.value = c.as<int(int, const struct sigaction*, struct sigaction*)>()(SIGUSR2, &action, nullptr);
     }},
    {"signal", [](Call& c) { c.as<decltype(::signal)>()(SIGUSR2, nothing); }},
    {"bsd_signal", [](Call& c) { c.as<decltype(::signal)>()(SIGUSR2, nothing); }},
    {"ssignal", [](Call& c) { c.as<decltype(::signal)>()(SIGUSR2, nothing); }},
    {"__sysv_signal", [](Call& c) { c.as<decltype(::signal)>()(SIGUSR2, nothing); }},
    {"sysv_signal", [](Call& c) { c.as<decltype(::signal)>()(SIGUSR2, nothing); }},
    {"sigset", [](Call& c) { c.as<decltype(::signal)>()(SIGUSR2, nothing); }},
    {"siginterrupt", [](Call& c) { c.value = c.as<int(int, int)>()(SIGUSR2, 1); }},
    {"longjmp", [](Call& c) { static jmp_buf b; jump(c, b); }},
    {"_longjmp", [](Call& c) { static jmp_buf b; jump(c, b); }},
    {"siglongjmp", [](Call& c) { static jmp_buf b; jump(c, b); }},
    {"__longjmp_chk", [](Call& c) { static jmp_buf b; jump(c, b); }},
    {"setcontext",
     [](Call& c) {
       static ucontext_t here;
       volatile bool back = false;
       ::getcontext(&here);
       if (!back) {
         back = true;
         c.as<decltype(::setcontext)>()(&here);
       }
     }},
    {"pthread_setcanceltype",
     [](Call& c) { c.value = c.as<int(int, int*)>()(PTHREAD_CANCEL_DEFERRED, nullptr); }},
    {"clone", in_a_child},
    {"__clone", in_a_child},
    {"posix_spawn", spawn},
    {"posix_spawnp", spawn},
    {"posix_spawn_file_actions_adddup2",
     [](Call& c) {
       posix_spawn_file_actions_t actions;
       ::posix_spawn_file_actions_init(&actions);
       c.value = c.as<decltype(::posix_spawn_file_actions_adddup2)>()(&actions, 0, 300);
       ::posix_spawn_file_actions_destroy(&actions);
     }},
    {"system", [](Call& c) { c.value = c.as<decltype(::system)>()("true"); }},
    {"popen",
     [](Call& c) {
       std::FILE* const pipe = c.as<decltype(::popen)>()("true", "r");
       if (pipe != nullptr) ::pclose(pipe);
     }},
    {"execve", [](Call& c) { fail_to_become(c, kNone, kArguments, environ); }},
    {"execv", [](Call& c) { fail_to_become(c, kNone, kArguments); }},
    {"execvp", [](Call& c) { fail_to_become(c, kNone, kArguments); }},
    {"execvpe", [](Call& c) { fail_to_become(c, kNone, kArguments, environ); }},
    {"execl",
     [](Call& c) { c.value = c.as<decltype(::execl)>()(kNone, "none", static_cast<char*>(nullptr)); }},
    {"execlp",
     [](Call& c) { c.value = c.as<decltype(::execlp)>()(kNone, "none", static_cast<char*>(nullptr)); }},
    {"execle",
     [](Call& c) {
       c.value = c.as<decltype(::execle)>()(kNone, "none", static_cast<char*>(nullptr), environ);
     }},
    {"execveat", [](Call& c) { fail_to_become(c, AT_FDCWD, kNone, kArguments, environ, 0); }},
    {"fexecve", [](Call& c) { fail_to_become(c, c.other, kArguments, environ); }},
};

// What cannot be measured so: it does not return, or it has no frame of its own (in assembly), or it ends
// another thread, from which on all calls of the process know of that.
[[maybe_unused]] const char* const kNotMeasured[] = {"_exit", "_Exit", "vfork", "__vfork", "pthread_cancel"};

}  // namespace

SCENARIO(stack_of_calls_that_go_back_to_the_kernel, 0) {
  for (const Measured& one : kReturning) {
    const int before = a.stream();
    const int fd = a.stream();
    a.client([&] {
      int ends[2];
      const int plain = plain_socket(ends);
      const int other = std::string_view(one.name) == "pidfd_getfd"
                            ? static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0))
                            : file_of_bytes();
      expect_bound(a, one, fd, plain, other, before);
      for (const int end : {ends[0], ends[1], other}) ::close(end);
    });
    for (const int end : {before, fd}) ::close(end);
    a.sync();
  }
  a.client([&] { a.log("measured"); });
}

SCENARIO(stack_of_other_calls, 0) {
  const int fd = a.stream();
  a.client([&] {
    const int other = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    for (const Measured& one : kOthers) expect_bound(a, one, fd, fd, other);
    ::close(other);
  });
  a.client([&] { a.send(fd, "still here"); });
  a.server([&] { a.recv(fd, 100); });
}

SCENARIO(stack_of_the_first_call, 0) {
  a.both([&] {
    const auto& listen = *std::find_if(std::begin(kOthers), std::end(kOthers), [](const Measured& one) {
      return std::string_view(one.name) == "listen";
    });
    Call ours{listen.name, ::dlsym(RTLD_DEFAULT, listen.name), -1, -1, listen.make};
    Call libc{listen.name, libcs(listen.name), -1, -1, listen.make};
    run_measured(ours);
    run_measured(libc);
    const std::ptrdiff_t need = ours.depth - libc.depth;
    show(listen.name, need, libc.depth);
    if (need > kBoundOfTheFirst) a.log("the first listen() needs %td bytes of stack", need);
  });
  const int fd = a.stream();
  a.client([&] { a.send(fd, "and goes on"); });
  a.server([&] { a.recv(fd, 100); });
}

// connect(2) and its peers make streams, as many as they are called.
SCENARIO(stack_of_calls_that_make_and_end_streams, 0) {
  static sockaddr_storage address;
  static socklen_t length;
  a.meet();
  address = a.address(AF_INET, length);
  static constexpr Measured kConnect[] = {
      {"connect",
       [](Call& c) {
         const int made = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
         c.value = c.as<int(int, const void*, socklen_t)>()(made, &address, length);
         ::close(made);
       }},
      {"__connect",
       [](Call& c) {
         const int made = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
         c.value = c.as<int(int, const void*, socklen_t)>()(made, &address, length);
         ::close(made);
       }},
  };
  static constexpr Measured kAccept[] = {
      {"accept",
       [](Call& c) { ::close(c.as<int(int, void*, void*)>()(c.fd, nullptr, nullptr)); }},
      {"accept4",
       [](Call& c) { ::close(c.as<int(int, void*, void*, int)>()(c.fd, nullptr, nullptr, SOCK_CLOEXEC)); }},
  };
  static constexpr Measured kShutdown[] = {
      {"shutdown", [](Call& c) { c.value = c.as<decltype(::shutdown)>()(c.fd, SHUT_WR); }},
  };
  for (int i = 0; i < 2; ++i) {
    if (a.is_client()) {
      expect_bound(a, kConnect[i], -1, -1);
    } else {
      expect_bound(a, kAccept[i], a.listening(), a.listening());
    }
    a.sync();
  }
  const int fd = a.stream();
  a.client([&] { expect_bound(a, kShutdown[0], fd, fd); });
  a.server([&] { a.recv(fd, 100); });
}

}  // namespace ringroad::test
