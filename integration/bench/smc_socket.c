// Makes a program's TCP sockets AF_SMC's, as smc_run of smc-tools does, which Debian 12 lacks.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>

enum { kAfSmc = 43, kSmcOverIpv4 = 0, kSmcOverIpv6 = 1, kFlags = SOCK_CLOEXEC | SOCK_NONBLOCK };

int socket(int domain, int type, int protocol) {
  int (*next)(int, int, int);
  *(void**)&next = dlsym(RTLD_NEXT, "socket");
  const int stream = (type & ~kFlags) == SOCK_STREAM;
  if (stream && (protocol == IPPROTO_IP || protocol == IPPROTO_TCP)) {
    if (domain == AF_INET) return next(kAfSmc, type, kSmcOverIpv4);
    if (domain == AF_INET6) return next(kAfSmc, type, kSmcOverIpv6);
  }
  return next(domain, type, protocol);
}
