// echo_program serve           prints its port, then echoes what each connection sends, one at a time
// echo_program connect PORT    prints its own port; sends each line of its input, prints the answer
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

void say_port(int fd) {
  sockaddr_in at{};
  socklen_t length = sizeof at;
  getsockname(fd, reinterpret_cast<sockaddr*>(&at), &length);
  std::printf("port %d.\n", ntohs(at.sin_port));
  std::fflush(stdout);
}

int serve() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (bind(listener, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0 ||
      listen(listener, 8) != 0) {
    return 1;
  }
  say_port(listener);
  for (;;) {
    const int fd = accept(listener, nullptr, nullptr);
    if (fd < 0) return 1;
    char buffer[4096];
    ssize_t n;
    while ((n = recv(fd, buffer, sizeof buffer, 0)) > 0) {
      if (send(fd, buffer, static_cast<size_t>(n), MSG_NOSIGNAL) != n) break;
    }
    std::printf("ended %zd.\n", n);
    std::fflush(stdout);
    close(fd);
  }
}

int connect_to(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(static_cast<in_port_t>(port));
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0) return 1;
  say_port(fd);
  char line[4096];
  while (std::fgets(line, sizeof line, stdin) != nullptr) {
    const size_t length = std::strlen(line);
    if (send(fd, line, length, MSG_NOSIGNAL) != static_cast<ssize_t>(length)) {
      std::perror("send");
      return 1;
    }
    char answer[4096];
    const ssize_t n = recv(fd, answer, length, MSG_WAITALL);
    std::printf("%.*s", n < 0 ? 0 : static_cast<int>(n), answer);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "serve") == 0) return serve();
  if (argc == 3 && std::strcmp(argv[1], "connect") == 0) return connect_to(std::atoi(argv[2]));
  std::fprintf(stderr, "usage: echo_program serve | connect PORT\n");
  return 2;
}
