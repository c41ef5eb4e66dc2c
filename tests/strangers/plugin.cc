// A plug-in of `strangers`, which opens it with RTLD_DEEPBIND: what it calls is libc's, whatever is
// preloaded.
#include <sys/socket.h>

extern "C" {

[[gnu::visibility("default")]] long plugin_send(int fd, const void* bytes, unsigned long n) {
  return ::send(fd, bytes, n, MSG_NOSIGNAL);
}

[[gnu::visibility("default")]] long plugin_recv(int fd, void* bytes, unsigned long n) {
  return ::recv(fd, bytes, n, MSG_WAITALL);
}

}  // extern "C"
