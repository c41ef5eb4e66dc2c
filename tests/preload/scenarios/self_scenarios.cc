// What a program may do to itself: its stack, its limits, its signals at a bad moment.
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <thread>

#include "tests/preload/drivers/actor.h"

namespace ringroad::test {

// The number is made another file's, which wakes a thread that sleeps on a stream, and then the signal comes,
// as a JVM ends the read of another thread.
static void another_file_and_a_signal(Actor& a, bool copied, int (*sleep)(int fd, int epoll)) {
  constexpr int kRounds = 10;
  int ended = 0;
  for (int i = 0; i < kRounds; ++i) {
    const int fd = a.stream();
    if (a.is_server()) {
      count_signal(SIGUSR1, false);
      const int marker = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
      std::atomic<pid_t> tid{0};
      std::atomic<bool> over{false};
      const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
      epoll_event event{EPOLLIN, {}};
      ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
      const int copy = copied ? ::dup(fd) : -1;
      std::thread sleeper([&] {
        tid.store(::gettid());
        if (sleep(fd, epoll) < 0 && errno == EINTR) ++ended;
        over.store(true);
      });
      wait_until_asleep(tid);
      ::dup2(marker, fd);
      ::pthread_kill(sleeper.native_handle(), SIGUSR1);
      for (int ms = 0; !over.load() && ms < 500; ++ms) ::poll(nullptr, 0, 1);
      if (!over.load()) {
        a.log("sleeps on");
        while (!over.load()) {
          ::pthread_kill(sleeper.native_handle(), SIGUSR1);
          ::poll(nullptr, 0, 5);
        }
      }
      sleeper.join();
      ::close(marker);
      ::close(epoll);
      if (copy >= 0) ::close(copy);
    }
    a.sync();
    ::close(fd);
  }
  a.server([&] { a.log("%d of %d", ended, kRounds); });
}

SCENARIO(a_signal_right_behind_another_file_for_the_number, 0) {
  another_file_and_a_signal(a, false, [](int fd, int) {
    char byte;
    return static_cast<int>(::recv(fd, &byte, 1, 0));
  });
}

SCENARIO(a_signal_right_behind_another_file_for_a_number_in_epoll, 0) {
  another_file_and_a_signal(a, true, [](int, int epoll) {
    epoll_event event;
    return ::epoll_wait(epoll, &event, 1, -1);
  });
}

SCENARIO(sendfile_on_the_smallest_stack, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] {
    struct Call {
      int fd;
      int file;
      ssize_t sent[2];
    } call{fd, ::memfd_create("file", MFD_CLOEXEC), {}};
    const std::string bytes = patterned(0, 100'000);
    if (::write(call.file, bytes.data(), bytes.size()) < 0) a.log("no file");
    pthread_attr_t attributes;
    ::pthread_attr_init(&attributes);
    ::pthread_attr_setstacksize(&attributes, static_cast<std::size_t>(::sysconf(_SC_THREAD_STACK_MIN)));
    pthread_t thread;
    const auto work = [](void* data) -> void* {
      auto* of = static_cast<Call*>(data);
      off_t at = 0;
      of->sent[0] = ::sendfile(of->fd, of->file, &at, 64);
      of->sent[1] = ::sendfile(of->fd, of->file, &at, 50'000);
      return nullptr;
    };
    a.log("thread %d", ::pthread_create(&thread, &attributes, work, &call));
    ::pthread_join(thread, nullptr);
    a.log("sent %zd and %zd", call.sent[0], call.sent[1]);
    ::close(call.file);
  });
  if (a.is_server()) a.recv_pattern(fd, 0, 50'064, 4096);
  a.sync();
}

SCENARIO(a_program_that_may_write_no_file, 0) {
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_FSIZE, &none);
  const int fd = a.stream();
  a.client([&] { a.send(fd, "still here"); });
  a.server([&] { a.recv(fd, 64); });
}

SCENARIO(a_fork_of_a_program_that_may_write_no_file, 0) {
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_FSIZE, &none);
  const int fd = a.stream();
  a.both([&] {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(0);
    int status = -1;
    ::waitpid(child, &status, 0);
    a.log("the child: %d", status);
  });
  a.client([&] { a.send(fd, "still here"); });
  a.server([&] { a.recv(fd, 64); });
}

// As the library starts: on the client's side by the connect, on the server's by the listen.
SCENARIO(the_first_connection_on_the_smallest_stack, 0) {
  const auto on_the_smallest_stack = [&](void* (*work)(void*), void* data) {
    pthread_attr_t attributes;
    ::pthread_attr_init(&attributes);
    ::pthread_attr_setstacksize(&attributes, static_cast<std::size_t>(::sysconf(_SC_THREAD_STACK_MIN)));
    pthread_t thread;
    a.log("thread %d", ::pthread_create(&thread, &attributes, work, data));
    ::pthread_join(thread, nullptr);
    ::pthread_attr_destroy(&attributes);
  };
  const auto meets = [](void* data) -> void* {
    static_cast<Actor*>(data)->meet();
    return nullptr;
  };
  struct Place {
    Actor* actor;
    int fd;
  } place{&a, -1};
  const auto joins = [](void* data) -> void* {
    auto* own = static_cast<Place*>(data);
    own->fd = own->actor->is_server() ? own->actor->accept_blocking() : own->actor->connect_blocking();
    return nullptr;
  };
  on_the_smallest_stack(meets, &a);
  on_the_smallest_stack(joins, &place);
  a.client([&] { a.send(place.fd, "from a small place"); });
  a.server([&] { a.recv(place.fd, 64); });
}

// As the library starts. Each round has a process of its own, which has not begun anything.
SCENARIO(a_fork_beside_the_first_listener, 0) {
  constexpr int kRounds = 10;
  const auto listens = [] {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
    ::bind(fd, reinterpret_cast<sockaddr*>(&any), sizeof any);
    const int result = ::listen(fd, 1);
    ::close(fd);
    return result == 0;
  };
  a.both([&] {
    int passed = 0;
    for (int i = 0; i < kRounds; ++i) {
      const pid_t round = ::fork();
      if (round == 0) {
        ::alarm(40);
        std::thread first(listens);
        ::usleep(static_cast<useconds_t>(100 * i));
        const pid_t child = ::fork();
        if (child == 0) {
          ::alarm(20);
          ::_exit(listens() ? 0 : 1);
        }
        int status = -1;
        ::waitpid(child, &status, 0);
        first.join();
        ::_exit(status == 0 ? 0 : 1);
      }
      int status = -1;
      ::waitpid(round, &status, 0);
      if (status == 0) ++passed;
    }
    a.log("%d of %d", passed, kRounds);
  });
}

}  // namespace ringroad::test
