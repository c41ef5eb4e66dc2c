// Children: helpers that only inherit, and servers that take the connection over.
#include <fcntl.h>
#include <linux/sched.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>

#include "tests/preload/drivers/actor.h"

extern "C" {
int name_clone(int (*function)(void*), void* stack, int flags, void* argument, ...) asm("__clone");
pid_t name_vfork() asm("__vfork") __attribute__((returns_twice));
}

namespace ringroad::test {
namespace {

void wait_for(Actor& a, pid_t child) {
  int status = 0;
  pid_t done;
  do {
    done = ::waitpid(child, &status, 0);
  } while (done < 0 && errno == EINTR);
  a.log("child ended with %d", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
}

// `run` starts a program whose output is the stream `fd`.
void output_of_a_program(Actor& a, int fd, const std::function<void()>& run) {
  a.client([&] { a.send(fd, "before"); });
  a.server([&] {
    a.recv(fd, 40);
    a.send(fd, "and then: ");
    run();
  });
  a.client([&] {
    a.recv(fd, 10);
    a.recv(fd, 12, MSG_WAITALL);
    a.send(fd, "after");
  });
  a.server([&] { a.recv(fd, 40); a.send(fd, "heard"); });
  a.client([&] { a.recv(fd, 40); });
}

// As standard output while `run` runs.
void as_standard_output(int fd, const std::function<void()>& run) {
  const int kept = ::dup(1);
  ::dup2(fd, 1);
  run();
  ::dup2(kept, 1);
  ::close(kept);
}

void exchange(Actor& a, int fd, const char* words) {
  a.client([&] { a.send(fd, words); });
  a.server([&] { a.recv(fd, 40); a.send(fd, "heard"); });
  a.client([&] { a.recv(fd, 40); });
}

}  // namespace

SCENARIO(helper_programs_beside_a_stream, kStaysOnChannel) {
  const int fd = a.stream();
  exchange(a, fd, "before");
  a.both([&] {
    a.log("system: %d", std::system("exit 7"));
    if (std::FILE* pipe = ::popen("echo from a helper", "r")) {
      char line[64] = {};
      if (std::fgets(line, sizeof line, pipe) != nullptr) a.log("popen: %s", line);
      a.log("pclose: %d", ::pclose(pipe));
    }
    pid_t child = -1;
    char name[] = "true";
    char* const argv[] = {name, nullptr};
    a.result("posix_spawn", ::posix_spawn(&child, "/bin/true", nullptr, nullptr, argv, environ));
    wait_for(a, child);
  });
  exchange(a, fd, "after");
}

SCENARIO(fork_and_exec_beside_a_stream, kComesBack) {
  const int fd = a.stream();
  exchange(a, fd, "before");
  a.both([&] {
    const pid_t child = ::fork();
    if (child == 0) {
      ::execl("/bin/true", "true", static_cast<char*>(nullptr));
      ::_exit(127);
    }
    wait_for(a, child);
  });
  exchange(a, fd, "after fork and exec");
  a.both([&] {
    const pid_t child = ::vfork();
    if (child == 0) {
      ::execl("/bin/true", "true", static_cast<char*>(nullptr));
      ::_exit(127);
    }
    wait_for(a, child);
  });
  exchange(a, fd, "after vfork and exec");
}

SCENARIO(a_child_closes_its_copy, kComesBack) {
  const int fd = a.stream();
  exchange(a, fd, "before");
  a.both([&] {
    const pid_t child = ::fork();
    if (child == 0) {
      const int closed = ::close(fd);
      ::_exit(closed == 0 && ::close(fd) == -1 && errno == EBADF ? 3 : 4);
    }
    wait_for(a, child);
  });
  exchange(a, fd, "after");
  a.client([&] { a.close(fd); });
  a.server([&] { a.recv(fd, 1); });
}

// Children that have our memory, and numbers of their own. Each in a process of its own, as the library
// remembers the first; and at one end, as two ends that both take it for their own close go on over TCP.
template <auto make>
void a_borrower_closes_its_copy(Actor& a) {
  const int fd = a.stream();
  exchange(a, fd, "before");
  a.client([&] {
    const pid_t child = make();
    if (child == 0) {
      ::close(fd);
      ::close_range(3, ~0U, 0);
      ::_exit(0);
    }
    wait_for(a, child);
  });
  exchange(a, fd, "after");
}
SCENARIO(a_vfork_child_closes_its_copy, kStaysOnChannel) { a_borrower_closes_its_copy<::vfork>(a); }
SCENARIO(a_vfork_child_by_its_old_name_closes_its_copy, kStaysOnChannel) {
  a_borrower_closes_its_copy<name_vfork>(a);
}

template <auto make>
void a_clone_closes_its_copy(Actor& a) {
  const int fd = a.stream();
  exchange(a, fd, "before");
  a.client([&] {
    alignas(16) static char stack[64 * 1024];
    int number = fd;
    wait_for(a, make([](void* its) { return ::close(*static_cast<int*>(its)) + 2; },
                     stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, &number));
  });
  exchange(a, fd, "after");
}
SCENARIO(a_clone_with_our_memory_closes_its_copy, kStaysOnChannel) {
  a_clone_closes_its_copy<::clone>(a);
}
SCENARIO(a_clone_by_its_old_name_closes_its_copy, kStaysOnChannel) {
  a_clone_closes_its_copy<name_clone>(a);
}

// No handler of pthread_atfork(3) runs: the memory is a copy that nobody knows of.
SCENARIO(children_by_number_close_their_copies, kStaysOnChannel) {
  const int fd = a.stream();
  exchange(a, fd, "before");
  const auto close_in = [&](pid_t child) {
    if (child == 0) {
      ::close(fd);
      ::syscall(SYS_exit_group, 3);
    }
    wait_for(a, child);
  };
  a.client([&] { close_in(::_Fork()); });
  exchange(a, fd, "after _Fork");
  a.client([&] { close_in(static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0))); });
  exchange(a, fd, "after clone");
  a.client([&] {
    clone_args arguments{};
    arguments.exit_signal = SIGCHLD;
    close_in(static_cast<pid_t>(::syscall(SYS_clone3, &arguments, sizeof arguments)));
  });
  exchange(a, fd, "after clone3");
}

