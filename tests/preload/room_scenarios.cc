// How many descriptors a program can open while its connections are on channels: as many as without the library.
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "tests/preload/actor.h"

namespace ringroad::test {
namespace {

void lower_limit(rlim_t to, bool hard_too) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = to;
  if (hard_too) limit.rlim_max = to;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

void exchange(Actor& a, int fd, int times) {
  for (int i = 0; i < times; ++i) {
    char bytes[4];
    if (a.is_client()) ::send(fd, "ping", 4, MSG_NOSIGNAL);
    if (::recv(fd, bytes, 4, MSG_WAITALL) != 4) a.log("no bytes");
    if (a.is_server()) ::send(fd, bytes, 4, MSG_NOSIGNAL);
  }
}

// Beyond its first messages, slept on by poll() and by an epoll instance.
int used_stream(Actor& a, int epoll) {
  const int fd = a.stream();
  epoll_event event{EPOLLIN, {.fd = fd}};
  a.result("epoll_ctl", ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
  exchange(a, fd, 50);
  for (int i = 0; i < 20; ++i) {
    if (a.is_client()) ::send(fd, "ping", 4, MSG_NOSIGNAL);
    if (::epoll_wait(epoll, &event, 1, 10'000) != 1) a.log("nothing is ready");
    exchange(a, fd, a.is_client() ? 0 : 1);
    char bytes[4];
    if (a.is_client() && ::recv(fd, bytes, 4, MSG_WAITALL) != 4) a.log("no bytes");
  }
  return fd;
}

// All that are left, and what the first call beyond says.
void open_all(Actor& a, int from, std::vector<int>& opened) {
  for (int copy; (copy = ::dup(from)) >= 0;) opened.push_back(copy);
  const int error = errno;
  a.log("opened %zu, then %s", opened.size(), std::strerror(error));
}

void open_what_the_limit_allows(Actor& a, rlim_t limit, bool hard_too) {
  lower_limit(limit, hard_too);
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  const int fd = used_stream(a, epoll);
  std::vector<int> opened;
  open_all(a, epoll, opened);
  exchange(a, fd, 5);
  for (const int copy : opened) ::close(copy);
  opened.clear();
  open_all(a, epoll, opened);
  exchange(a, fd, 5);
  for (const int copy : opened) ::close(copy);
  if (a.is_client()) ::send(fd, "ping", 4, MSG_NOSIGNAL);
  epoll_event event{};
  if (a.is_server()) a.result("epoll_wait", ::epoll_wait(epoll, &event, 1, 10'000));
  a.sync();
}

}  // namespace

SCENARIO(descriptors_up_to_a_soft_limit_of_64, kStaysOnChannel) {
  open_what_the_limit_allows(a, 64, false);
}
SCENARIO(descriptors_up_to_a_soft_limit_of_256, kStaysOnChannel) {
  open_what_the_limit_allows(a, 256, false);
}
SCENARIO(descriptors_up_to_a_soft_limit_of_1024, kStaysOnChannel) {
  open_what_the_limit_allows(a, 1024, false);
}
SCENARIO(descriptors_up_to_a_hard_limit_of_64, 0) { open_what_the_limit_allows(a, 64, true); }
SCENARIO(descriptors_up_to_a_hard_limit_of_256, 0) { open_what_the_limit_allows(a, 256, true); }
SCENARIO(descriptors_up_to_a_hard_limit_of_1024, 0) { open_what_the_limit_allows(a, 1024, true); }

// Where the soft limit is below the hard one, a number above it is nobody's.
SCENARIO(any_number_can_be_duplicated_to, 0) {
  for (const bool hard_too : {false, true}) {
    lower_limit(1024, hard_too);
    const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
    const int fd = used_stream(a, epoll);
    int made = 0;
    for (int number = 700; number < 1100; ++number) {
      if (::dup2(epoll, number) == number) ++made;
    }
    a.log("made %d", made);
    exchange(a, fd, 5);
    for (int number = 700; number < 1100; ++number) ::close(number);
    a.sync();
  }
}

}  // namespace ringroad::test
