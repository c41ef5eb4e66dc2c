#include "rsocket-core/base/poll_by_select.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <new>

#include "rsocket-core/base/system_call.h"

namespace ringroad {
namespace {

constexpr short kIn = POLLIN | POLLRDNORM | POLLRDBAND | POLLRDHUP;
constexpr short kOut = POLLOUT | POLLWRNORM | POLLWRBAND;

using Word = unsigned long;
constexpr int kWordBits = static_cast<int>(sizeof(Word)) * 8;

// As many numbers as there are, in three sets.
class Sets {
 public:
  explicit Sets(int end) noexcept
      : words_(end / kWordBits + 1),
        memory_(new (std::nothrow) Word[3 * static_cast<std::size_t>(words_)]()) {}
  bool ok() const noexcept { return memory_ != nullptr; }
  fd_set* set(int which) noexcept { return reinterpret_cast<fd_set*>(memory_.get() + which * words_); }
  void add(int which, int fd) noexcept { word(which, fd) |= bit(fd); }
  bool has(int which, int fd) noexcept { return (word(which, fd) & bit(fd)) != 0; }

 private:
  static Word bit(int fd) noexcept { return Word{1} << fd % kWordBits; }
  Word& word(int which, int fd) noexcept {
    return memory_[static_cast<std::size_t>(which * words_ + fd / kWordBits)];
  }

  int words_;
  std::unique_ptr<Word[]> memory_;
};

int by_system_call(int end, fd_set* in, fd_set* out, fd_set* except, const timespec* timeout,
                   const sigset_t* mask) noexcept {
  timespec left = timeout != nullptr ? *timeout : timespec{};
  const struct {
    const sigset_t* mask;
    std::size_t size;
  } with{mask, _NSIG / 8};
  return static_cast<int>(sys::call(SYS_pselect6, end, in, out, except,
                                    timeout != nullptr ? &left : nullptr, &with));
}

bool is_more_than_allowed(nfds_t count) noexcept {
  rlimit most{};
  return sys::call(SYS_prlimit64, 0, RLIMIT_NOFILE, nullptr, &most) == 0 && count > most.rlim_cur;
}

// What poll(2) says of one entry, or, where it says nothing at all, what select(2) has said.
short precisely(const pollfd& entry, short by_select) noexcept {
  pollfd one{entry.fd, entry.events, 0};
  const timespec now{};
  const long n = sys::raw(SYS_ppoll, sys::word(&one), 1, sys::word(&now), 0, _NSIG / 8);
  return n >= 0 ? one.revents : by_select & entry.events;
}

// select(2) only says that one of the numbers is not open.
int find_closed(pollfd* fds, nfds_t count) noexcept {
  int found = 0;
  for (nfds_t i = 0; i < count; ++i) {
    const bool closed = fds[i].fd >= 0 && sys::raw(SYS_fcntl, fds[i].fd, F_GETFD) < 0;
    fds[i].revents = closed ? POLLNVAL : 0;
    found += closed ? 1 : 0;
  }
  return found;
}

}  // namespace

int poll_by_select(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask,
                   nfds_t asked, SelectCall call) noexcept {
  int end = 0;
  for (nfds_t i = 0; i < count; ++i) end = std::max(end, fds[i].fd + 1);
  if (!is_more_than_allowed(count) || is_more_than_allowed(asked)) {
    errno = EINVAL;
    return -1;
  }
  Sets sets(end);
  if (!sets.ok()) {
    errno = ENOMEM;
    return -1;
  }
  for (nfds_t i = 0; i < count; ++i) {
    if (fds[i].fd < 0) continue;
    if ((fds[i].events & kIn) != 0) sets.add(0, fds[i].fd);
    if ((fds[i].events & kOut) != 0) sets.add(1, fds[i].fd);
    if ((fds[i].events & POLLPRI) != 0) sets.add(2, fds[i].fd);
  }
  const int n = (call != nullptr ? call : by_system_call)(end, sets.set(0), sets.set(1),
                                                          sets.set(2), timeout, mask);
  if (n < 0 && errno == EBADF) {
    const int closed = find_closed(fds, count);
    if (closed == 0) errno = EBADF;
    return closed > 0 ? closed : -1;
  }
  if (n < 0) return -1;
  int found = 0;
  for (nfds_t i = 0; i < count; ++i) {
    fds[i].revents = 0;
    if (n == 0 || fds[i].fd < 0) continue;
    short by_select = 0;
    if (sets.has(0, fds[i].fd)) by_select |= POLLIN | POLLRDNORM;
    if (sets.has(1, fds[i].fd)) by_select |= POLLOUT | POLLWRNORM;
    if (sets.has(2, fds[i].fd)) by_select |= POLLPRI;
    if (by_select == 0) continue;
    fds[i].revents = precisely(fds[i], by_select);
    found += fds[i].revents != 0 ? 1 : 0;
  }
  return found;
}

}  // namespace ringroad
