#include "rsocket-core/base/deferred_close.h"

#include <linux/close_range.h>
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

#include "rsocket-core/base/futex.h"
#include "rsocket-core/base/signals.h"
#include "rsocket-core/base/sys.h"
#include "rsocket-core/base/threads.h"

namespace ringroad {
namespace {

constexpr std::size_t kMaxWaiting = 1024;
constexpr int kMaxMessages = 16;
constexpr std::size_t kStackBytes = 64 * 1024;

// Zero-initialised, so usable at any time; without locks, so not to be found locked after a fork.
// Descriptor + 1; 0: free.
std::atomic<int> waiting[kMaxWaiting];
std::atomic<int> unfinished{0};         // waiting, or being closed
std::atomic<int> threads{0};
std::atomic<bool> has_copy{false};           // a thread has a copy of the table of descriptors
std::atomic<std::uint32_t> copies_ended{0};  // how often that has ended
std::atomic<pid_t> owner{0};

// The threads stay behind in a fork, and what waited is the parent's to close.
void forget_parent() noexcept {
  const pid_t self = sys::getpid();
  const pid_t before = owner.exchange(self);
  if (before == self || before == 0) return;
  for (std::atomic<int>& slot : waiting) slot.store(0);
  unfinished.store(0);
  threads.store(0);
  has_copy.store(false);
}

bool put(int value) noexcept {
  for (std::atomic<int>& slot : waiting) {
    int free = 0;
    if (slot.compare_exchange_strong(free, value)) return true;
  }
  return false;
}

int take() noexcept {
  for (std::atomic<int>& slot : waiting) {
    if (slot.load() == 0) continue;
    const int value = slot.exchange(0);
    if (value != 0) return value;
  }
  return 0;
}

// A place among the threads.
bool enter() noexcept {
  if (threads.fetch_add(1) < kMaxForeignCloses) return true;
  threads.fetch_sub(1);
  return false;
}

// What a thread and its maker tell one another: it has tried to get a table of descriptors of its own with
// `fd` in it, and it may end.
struct Holder {
  int fd;
  bool has_it = false;
  std::atomic<std::uint32_t> has_tried{0};
  std::atomic<std::uint32_t> may_end{0};
};

// A table with a copy of `fd` alone: Linux 5.9, where nothing filters system calls as Docker does.
bool takes_one(int fd) noexcept {
  if (sys::call(SYS_close_range, 0U, ~0U, CLOSE_RANGE_UNSHARE) != 0) return false;
  const int self = static_cast<int>(sys::call(SYS_pidfd_open, sys::getpid(), 0U));
  return self >= 0 && sys::call(SYS_pidfd_getfd, self, fd, 0U) >= 0;
}

// A copy of the whole table. What the program closes meanwhile is closed a moment later.
bool takes_all(int fd) noexcept {
  if (sys::call(SYS_close_range, static_cast<unsigned>(fd) + 1, ~0U, CLOSE_RANGE_UNSHARE) != 0) {
    return sys::call(SYS_unshare, CLONE_FILES) == 0;
  }
  if (fd > 0) sys::call(SYS_close_range, 0U, static_cast<unsigned>(fd) - 1, 0U);
  return true;
}

template <bool takes(int fd) noexcept>
void* hold(void* argument) noexcept {
  Holder& holder = *static_cast<Holder*>(argument);
  holder.has_it = takes(holder.fd);
  sys::futex_ring(holder.has_tried);
  while (holder.may_end == 0) sys::futex_wait(&holder.may_end, 0, nullptr);
  return nullptr;
}

// Has a thread take a copy of `socket`, by `takes`, and closes it here. That is not its last close, as the
// thread ends after it. False: it is still open.
template <bool takes(int fd) noexcept>
bool close_before_a_thread_ends(int socket) noexcept {
  Holder holder{socket};
  pthread_t thread;
  if (!start_thread(thread, Ends::kJoined, kStackBytes, hold<takes>, &holder)) return false;
  while (holder.has_tried == 0) sys::futex_wait(&holder.has_tried, 0, nullptr);
  if (holder.has_it) sys::close_quietly(socket);
  sys::futex_ring(holder.may_end);
  pthread_join(thread, nullptr);
  return holder.has_it;
}

// The last close(2) of a socket waits for bytes that linger, but not where a thread's end is what closes it
// (PF_EXITING in inet_release(), net/ipv4/af_inet.c of Linux, and in its like of other protocols). What the
// unread messages of a Unix socket hold is closed with it. One at a time: what a thread that has taken all
// closes of it before it ends could else be the last of another one's socket.
void close_without_lingering(int socket) noexcept {
  while (has_copy.exchange(true)) {
    const std::uint32_t ended = copies_ended;
    if (has_copy) sys::futex_wait(&copies_ended, ended, nullptr);
  }
  if (!close_before_a_thread_ends<takes_one>(socket) && !close_before_a_thread_ends<takes_all>(socket)) {
    sys::close_quietly(socket);  // waits
  }
  has_copy = false;
  sys::futex_ring(copies_ended);
}

bool is_socket(int fd) noexcept {
  int type;
  socklen_t length = sizeof type;
  return sys::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0;
}

void* close_what_waits(void*) noexcept {
  int value = take();
  do {
    for (; value != 0; value = take()) {
      const int fd = value - 1;
      if (is_socket(fd)) {
        close_without_lingering(fd);
      } else {
        sys::close_quietly(fd);
      }
      unfinished.fetch_sub(1);
    }
    threads.fetch_sub(1);
    // A thread that put something since then may have found all places taken.
    value = take();
    if (value != 0 && !enter()) {
      put(value);
      value = 0;
    }
  } while (value != 0);
  return nullptr;
}

// Looks at the first unread message without taking it. A message whose descriptors or credentials
// find no room is marked MSG_CTRUNC; the end of the stream is not.
bool peek_is_cut(int socket, bool credentials) noexcept {
  const int on = credentials ? 1 : 0;
  sys::setsockopt(socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
  char byte;
  iovec piece{&byte, 1};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  return sys::recvmsg(socket, &message, MSG_PEEK | MSG_DONTWAIT) >= 0 &&
         (message.msg_flags & MSG_CTRUNC) != 0;
}

// Takes messages that hold no descriptors. True when one is left that does, or may.
// REQUIRES: the socket is shut down, so nothing more can come.
bool holds_descriptors(int socket) noexcept {
  for (int i = 0; i < kMaxMessages; ++i) {
    if (!peek_is_cut(socket, true)) return false;
    if (peek_is_cut(socket, false)) return true;
    char byte;
    sys::recv(socket, &byte, 1, MSG_DONTWAIT);
  }
  return true;
}

void close_later(int fd) noexcept {
  const int saved = errno;
  forget_parent();
  unfinished.fetch_add(1);
  if (!put(fd + 1)) {
    unfinished.fetch_sub(1);  // stays open: better than to wait
    errno = saved;
    return;
  }
  pthread_t thread;
  if (enter() && (signals::thread_state.in_handler ||
                  !start_thread(thread, Ends::kAlone, kStackBytes, close_what_waits, nullptr))) {
    threads.fetch_sub(1);  // the next one may have more luck
  }
  errno = saved;
}

}  // namespace

void close_foreign(int fd) noexcept {
  if (fd >= 0) close_later(fd);
}

void close_foreign_socket(int socket) noexcept {
  if (socket < 0) return;
  const int saved = errno;
  sys::shutdown(socket, SHUT_RDWR);
  if (holds_descriptors(socket)) {
    close_later(socket);
  } else {
    sys::close_quietly(socket);
  }
  errno = saved;
}

void close_own(int& fd) noexcept {
  if (fd >= 0) sys::close_quietly(fd);
  fd = -1;
}

int foreign_closes_under_way() noexcept {
  return owner.load() == sys::getpid() ? unfinished.load() : 0;
}

}  // namespace ringroad
