#include "rsocket-core/base/deferred_close.h"

#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>

#include "rsocket-core/base/signals.h"
#include "rsocket-core/base/sys.h"

namespace ringroad {
namespace {

constexpr std::size_t kMaxWaiting = 1024;
constexpr int kMaxMessages = 16;
constexpr std::size_t kStackBytes = 64 * 1024;

// Zero-initialised, so usable at any time; without locks, so not to be found locked after a fork.
// Descriptor + 1, below zero where it is an own socket with messages; 0: free.
std::atomic<int> waiting[kMaxWaiting];
std::atomic<int> unfinished{0};         // waiting, or being closed
std::atomic<int> threads{0};
std::atomic<pid_t> owner{0};

// The threads stay behind in a fork, and what waited is the parent's to close.
void forget_parent() noexcept {
  const pid_t self = sys::getpid();
  const pid_t before = owner.exchange(self);
  if (before == self || before == 0) return;
  for (std::atomic<int>& slot : waiting) slot.store(0);
  unfinished.store(0);
  threads.store(0);
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

// What is unread when a socket closes has its peer lose what it has not read yet: an answer.
void take_messages(int socket) noexcept {
  char byte;
  for (int i = 0; i < kMaxMessages && sys::recv(socket, &byte, 1, MSG_DONTWAIT) > 0; ++i) {
  }
}

// A place among the threads.
bool enter() noexcept {
  if (threads.fetch_add(1) < kMaxForeignCloses) return true;
  threads.fetch_sub(1);
  return false;
}

void* close_what_waits(void*) noexcept {
  int value = take();
  do {
    for (; value != 0; value = take()) {
      if (value < 0) take_messages(-value - 1);
      sys::close_quietly((value < 0 ? -value : value) - 1);
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

bool start_thread() noexcept {
  if (signals::thread_state.in_handler) return false;
  // A thread starts with its parent's mask, and must take none of the program's signals.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  pthread_t thread;
  const int error = pthread_create(&thread, &attributes, close_what_waits, nullptr);
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return error == 0;
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

void close_later(int value) noexcept {
  const int saved = errno;
  forget_parent();
  unfinished.fetch_add(1);
  if (!put(value)) {
    unfinished.fetch_sub(1);  // stays open: better than to wait
  } else if (enter() && !start_thread()) {
    threads.fetch_sub(1);  // the next one may have more luck
  }
  errno = saved;
}

}  // namespace

void close_foreign(int fd) noexcept {
  if (fd >= 0) close_later(fd + 1);
}

void close_foreign_socket(int socket) noexcept {
  if (socket < 0) return;
  const int saved = errno;
  sys::shutdown(socket, SHUT_RDWR);
  if (holds_descriptors(socket)) {
    close_later(-(socket + 1));
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
