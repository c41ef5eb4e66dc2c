// connect, listen, accept, shutdown, close and their kin.
#include <linux/close_range.h>
#include <netinet/in.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>

#include "preload/absent.h"
#include "preload/arguments.h"
#include "preload/cancellation.h"
#include "preload/close.h"
#include "preload/epolls.h"
#include "preload/fresh.h"
#include "preload/listeners.h"
#include "preload/real.h"
#include "preload/runtime.h"
#include "rsocket-core/sys.h"
#include "rsocket-core/tcp_counters.h"
#include "rsocket-core/threads.h"

namespace ringroad::preload {
namespace {

using Kind = Socket::Kind;

constexpr std::int64_t kPinTimeoutNs = 2'000'000'000;

// A connect() has been accepted by the kernel. Is the connection one for us?
void consider_connect(int fd, const sockaddr* addr, socklen_t len, bool done,
                      unsigned forks) noexcept {
  Endpoint remote;
  if (!Endpoint::from_sockaddr(addr, len, remote) || runtime::agent() == nullptr) return;
  const policy::Settings* rule = runtime::rule_of(StreamRole::kConnect, Endpoint(), remote);
  if (rule == nullptr || !(descriptors::may_be_tcp(fd) || runtime::is_tcp(fd))) return;
  if (done && fresh::begin(fd, StreamRole::kConnect, Endpoint(), *rule, false, forks)) return;
  if (!runtime::is_tcp(fd)) return;
  SocketRef socket = descriptors::insert(fd, Kind::kConnecting);
  if (!socket) return;
  runtime::configure(*rule, socket->config);
  if (runtime::forks() != forks) socket->forked.store(true, std::memory_order_relaxed);
  if (done) runtime::established(fd, socket);
}

// True if the library answers promotion requests for it from now on. `waits`: the first of them is answered when
// this returns.
bool consider_listen(int fd, bool waits) noexcept {
  if (descriptors::managed(fd)) return false;  // listen() again changes only the backlog
  Endpoint local;
  if (!Endpoint::local_of(fd, local) || local.port == 0 || !runtime::is_tcp(fd)) return false;
  Agent* agent = runtime::agent();
  bool via_shm = false;
  bool via_rdma = false;
  if (agent == nullptr || !runtime::may_accept(local, via_shm, via_rdma)) return false;
  SocketRef socket = descriptors::insert(fd, Kind::kListener);
  if (!socket) return false;
  socket->endpoint = local;
  descriptors::note_if_lingers(fd);  // what it accepts is as it is
  descriptors::note_if_reads_unusually(fd);
  descriptors::note_if_times_out(fd);
  agent->listen(local, via_shm, via_rdma, waits);
  return true;
}

// `remote`: as accept() has told it, or null. `forks`: from before accept().
void consider_accepted(int fd, const Endpoint& listener, const sockaddr* remote, socklen_t length,
                       bool nonblocking, unsigned forks) noexcept {
  descriptors::note_epoll_end(fd);
  FourTuple tuple;
  if (!Endpoint::from_sockaddr(remote, length, tuple.remote) &&
      !Endpoint::peer_of(fd, tuple.remote)) {
    return;
  }
  const policy::Settings* rule = runtime::rule_of(StreamRole::kAccept, listener, tuple.remote);
  if (rule == nullptr) return;
  if (fresh::begin(fd, StreamRole::kAccept, tuple.remote, *rule, nonblocking, forks)) return;
  if (!Endpoint::local_of(fd, tuple.local)) return;
  StreamConfig config;
  runtime::configure(*rule, config);
  const SocketRef socket =
      runtime::adopt(fd, StreamRole::kAccept, tuple, config, nonblocking, true);
  if (socket.stream() == nullptr) return;
  // A child that was forked between the kernel's accept() and here has it, and is not known to.
  if (runtime::forks() != forks) socket.stream()->pin(Reason::kFork, 0);
  // accept(2) gives out connections that are over, too.
  if (config.wait_ns > 0 && tcp_established(fd)) {
    socket.stream()->wait_promoted(config.wait_ns);
  }
}

// `gone`: the kernel has closed it. `own`: not in a vfork child, where the table is its parent's.
SocketRef take_out(int fd, bool gone, bool own) noexcept {
  if (!own) return {};
  descriptors::note_epoll_end(fd);
  if (!gone && fresh::is(fd)) fresh::before_number_goes(fd);
  bool last = false;
  int other = -1;
  SocketRef socket = descriptors::take(fd, last, other);
  if (!socket) return socket;
  if (socket.is(Kind::kFresh)) fresh::closed(*socket.get());
  if (Stream* stream = socket.stream()) {
    if (!last) {
      if (stream->fd() == fd && other >= 0) stream->renumber(other);
      epolls::number_goes(*stream, fd, gone);
    } else {
      epolls::forget(*stream);
      if (gone) stream->descriptor_is_gone();
      const bool busy = socket->refs.load(std::memory_order_seq_cst) > 1;  // see try_ref()
      const bool over = stream->close_by_program(busy);
      if (Agent* agent = runtime::existing_agent()) agent->stream_closed(*stream, over);
    }
  } else if (EpollSet* epoll = socket.epoll()) {
    if (other >= 0) epoll->renumber(other);
    const std::uint64_t share = last ? epoll->take_share() : 0;
    if (Agent* agent = runtime::existing_agent(); share != 0) agent->release_share(share);
  } else if (last && socket.is(Kind::kListener)) {
    // It is answered for while the agent knows of connections that it has accepted.
    fresh::tell(AgentOptions::Untold::kAll, {});
    if (Agent* agent = runtime::existing_agent()) agent->unlisten(socket->endpoint);
  } else if (last && socket.is(Kind::kInherited)) {
    if (Agent* agent = runtime::existing_agent()) agent->release_share(socket->share);
  }
  return socket;
}

// Another thread may have put a stream there just before the kernel closed the number.
void check_closed(int fd) noexcept {
  const int saved = errno;
  const descriptors::Change change;
  const SocketRef socket = descriptors::find_as_it_is(fd);
  bool there = sys::fcntl(fd, F_GETFD) >= 0;
  if (const Stream* stream = socket.stream(); stream != nullptr && there) {
    Endpoint remote;  // one that was reset has none any more
    there = Endpoint::peer_of(fd, remote) ? remote == stream->tuple().remote : errno == ENOTCONN;
  }
  if (!there) number_is_gone(fd);
  errno = saved;
}

}  // namespace

void consider_unknown_listener(int fd) noexcept {
  if (descriptors::managed(fd)) return;
  const int saved = errno;
  int listens = 0;
  socklen_t length = sizeof listens;
  if (sys::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) == 0 && listens != 0 &&
      runtime::is_tcp(fd) && runtime::agent() != nullptr && runtime::owns_numbers()) {
    const descriptors::Change one_at_a_time;  // several threads may accept there
    consider_listen(fd, false);
  }
  errno = saved;
}