SCENARIO(a_child_exits_beside_a_stream, kComesBack) {
  const int fd = a.stream();
  exchange(a, fd, "before");
  a.both([&] {
    const pid_t child = ::fork();
    if (child == 0) std::exit(5);
    wait_for(a, child);
  });
  exchange(a, fd, "after");
  a.client([&] { a.shutdown(fd, SHUT_WR); });
  a.server([&] { a.recv(fd, 1); });
}

SCENARIO(a_child_makes_streams_of_its_own, kComesBack) {
  const int fd = a.stream();
  exchange(a, fd, "the parents'");
  if (a.is_client()) {
    const pid_t child = ::fork();
    if (child == 0) {
      const int own = a.connect_blocking();
      char buffer[16] = {};
      const bool good = ::send(own, "child", 5, 0) == 5 && ::recv(own, buffer, 16, 0) == 2;
      ::_exit(good ? 6 : 7);
    }
    wait_for(a, child);
  } else {
    const int own = a.accept_blocking();
    a.recv(own, 10);
    a.send(own, "ok");
    a.settle(own, POLLRDHUP, POLLRDHUP);
    a.recv(own, 10);
  }
  a.sync();
  exchange(a, fd, "the parents' still");
}

SCENARIO(the_child_serves_what_was_accepted, kComesBack) {
  const int fd = a.stream();
  if (a.is_server()) {
    const pid_t child = ::fork();
    if (child == 0) {
      a.recv(fd, 20);
      a.send(fd, "by the child");
      a.recv(fd, 20);
      ::_exit(0);
    }
    ::close(fd);
    a.sync();
    wait_for(a, child);
  } else {
    a.sync();
    a.send(fd, "request");
    a.recv(fd, 20);
    a.shutdown(fd, SHUT_WR);
    a.settle(fd, POLLIN, POLLIN);
    a.recv(fd, 20);
  }
  a.sync();
}

SCENARIO(the_child_accepts, 0) {
  a.meet();
  if (a.is_server()) {
    const pid_t child = ::fork();
    if (child == 0) {
      const int fd = a.accept_blocking();
      a.recv(fd, 20);
      a.send(fd, "by the child");
      a.recv(fd, 20);
      ::_exit(0);
    }
    a.sync();
    wait_for(a, child);
  } else {
    a.sync();
    const int fd = a.connect_blocking();
    a.send(fd, "request");
    a.recv(fd, 20);
    a.shutdown(fd, SHUT_WR);
    a.settle(fd, POLLIN, POLLIN);
    a.recv(fd, 20);
  }
  a.sync();
}

SCENARIO(a_program_inherits_the_stream, kComesBack) {
  // As inetd does it: the stream is another program's standard input and output.
  const int fd = a.stream();
  if (a.is_server()) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::dup2(fd, 0);
      ::dup2(fd, 1);
      ::execl("/bin/cat", "cat", static_cast<char*>(nullptr));
      ::_exit(127);
    }
    ::close(fd);
    a.sync();
    wait_for(a, child);
  } else {
    a.sync();
    a.send(fd, "through cat");
    a.recv(fd, 20);
    a.shutdown(fd, SHUT_WR);
    a.recv(fd, 20);
  }
  a.sync();
}

SCENARIO(posix_spawn_with_the_stream_as_output, kComesBack) {
  const int fd = a.stream();
  output_of_a_program(a, fd, [&] {
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, fd, 1);
    pid_t child = -1;
    char name[] = "echo";
    char words[] = "hello there";
    char* const argv[] = {name, words, nullptr};
    a.result("posix_spawn", ::posix_spawn(&child, "/bin/echo", &actions, nullptr, argv, environ));
    ::posix_spawn_file_actions_destroy(&actions);
    wait_for(a, child);
  });
}

