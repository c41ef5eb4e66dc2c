// connect, listen, accept, shutdown, close and their kin.
#include <linux/close_range.h>
#include <netinet/in.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>

#include "preload/absent.h"
#include "preload/cancellation.h"
#include "preload/deferred_stream.h"
#include "preload/epoll_marks.h"
#include "preload/fd_room.h"
#include "preload/fd_table.h"
#include "preload/listeners.h"
#include "preload/policy_loading.h"
#include "preload/policy_lookup.h"
#include "preload/process_start.h"
#include "preload/process_state.h"
#include "preload/real.h"
#include "preload/seen_options.h"
#include "preload/socket_lifecycle.h"
#include "rsocket-core/base/faults.h"
#include "rsocket-core/base/reserved_fds.h"
#include "rsocket-core/base/sys.h"
#include "rsocket-core/base/threads.h"
#include "rsocket-core/net/tcp_counters.h"

namespace ringroad::preload {
namespace {

using Kind = FdEntry::Kind;

constexpr std::int64_t kPinTimeoutNs = 2'000'000'000;

// A connect() has been accepted by the kernel. Is the connection one for us?
void consider_connect(int fd, const sockaddr* addr, socklen_t len, bool done,
                      unsigned forks) noexcept {
  Endpoint remote;
  if (!Endpoint::from_sockaddr(addr, len, remote) || process_start::agent() == nullptr) return;
  const policy::Settings* rule = policy_lookup::rule_of(Role::kConnect, Endpoint(), remote);
  if (rule == nullptr || !(seen_options::may_be_tcp(fd) || seen_options::is_tcp(fd))) return;
  if (done && deferred_stream::begin(fd, Role::kConnect, Endpoint(), *rule, false, forks)) return;
  if (!seen_options::is_tcp(fd)) return;
  SocketRef socket = fd_table::insert(fd, Kind::kConnecting);
  if (!socket) return;
  policy_lookup::configure(*rule, socket->config);
  if (process_state::forks() != forks) socket->forked.store(true, std::memory_order_relaxed);
  if (done) socket_lifecycle::establish(fd, socket);
}

// `remote`: as accept() has told it, or null. `forks`: from before accept().
void consider_accepted(int fd, const Endpoint& listener, const sockaddr* remote, socklen_t length,
                       bool nonblocking, unsigned forks) noexcept {
  epoll_marks::note_end(fd);
  FourTuple tuple;
  if (!Endpoint::from_sockaddr(remote, length, tuple.remote) &&
      !Endpoint::peer_of(fd, tuple.remote)) {
    return;
  }
  const policy::Settings* rule = policy_lookup::rule_of(Role::kAccept, listener, tuple.remote);
  if (rule == nullptr) return;
  if (deferred_stream::begin(fd, Role::kAccept, tuple.remote, *rule, nonblocking, forks)) return;
  if (!Endpoint::local_of(fd, tuple.local)) return;
  StreamConfig config;
  policy_lookup::configure(*rule, config);
  const SocketRef socket =
      socket_lifecycle::adopt(fd, Role::kAccept, tuple, config, nonblocking, true);
  if (socket.stream() == nullptr) return;
  // A child that was forked between the kernel's accept() and here has it, and is not known to.
  if (process_state::forks() != forks) socket.stream()->demote_for_good(Reason::kFork, 0);
  // accept(2) gives out connections that are over, too.
  if (config.wait_ns > 0 && tcp_established(fd)) {
    socket.stream()->wait_promoted(config.wait_ns);
  }
}

// Another thread may have put a stream there just before the kernel closed the number.
void check_closed(int fd) noexcept {
  const int saved = errno;
  const fd_table::FdMutation change;
  const SocketRef socket = fd_table::find(fd);
  bool there = sys::fcntl(fd, F_GETFD) >= 0;
  if (const Stream* stream = socket.stream(); stream != nullptr && there) {
    Endpoint remote;  // one that was reset has none any more
    there = Endpoint::peer_of(fd, remote) ? remote == stream->tuple().remote : errno == ENOTCONN;
  }
  if (!there) socket_lifecycle::take_out_closed(fd);
  errno = saved;
}

}  // namespace

}  // namespace ringroad::preload

