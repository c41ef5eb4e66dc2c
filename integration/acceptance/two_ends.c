/* A client thread and a server thread of one process, which a sanitizer or another preloaded library watches:
   two_ends ROUNDS. It prints a sum of what came, and ends with 1 where a call failed. */
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { kMost = 20000 };

static int listener;

static void check(int is_well, const char* what) {
  if (is_well) return;
  perror(what);
  exit(1);
}

static void* serve(void* unused) {
  char* buffer = malloc(kMost);
  const int fd = accept(listener, NULL, NULL);
  check(fd >= 0, "accept");
  for (;;) {
    struct pollfd entry = {fd, POLLIN, 0};
    check(poll(&entry, 1, -1) == 1, "poll");
    const ssize_t n = recv(fd, buffer, kMost, 0);
    check(n >= 0, "recv");
    if (n == 0) break;
    check(send(fd, buffer, (size_t)n, 0) == n, "send");
  }
  free(buffer);
  close(fd);
  return unused;
}

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? atoi(argv[1]) : 1;
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof address;
  listener = socket(AF_INET, SOCK_STREAM, 0);
  check(bind(listener, (struct sockaddr*)&address, size) == 0 && listen(listener, 1) == 0, "listen");
  check(getsockname(listener, (struct sockaddr*)&address, &size) == 0, "getsockname");
  pthread_t server;
  check(pthread_create(&server, NULL, serve, NULL) == 0, "pthread_create");
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  check(connect(fd, (struct sockaddr*)&address, size) == 0, "connect");
  uint64_t sum = 0;
  for (int round = 0; round < rounds; ++round) {
    const size_t n = 1 + (size_t)round * 7919 % kMost;
    unsigned char* bytes = malloc(n);
    memset(bytes, round, n);
    check(send(fd, bytes, n, 0) == (ssize_t)n, "send");
    check(recv(fd, bytes, n, MSG_WAITALL) == (ssize_t)n, "recv");
    for (size_t i = 0; i < n; ++i) sum = sum * 31 + bytes[i];
    free(bytes);
  }
  shutdown(fd, SHUT_WR);
  pthread_join(server, NULL);
  printf("%llu\n", (unsigned long long)sum);
  return 0;
}