SCENARIO(vfork_with_the_stream_as_output, kComesBack) {
  const int fd = a.stream();
  output_of_a_program(a, fd, [&] {
    const pid_t child = ::vfork();
    if (child == 0) {
      ::dup2(fd, 1);
      ::execl("/bin/echo", "echo", "hello there", static_cast<char*>(nullptr));
      ::_exit(127);
    }
    wait_for(a, child);
  });
}

SCENARIO(vfork_and_the_stream_stays_open, kComesBack) {
  const int fd = a.stream();
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  output_of_a_program(a, fd, [&] {
    char command[64];
    std::snprintf(command, sizeof command, "echo hello there >&%d", fd);
    const pid_t child = ::vfork();
    if (child == 0) {
      ::fcntl(fd, F_SETFD, 0);
      ::execl("/bin/bash", "bash", "-c", command, static_cast<char*>(nullptr));
      ::_exit(127);
    }
    wait_for(a, child);
  });
}

SCENARIO(a_program_gets_what_was_close_on_exec, kComesBack) {
  const int fd = a.stream();
  ::ioctl(fd, FIOCLEX);
  output_of_a_program(a, fd, [&] {
    char command[64];
    std::snprintf(command, sizeof command, "bash -c 'echo hello there >&%d'", fd);
    ::ioctl(fd, FIONCLEX);
    a.log("system: %d", std::system(command));
  });
}

SCENARIO(system_with_the_stream_as_output, kComesBack) {
  const int fd = a.stream();
  output_of_a_program(a, fd, [&] {
    as_standard_output(fd, [&] { a.log("system: %d", std::system("echo hello there")); });
  });
}

SCENARIO(popen_with_the_stream_as_output, kComesBack) {
  const int fd = a.stream();
  output_of_a_program(a, fd, [&] {
    as_standard_output(fd, [&] {
      std::FILE* pipe = ::popen("cat", "w");
      if (pipe == nullptr) return;
      std::fputs("hello there\n", pipe);
      a.log("pclose: %d", ::pclose(pipe));
    });
  });
}

namespace {

// A stream that is standard input by itself: nobody has put it there by dup2(). Bytes that came
// before are for the program that `run` starts, which says on the pipe what it has read.
void input_of_a_program(Actor& a, const std::function<void(int pipe)>& run) {
  constexpr int kPipe = 150;
  a.meet();
  int fd = -1;
  if (a.is_server()) {
    ::close(STDIN_FILENO);
    fd = ::accept(a.listening(), nullptr, nullptr);
    a.log("standard input: %d", fd == STDIN_FILENO);
  } else {
    fd = a.connect_blocking();
  }
  a.sync();
  exchange(a, fd, "before");
  a.client([&] { a.send(fd, "for it, not for it"); });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    int ends[2] = {-1, -1};
    a.result("pipe", ::pipe2(ends, O_CLOEXEC));
    a.log("for its output: %d", ::dup2(ends[1], kPipe) == kPipe);
    run(kPipe);
    ::close(kPipe);
    ::close(ends[1]);
    a.read(ends[0], 20);
    a.recv(fd, 20);
    a.send(fd, "answer");
  });
  a.client([&] { a.recv(fd, 20); });
}

char head[] = "head";
char count[] = "-c7";
char* const take_seven[] = {head, count, nullptr};

// Its output, and nothing of a stream, is put in its place.
void spawn(Actor& a, int pipe, bool by_name) {
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, pipe, 1);
  pid_t child = -1;
  a.result("spawn", by_name ? ::posix_spawnp(&child, head, &actions, nullptr, take_seven, environ)
                            : ::posix_spawn(&child, "/usr/bin/head", &actions, nullptr, take_seven,
                                            environ));
  ::posix_spawn_file_actions_destroy(&actions);
  wait_for(a, child);
}

}  // namespace

SCENARIO(posix_spawn_with_the_stream_as_input, kComesBack) {
  input_of_a_program(a, [&](int pipe) { spawn(a, pipe, false); });
}
SCENARIO(posix_spawnp_with_the_stream_as_input, kComesBack) {
  input_of_a_program(a, [&](int pipe) { spawn(a, pipe, true); });
}
SCENARIO(system_with_the_stream_as_input, kComesBack) {
  // The shell wants a number of one digit.
  input_of_a_program(a, [&](int pipe) {
    const std::string command = "head -c7 > /proc/self/fd/" + std::to_string(pipe);
    a.log("system: %d", std::system(command.c_str()));
  });
}
SCENARIO(popen_with_the_stream_as_input, kComesBack) {
  input_of_a_program(a, [&](int pipe) {
    std::FILE* program = ::popen("head -c7", "r");
    char bytes[16] = {};
    if (program == nullptr || std::fgets(bytes, sizeof bytes, program) == nullptr) return;
    a.log("pclose: %d", ::pclose(program));
    a.result("write", ::write(pipe, bytes, 7));
  });
}

SCENARIO(printf_to_the_stream, kComesBack) {
  const int fd = a.stream();
  output_of_a_program(a, fd, [&] {
    as_standard_output(fd, [&] {
      std::printf("hello there\n");
      std::fflush(stdout);
    });
  });
}

}  // namespace ringroad::test