using namespace ringroad;
using namespace ringroad::preload;

namespace {

// connect() to AF_UNSPEC ends a connection; the socket may then begin another one.
int disconnect(int fd, Stream& stream, const sockaddr* addr, socklen_t len) {
  stream.demote_for_good(Reason::kDescriptorUse, kPinTimeoutNs);
  const int result = cancellation::caught(real().connect, fd, addr, len);
  if (result == 0) {
    const int saved = errno;
    socket_lifecycle::take_out(fd);
    errno = saved;
  }
  return result;
}

RR_NOINLINE int watched_connect(int fd, const sockaddr* addr, socklen_t len) {
  SocketRef socket = socket_lifecycle::find(fd);
  const bool has_family = len >= sizeof addr->sa_family && len <= sizeof(sockaddr_storage);
  if (socket.stream() != nullptr && has_family && faults::can_read(addr, len) &&
      addr->sa_family == AF_UNSPEC) {
    return disconnect(fd, *socket.stream(), addr, len);
  }
  const unsigned forks = process_state::forks();
  const int result = cancellation::caught(real().connect, fd, addr, len);
  const int saved = errno;
  if (socket.is(FdEntry::Kind::kConnecting) && result != 0 && errno == EINPROGRESS) {
    // The attempt before this one has failed; this one may go elsewhere.
    socket_lifecycle::take_out(fd);
    socket = SocketRef();
  }
  if (socket.is(FdEntry::Kind::kConnecting)) {
    if (result == 0 || saved == EISCONN) socket_lifecycle::establish(fd, socket);
  } else if (!socket && (result == 0 || saved == EINPROGRESS || saved == EINTR) &&
             addr != nullptr && (addr->sa_family == AF_INET || addr->sa_family == AF_INET6)) {
    consider_connect(fd, addr, len, result == 0, forks);
  }
  errno = saved;
  return result;
}

RR_NOINLINE int watched_listen(int fd, int backlog) {
  // Before any client can connect and ask; after it where only listen() gives the socket a port.
  int saved = errno;
  const bool considered = listeners::consider(fd, true);
  errno = saved;
  const int result = real().listen(fd, backlog);
  saved = errno;
  if (result == 0 && !considered) {
    listeners::consider(fd, true);
  } else if (result != 0 && considered) {
    socket_lifecycle::take_out(fd);
  }
  errno = saved;
  return result;
}

// Accepts on each number, while it is unknown: the kernel is asked about it once in 256 of them. A number
// may come to be another listener unseen, and the policy may come to have a rule for it.
std::atomic<std::uint8_t> unknown_accepts[fd_table::kLimit];

bool asks_about_listener(int fd) noexcept {
  if (!fd_table::in_range(fd)) return false;
  if (policy_loading::was_edited()) return true;
  const std::uint8_t count = unknown_accepts[fd].load(std::memory_order_relaxed);
  unknown_accepts[fd].store(static_cast<std::uint8_t>(count + 1), std::memory_order_relaxed);
  return count == 0;
}

RR_NOINLINE int watched_accept4(int fd, sockaddr* addr, socklen_t* len, int flags) {
  listeners::consider_unknown(fd);
  const SocketRef listener = socket_lifecycle::find(fd);
  const bool ours = listener.is(FdEntry::Kind::kListener);
  const unsigned forks = process_state::forks();
  // The kernel tells of the peer in the same call.
  sockaddr_in6 own;
  socklen_t own_length = sizeof own;
  if (addr == nullptr && ours) {
    addr = reinterpret_cast<sockaddr*>(&own);
    len = &own_length;
  }
  socklen_t room = 0;
  if (ours && addr != nullptr && !faults::load(room, len)) room = 0;
  const int result =
      fd_room::with_room([&] { return cancellation::caught(real().accept4, fd, addr, len, flags); });
  if (result >= 0 && ours) {
    const int saved = errno;
    const bool whole = addr != nullptr && *len <= room;
    consider_accepted(result, listener->endpoint, whole ? addr : nullptr, whole ? *len : 0,
                      (flags & SOCK_NONBLOCK) != 0, forks);
    errno = saved;
  }
  return result;
}

RR_NOINLINE int stream_shutdown(int fd, int how) {
  const SocketRef socket = socket_lifecycle::find(fd);
  Stream* stream = socket.stream();
  return stream == nullptr ? real().shutdown(fd, how) : stream->shutdown(how);
}

// Closes a number that is known here. `in_kernel` does it for the kernel.
template <typename Close>
int close_known(int fd, Close in_kernel) noexcept {
  const seen_options::LingerHold farewell(fd);
  SocketRef closed;
  const fd_table::FdMutation change;
  closed = socket_lifecycle::take_out(fd, change);
  return in_kernel();
}

RR_NOINLINE int stream_close(int fd) noexcept {
  if (int result; deferred_stream::close(fd, result)) {
    if (fd_table::managed(fd)) check_closed(fd);
    return result;
  }
  // Not libc's: from here on nobody can be cancelled with the number open.
  const int result = close_known(fd, [fd] { return static_cast<int>(sys::call(SYS_close, fd)); });
  if (fd_table::managed(fd) && process_state::owns_numbers()) check_closed(fd);
  return result;
}

// The rare ways of rr_close(): of a number that is managed, is the library's own, is in an epoll instance,
// or has become managed while the kernel closed it.
RR_NOINLINE int close_managed(int fd) { return cancellation::point<stream_close>(fd); }
RR_NOINLINE int close_private(int fd) {
  if (reserved_fds::is_marked(fd)) {
    if (reserved_fds::tell_closed(fd)) return 0;
    errno = EBADF;
    return -1;
  }
  // The library has closed it, perhaps after the program has seen it.
  const int saved = errno;
  reserved_fds::forget_gone(fd);
  const int result = rr_close(fd);
  if (result == 0 || errno != EBADF) return result;
  errno = saved;
  return 0;
}
RR_NOINLINE void note_close(int fd) noexcept {
  if (process_state::owns_numbers()) epoll_marks::note_end(fd);
}
RR_NOINLINE int after_close(int fd, int result) noexcept {
  if (process_state::owns_numbers()) check_closed(fd);
  return result;
}

// Whether the program has but one thread, which shares its numbers with the library's only.
bool has_one_thread() noexcept {
  constexpr unsigned kOneAndTheLibrarys = 2;
  if (process_state::existing_agent() == nullptr) return false;
  const unsigned threads = thread_count();
  return threads != 0 && threads <= kOneAndTheLibrarys;
}

// With `one_by_one` also where the kernel has no close_range(2): closefrom(3) cannot fail.
int close_numbers(unsigned first, unsigned last, int flags, bool one_by_one) noexcept {
  const int result = real().close_range(first, last, flags);
  if (result == 0 || !one_by_one || errno != ENOSYS) return result;
  absent::close_each(first, last);
  return 0;
}

// No number beyond it was ever managed, noted, or the library's own; -1 if none was.
int highest_known() noexcept {
  return std::max(fd_table::highest.load(std::memory_order_relaxed),
                  reserved_fds::highest.load(std::memory_order_relaxed));
}

RR_NOINLINE int close_stretches(unsigned first, unsigned last, int flags, bool one_by_one) noexcept {
  // What the library's thread kept open would never be closed.
  if (flags != 0 && has_one_thread()) flags = 0;
  // Daemons and sshd close everything: a look at a million numbers would take milliseconds.
  const int end =
      static_cast<int>(std::min<long>(static_cast<long>(last), highest_known()));
  const bool own = process_state::owns_numbers();
  // What is known here goes number by number. The rest may take its time (SO_LINGER) and holds
  // nobody up meanwhile.
  for (long number = first; number <= end; ++number) {
    const int fd = static_cast<int>(number);
    if (reserved_fds::is_marked(fd)) continue;
    if (fd_table::managed(fd)) {
      const int result = close_known(fd, [&] {
        const auto known = static_cast<unsigned>(fd);
        return close_numbers(known, known, flags, one_by_one);
      });
      if (result != 0) return -1;
    } else if (own) {
      epoll_marks::note_end(fd);
    }
  }
  // In stretches between the library's own descriptors.
  unsigned from = first;
  for (long number = first; number <= end; ++number) {
    const auto own_number = static_cast<unsigned>(number);
    if (!reserved_fds::is_marked(static_cast<int>(number))) continue;
    if (own_number > from && close_numbers(from, own_number - 1, flags, one_by_one) != 0) return -1;
    from = own_number + 1;
  }
  if (from <= last && close_numbers(from, last, flags, one_by_one) != 0) return -1;
  for (long number = first; number <= end; ++number) {
    const int fd = static_cast<int>(number);
    if (fd_table::managed(fd) && own) check_closed(fd);
  }
  return 0;
}

}  // namespace

