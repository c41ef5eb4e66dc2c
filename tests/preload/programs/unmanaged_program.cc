// Calls on descriptors that are none of the library's business, a function each: tests/cost counts them.
//
//   unmanaged_program CALLS [listen|thread]
//
// `listen`: where a policy may have the library start its agent. `thread`: what that costs by libc alone.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace {

int pair[2];
int idle;   // an epoll instance that has nothing to tell
int ready;  // and one that has
char byte;
int value;
epoll_event input{EPOLLIN, {}};
epoll_event output{EPOLLOUT, {}};
epoll_event told[4];

void need(bool holds) {
  if (!holds) abort();
}

void make_descriptors() {
  need(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
  idle = epoll_create1(EPOLL_CLOEXEC);
  ready = epoll_create1(EPOLL_CLOEXEC);
  need(epoll_ctl(idle, EPOLL_CTL_ADD, pair[0], &input) == 0);
  need(epoll_ctl(ready, EPOLL_CTL_ADD, pair[0], &output) == 0);
  need(epoll_wait(ready, told, 4, 1000) == 1);  // what is done once
}

void listen_somewhere() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  need(bind(listener, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0);
  need(listen(listener, 1) == 0);
}

void start_thread() {
  pthread_t thread;
  const auto sleeps = [](void*) -> void* {
    for (;;) pause();
  };
  need(pthread_create(&thread, nullptr, sleeps, nullptr) == 0);
}

}  // namespace

#define ROW(name) extern "C" __attribute__((noinline)) void row_##name(int calls)
#define TIMES(call) \
  for (int i = 0; i < calls; ++i) static_cast<void>(call)

ROW(recv) { TIMES(recv(pair[0], &byte, 1, MSG_DONTWAIT)); }
ROW(read) { TIMES(read(pair[0], &byte, 1)); }
ROW(send) { TIMES(send(-1, &byte, 1, 0)); }
ROW(setsockopt) { TIMES(setsockopt(pair[0], SOL_SOCKET, SO_PRIORITY, &value, sizeof value)); }
ROW(fcntl) { TIMES(fcntl(pair[0], F_GETFL)); }
ROW(ioctl) { TIMES(ioctl(pair[0], FIONREAD, &value)); }
ROW(poll) {
  pollfd one{pair[0], POLLIN, 0};
  TIMES(poll(&one, 1, 0));
}
ROW(select) {
  fd_set in;
  FD_ZERO(&in);
  timeval now{};
  TIMES((FD_SET(pair[0], &in), select(pair[0] + 1, &in, nullptr, nullptr, &now)));
}
ROW(epoll_wait) { TIMES(epoll_wait(idle, told, 4, 0)); }
ROW(epoll_wait_timed) { TIMES(epoll_wait(ready, told, 4, 1000)); }
ROW(epoll_ctl_mod) { TIMES(epoll_ctl(idle, EPOLL_CTL_MOD, pair[0], &input)); }
ROW(epoll_ctl_add_del) {
  for (int i = 0; i < calls; ++i) {
    epoll_ctl(idle, EPOLL_CTL_ADD, pair[1], &input);
    epoll_ctl(idle, EPOLL_CTL_DEL, pair[1], nullptr);
  }
}
ROW(syscall_gettid) { TIMES(syscall(SYS_gettid)); }
ROW(syscall_recvfrom) {
  TIMES(syscall(SYS_recvfrom, pair[0], &byte, 1, MSG_DONTWAIT, nullptr, nullptr));
}
ROW(dup_close) { TIMES(close(dup(pair[0]))); }
ROW(open_close) { TIMES(close(open("/", O_PATH | O_CLOEXEC))); }
ROW(pipe_close) {
  int ends[2] = {-1, -1};
  TIMES((need(pipe(ends) == 0), close(ends[0]), close(ends[1])));
}

int main(int argc, char** argv) {
  const int calls = argc > 1 ? std::atoi(argv[1]) : 0;
  if (argc > 2 && std::strcmp(argv[2], "listen") == 0) listen_somewhere();
  if (argc > 2 && std::strcmp(argv[2], "thread") == 0) start_thread();
  make_descriptors();
  for (const auto row :
       {row_recv, row_read, row_send, row_setsockopt, row_fcntl, row_ioctl, row_poll, row_select,
        row_epoll_wait, row_epoll_wait_timed, row_epoll_ctl_mod, row_epoll_ctl_add_del,
        row_syscall_gettid, row_syscall_recvfrom, row_dup_close, row_open_close, row_pipe_close}) {
    row(calls);
  }
  return 0;
}