SocketRef before_number_goes(int fd) noexcept {
  return take_out(fd, false, runtime::owns_numbers());
}
SocketRef before_number_goes(int fd, const descriptors::Change& change) noexcept {
  return take_out(fd, false, change.taken());
}
void number_is_gone(int fd) noexcept { take_out(fd, true, runtime::owns_numbers()); }

}  // namespace ringroad::preload

using namespace ringroad;
using namespace ringroad::preload;

namespace {

// connect() to AF_UNSPEC ends a connection; the socket may then begin another one.
int disconnect(int fd, Stream& stream, const sockaddr* addr, socklen_t len) {
  stream.pin(Reason::kDescriptorUse, kPinTimeoutNs);
  const int result = cancellation::caught(real().connect, fd, addr, len);
  if (result == 0) {
    const int saved = errno;
    before_number_goes(fd);
    errno = saved;
  }
  return result;
}

RR_NOINLINE int watched_connect(int fd, const sockaddr* addr, socklen_t len) {
  SocketRef socket = descriptors::find(fd);
  const bool readable = !arguments::is_nowhere(addr) && len >= sizeof addr->sa_family &&
                        len <= sizeof(sockaddr_storage);
  if (socket.stream() != nullptr && readable && addr->sa_family == AF_UNSPEC) {
    return disconnect(fd, *socket.stream(), addr, len);
  }
  const unsigned forks = runtime::forks();
  const int result = cancellation::caught(real().connect, fd, addr, len);
  const int saved = errno;
  if (socket.is(Socket::Kind::kConnecting) && result != 0 && errno == EINPROGRESS) {
    // The attempt before this one has failed; this one may go elsewhere.
    before_number_goes(fd);
    socket = SocketRef();
  }
  if (socket.is(Socket::Kind::kConnecting)) {
    if (result == 0 || saved == EISCONN) runtime::established(fd, socket);
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
  const bool considered = consider_listen(fd, true);
  errno = saved;
  const int result = real().listen(fd, backlog);
  saved = errno;
  if (result == 0 && !considered) {
    consider_listen(fd, true);
  } else if (result != 0 && considered) {
    before_number_goes(fd);
  }
  errno = saved;
  return result;
}

// Accepts on each number, while it is unknown: the kernel is asked about it once in 256 of them. A number may come
// to be another listener unseen, and the policy may come to have a rule for it.
std::atomic<std::uint8_t> unknown_accepts[descriptors::kLimit];

bool asks_about_listener(int fd) noexcept {
  if (!descriptors::in_range(fd)) return false;
  if (runtime::policy_was_edited()) return true;
  const std::uint8_t count = unknown_accepts[fd].load(std::memory_order_relaxed);
  unknown_accepts[fd].store(static_cast<std::uint8_t>(count + 1), std::memory_order_relaxed);
  return count == 0;
}

RR_NOINLINE int watched_accept4(int fd, sockaddr* addr, socklen_t* len, int flags) {
  consider_unknown_listener(fd);
  const SocketRef listener = descriptors::find(fd);
  const bool ours = listener.is(Socket::Kind::kListener);
  const unsigned forks = runtime::forks();
  // The kernel tells of the peer in the same call.
  sockaddr_in6 own;
  socklen_t own_length = sizeof own;
  if (addr == nullptr && ours) {
    addr = reinterpret_cast<sockaddr*>(&own);
    len = &own_length;
  }
  const socklen_t room = ours && addr != nullptr && !arguments::is_nowhere(len) ? *len : 0;
  const int result =
      runtime::with_room([&] { return cancellation::caught(real().accept4, fd, addr, len, flags); });
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
  const SocketRef socket = descriptors::find(fd);
  Stream* stream = socket.stream();
  return stream == nullptr ? real().shutdown(fd, how) : stream->shutdown(how);
}

// Closes a number that is known here. `in_kernel` does it for the kernel.
template <typename Close>
int close_known(int fd, Close in_kernel) noexcept {
  const descriptors::Farewell farewell(fd);
  SocketRef closed;
  const descriptors::Change change;
  closed = before_number_goes(fd, change);
  return in_kernel();
}

RR_NOINLINE int stream_close(int fd) noexcept {
  if (int result; fresh::close(fd, result)) {
    if (descriptors::managed(fd)) check_closed(fd);
    return result;
  }
  // Not libc's: from here on nobody can be cancelled with the number open.
  const int result = close_known(fd, [fd] { return static_cast<int>(sys::call(SYS_close, fd)); });
  if (descriptors::managed(fd) && runtime::owns_numbers()) check_closed(fd);
  return result;
}

// The rare ways of rr_close(): of a number that is managed, is the library's own, is in an epoll instance,
// or has become managed while the kernel closed it.
RR_NOINLINE int close_managed(int fd) { return cancellation::point<stream_close>(fd); }
RR_NOINLINE int close_private(int fd) {
  if (private_descriptors::is_marked(fd)) {
    if (private_descriptors::tell_closed(fd)) return 0;
    errno = EBADF;
    return -1;
  }
  // The library has closed it, perhaps after the program has seen it.
  const int saved = errno;
  private_descriptors::forget_gone(fd);
  const int result = rr_close(fd);
  if (result == 0 || errno != EBADF) return result;
  errno = saved;
  return 0;
}
RR_NOINLINE void note_close(int fd) noexcept {
  if (runtime::owns_numbers()) descriptors::note_epoll_end(fd);
}
RR_NOINLINE int after_close(int fd, int result) noexcept {
  if (runtime::owns_numbers()) check_closed(fd);
  return result;
}

// Whether the program has but one thread, which shares its numbers with the library's only.
bool has_one_thread() noexcept {
  constexpr unsigned kOneAndTheLibrarys = 2;
  if (runtime::existing_agent() == nullptr) return false;
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

RR_NOINLINE int close_stretches(unsigned first, unsigned last, int flags, bool one_by_one) noexcept {
  // What the library's thread kept open would never be closed.
  if (flags != 0 && has_one_thread()) flags = 0;
  // Daemons and sshd close everything: a look at a million numbers would take milliseconds.
  const int end =
      static_cast<int>(std::min<long>(static_cast<long>(last), descriptors::highest_known()));
  const bool own = runtime::owns_numbers();
  // What is known here goes number by number. The rest may take its time (SO_LINGER) and holds
  // nobody up meanwhile.
  for (long number = first; number <= end; ++number) {
    const int fd = static_cast<int>(number);
    if (private_descriptors::is_marked(fd)) continue;
    if (descriptors::managed(fd)) {
      const int result = close_known(fd, [&] {
        const auto known = static_cast<unsigned>(fd);
        return close_numbers(known, known, flags, one_by_one);
      });
      if (result != 0) return -1;
    } else if (own) {
      descriptors::note_epoll_end(fd);
    }
  }
  // In stretches between the library's own descriptors.
  unsigned from = first;
  for (long number = first; number <= end; ++number) {
    const auto own_number = static_cast<unsigned>(number);
    if (!private_descriptors::is_marked(static_cast<int>(number))) continue;
    if (own_number > from && close_numbers(from, own_number - 1, flags, one_by_one) != 0) return -1;
    from = own_number + 1;
  }
  if (from <= last && close_numbers(from, last, flags, one_by_one) != 0) return -1;
  for (long number = first; number <= end; ++number) {
    const int fd = static_cast<int>(number);
    if (descriptors::managed(fd) && own) check_closed(fd);
  }
  return 0;
}

}  // namespace

int rr_socket(int domain, int type, int protocol) {
  const int fd = runtime::with_room([&] { return real().socket(domain, type, protocol); });
  descriptors::note_socket(fd, domain, type, protocol);
  return fd;
}

int rr_connect(int fd, const sockaddr* addr, socklen_t len) {
  return cancellation::point<watched_connect>(fd, addr, len);
}

int rr_listen(int fd, int backlog) {
  return cancellation::no_point<watched_listen>(fd, backlog);
}

int rr_accept4(int fd, sockaddr* addr, socklen_t* len, int flags) {
  if (!descriptors::managed(fd) && !asks_about_listener(fd)) {
    return runtime::with_room([&] { return real().accept4(fd, addr, len, flags); });
  }
  return cancellation::point<watched_accept4>(fd, addr, len, flags);
}

int rr_accept(int fd, sockaddr* addr, socklen_t* len) {
  if (!descriptors::managed(fd) && !asks_about_listener(fd)) {
    return runtime::with_room([&] { return real().accept(fd, addr, len); });
  }
  return cancellation::point<watched_accept4>(fd, addr, len, 0);
}

int rr_shutdown(int fd, int how) {
  if (!descriptors::managed(fd)) return real().shutdown(fd, how);
  return cancellation::no_point<stream_shutdown>(fd, how);
}

int rr_close(int fd) {
  if (!descriptors::in_range(fd)) return real().close(fd);
  if (hardly_ever(private_descriptors::was_marked(fd))) return close_private(fd);
  if (descriptors::managed(fd)) return close_managed(fd);
  if (hardly_ever(descriptors::in_an_epoll(fd))) note_close(fd);
  int closed = fd;
  keep_in_memory(closed);
  const int result = real().close(fd);
  return hardly_ever(descriptors::managed(closed)) ? after_close(closed, result) : result;
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