int rr_socket(int domain, int type, int protocol) {
  const int fd = fd_room::with_room([&] { return real().socket(domain, type, protocol); });
  seen_options::note_socket(fd, domain, type, protocol);
  return fd;
}

int rr_connect(int fd, const sockaddr* addr, socklen_t len) {
  return cancellation::point<watched_connect>(fd, addr, len);
}

int rr_listen(int fd, int backlog) {
  return cancellation::no_point<watched_listen>(fd, backlog);
}

int rr_accept4(int fd, sockaddr* addr, socklen_t* len, int flags) {
  if (!fd_table::managed(fd) && !asks_about_listener(fd)) {
    return fd_room::with_room([&] { return real().accept4(fd, addr, len, flags); });
  }
  return cancellation::point<watched_accept4>(fd, addr, len, flags);
}

int rr_accept(int fd, sockaddr* addr, socklen_t* len) {
  if (!fd_table::managed(fd) && !asks_about_listener(fd)) {
    return fd_room::with_room([&] { return real().accept(fd, addr, len); });
  }
  return cancellation::point<watched_accept4>(fd, addr, len, 0);
}

int rr_shutdown(int fd, int how) {
  if (!fd_table::managed(fd)) return real().shutdown(fd, how);
  return cancellation::no_point<stream_shutdown>(fd, how);
}

int rr_close(int fd) {
  if (!fd_table::in_range(fd)) return real().close(fd);
  if (hardly_ever(reserved_fds::was_marked(fd))) return close_private(fd);
  if (fd_table::managed(fd)) return close_managed(fd);
  if (hardly_ever(epoll_marks::is_in_any(fd))) note_close(fd);
  int closed = fd;
  keep_in_memory(closed);
  const int result = real().close(fd);
  return hardly_ever(fd_table::managed(closed)) ? after_close(closed, result) : result;
}

int rr_close_range(unsigned first, unsigned last, int flags) {
  // CLOSE_RANGE_CLOEXEC closes nothing now.
  if ((static_cast<unsigned>(flags) & ~CLOSE_RANGE_UNSHARE) != 0 || first > last) {
    return real().close_range(first, last, flags);
  }
  return cancellation::no_point<close_stretches>(first, last, flags, false);
}

void rr_closefrom(int first) {
  const unsigned from = first < 0 ? 0 : static_cast<unsigned>(first);
  cancellation::no_point<close_stretches>(from, ~0U, 0, true);
}
