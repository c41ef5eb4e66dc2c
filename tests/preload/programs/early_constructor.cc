// A library that uses sockets in its constructor, before the preloaded one has had its turn.
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>

namespace {

// Priority 101 is the first that a program may use; which comes first among equals is the loader's.
__attribute__((constructor(101))) void talk_to_oneself() {
  if (std::getenv("EARLY_CONSTRUCTOR") == nullptr) return;
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof at;
  auto* address = reinterpret_cast<sockaddr*>(&at);
  bool good = bind(listener, address, length) == 0 && listen(listener, 1) == 0 &&
              getsockname(listener, address, &length) == 0;
  const int out = socket(AF_INET, SOCK_STREAM, 0);
  good = good && connect(out, address, length) == 0;
  const int in = accept(listener, nullptr, nullptr);
  char buffer[8] = {};
  good = good && send(out, "early", 5, MSG_NOSIGNAL) == 5 && recv(in, buffer, 8, 0) == 5;
  const pid_t child = vfork();
  if (child == 0) _exit(in >= 0 && close(in) == 0 ? 7 : 8);
  int status = 0;
  good = good && waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7;
  alignas(16) static char stack[64 * 1024];
  const pid_t by_clone = clone([](void* number) { return close(*static_cast<int*>(number)) + 9; },
                               stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD,
                               const_cast<int*>(&in));
  good = good && waitpid(by_clone, &status, 0) == by_clone && WEXITSTATUS(status) == 9;
  pollfd entry{in, POLLIN, 0};
  good = good && poll(&entry, 1, 0) == 0;
  good = good && close(out) == 0 && recv(in, buffer, 8, 0) == 0 && close(in) == 0 &&
         close(listener) == 0 && close(listener) == -1 && errno == EBADF;
  std::printf("early: %s\n", good ? "good" : "bad");
  std::fflush(stdout);
}

}  // namespace
