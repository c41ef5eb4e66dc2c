// Duplicates, options and the other things that programs do to descriptors.
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstddef>

#include "preload/cancellation.h"
#include "preload/deferred_stream.h"
#include "preload/fd_room.h"
#include "preload/fd_table.h"
#include "preload/listeners.h"
#include "preload/process_state.h"
#include "preload/real.h"
#include "preload/seen_options.h"
#include "preload/socket_lifecycle.h"
#include "rsocket-core/base/sys.h"

// For programs whose seconds have 64 bits everywhere; glibc names them only where that matters.
#ifndef SO_TIMESTAMP_NEW
#define SO_TIMESTAMP_NEW 63
#define SO_TIMESTAMPNS_NEW 64
#define SO_TIMESTAMPING_NEW 65
#endif

using namespace ringroad;
using namespace ringroad::preload;

namespace {

using socket_lifecycle::give_away;

// The call that duplicates `from`, and what follows from it here. A vfork child has its own numbers, beside
// memory that is its parent's: what it duplicates it means to leave to the program that it becomes.
template <typename Call>
int duplicate(int from, Call call) {
  if (process_state::existing_agent() == nullptr) return call();
  const bool own = process_state::owns_memory();
  int result;
  {
    const fd_table::FdMutation change;
    result = call();
    if (own && result >= 0 && result != from) {
      const int saved = errno;
      if (const SocketRef socket = socket_lifecycle::find(from)) {
        fd_table::add_number(result, socket);
      } else if (fd_table::managed(result)) {
        socket_lifecycle::take_out_closed(result);
      }
      errno = saved;
    }
  }
  if (result == from || result < 0) return result;
  if (!own) {
    give_away(from, Reason::kExec);
  } else if (result <= STDERR_FILENO) {
    give_away(result, Reason::kDescriptorUse);  // libc writes to these by itself, out of our sight
  }
  return result;
}

// There was no copy; if the library had what it lacks, it is made.
template <auto known, typename... More>
RR_NOINLINE int duplicate_again(int from, More... more) {
  return errno == EMFILE && fd_room::make_room() ? known(from, more...) : -1;
}

// A copy of a number that is not known here, before and after and while nobody changes what a number
// names. Else it is made by `known`, which takes the same arguments as `function`, of Real.
template <auto function, auto known, typename... More>
inline int duplicate_in_kernel(int from, More... more) {
  using fd_table::FdMutation;
  if (!fd_table::in_range(from) || fd_table::managed(from) ||
      hardly_ever(FdMutation::under_way())) {
    return known(from, more...);
  }
  struct {
    int from;
    unsigned changes;
  } before{from, FdMutation::count()};
  keep_in_memory(before);
  const int result = (real().*function)(from, more...);
  if (result < 0) return duplicate_again<known>(before.from, more...);
  if (hardly_ever(!fd_table::in_range(result)) ||
      hardly_ever(fd_table::table[before.from].load(std::memory_order_acquire) != nullptr) ||
      hardly_ever(fd_table::table[result].load(std::memory_order_acquire) != nullptr) ||
      hardly_ever(FdMutation::count() != before.changes)) {
    sys::close_quietly(result);
    return known(before.from, more...);
  }
  return result;
}

bool duplicates(int cmd) noexcept { return cmd == F_DUPFD || cmd == F_DUPFD_CLOEXEC; }

int call_dup_over(int from, int to, int flags, bool three) {
  return three ? real().dup3(from, to, flags) : real().dup2(from, to);
}

RR_NOINLINE int dup_over(int from, int to, int flags, bool three) {
  if (!process_state::owns_memory()) {
    return duplicate(from, [&] { return call_dup_over(from, to, flags, three); });
  }
  if (reserved_fds::is_marked(to)) {
    const bool fails = from == to || (flags & ~O_CLOEXEC) != 0 || sys::fcntl(from, F_GETFD) < 0;
    if (fails || !fd_room::give_way(to)) {
      errno = three && (from == to || (flags & ~O_CLOEXEC) != 0) ? EINVAL : EBADF;
      return -1;
    }
  }
  if (from == to || (flags & ~O_CLOEXEC) != 0) return call_dup_over(from, to, flags, three);
  SocketRef closed;
  const auto call = [&] {
    if (fd_table::managed(to)) {
      if (sys::fcntl(from, F_GETFD) < 0) return -1;  // EBADF: `to` stays open
      closed = socket_lifecycle::take_out(to);               // an implicit close of `to`
    }
    const sys::DescriptorTurn turn;
    return call_dup_over(from, to, flags, three);
  };
  if (process_state::existing_agent() == nullptr) return call();
  const seen_options::LingerHold farewell(to);
  return duplicate(from, call);
}

// Options that put something between the socket and its bytes, or beside them.
[[gnu::always_inline]] inline Reason reason_for_option(int level, int name) noexcept {
  if (level == IPPROTO_TCP) {
    switch (name) {
      case TCP_ULP:
        return Reason::kKtls;
      case TCP_REPAIR:
        return Reason::kDescriptorUse;
      default:
        return Reason::kNone;
    }
  }
  if (level == SOL_SOCKET) {
    switch (name) {
      case SO_ATTACH_FILTER:
      case SO_ATTACH_BPF:
      case SO_ATTACH_REUSEPORT_CBPF:
      case SO_ATTACH_REUSEPORT_EBPF:
        return Reason::kKtls;
      case SO_OOBINLINE:
        return Reason::kOob;
      case SO_TIMESTAMP:
      case SO_TIMESTAMPNS:
      case SO_TIMESTAMPING:
      case SO_TIMESTAMP_NEW:
      case SO_TIMESTAMPNS_NEW:
      case SO_TIMESTAMPING_NEW:
      case SO_RCVLOWAT:
      case SO_PEEK_OFF:
        return Reason::kDescriptorUse;
      default:
        return Reason::kNone;
    }
  }
  return Reason::kNone;
}

// Whether another program is about to get what so far it would not have.
bool is_cloexec(int fd) noexcept {
  const int saved = errno;
  const int flags = sys::fcntl(fd, F_GETFD);
  errno = saved;
  return flags >= 0 && (flags & FD_CLOEXEC) != 0;
}

// `function`: Real::fcntl or its like.
template <auto function>
RR_NOINLINE int fcntl_common(int fd, int cmd, long arg) {
  const auto call = real().*function;
  if (duplicates(cmd)) {
    return fd_room::with_room([&] { return duplicate(fd, [&] { return call(fd, cmd, arg); }); });
  }
  const bool was_cloexec = cmd == F_SETFD && fd_table::managed(fd) && is_cloexec(fd);
  const int result = call(fd, cmd, arg);
  if (result < 0 || !fd_table::managed(fd)) {
    return result;
  }
  if (cmd == F_SETFD && (arg & FD_CLOEXEC) == 0) {
    if (was_cloexec) give_away(fd, Reason::kExec);
  } else if (cmd == F_SETFL) {
    const SocketRef socket = socket_lifecycle::find(fd);
    if (Stream* stream = socket.stream()) {
      stream->set_nonblocking((arg & O_NONBLOCK) != 0);
      if ((arg & O_ASYNC) != 0) give_away(fd, Reason::kDescriptorUse);
    }
  }
  return result;
}

template <auto function>
RR_NOINLINE int fcntl_known(int fd, int cmd, long arg) {
  return cancellation::no_point<fcntl_common<function>>(fd, cmd, arg);
}

template <auto function>
RR_NOINLINE int fcntl_dup(int fd, int cmd, long arg) {
  return duplicate_in_kernel<function, fcntl_known<function>>(fd, cmd, arg);
}

template <auto function>
inline int any_fcntl(int fd, int cmd, long arg) {
  if (fd_table::managed(fd)) return fcntl_known<function>(fd, cmd, arg);
  if (duplicates(cmd)) return fcntl_dup<function>(fd, cmd, arg);
  return (real().*function)(fd, cmd, arg);
}

RR_NOINLINE int plain_dup(int fd) {
  return fd_room::with_room([&] { return duplicate(fd, [&] { return real().dup(fd); }); });
}

RR_NOINLINE int dup_known(int fd) { return cancellation::no_point<plain_dup>(fd); }

RR_NOINLINE int stream_ioctl(int fd, unsigned long request, void* arg) {
  const SocketRef socket = socket_lifecycle::find(fd);
  Stream* stream = socket.stream();
  if (stream == nullptr || stream->on_kernel_for_good()) {
    const int result = real().ioctl(fd, request, arg);
    if (stream != nullptr && result == 0 && request == FIONBIO) {
      stream->set_nonblocking(*static_cast<int*>(arg) != 0);
    }
    return result;
  }
  switch (request) {
    case FIONREAD:  // also SIOCINQ
    case SIOCOUTQ: {
      // The kernel checks the pointer and answers for the descriptor; then the true figure.
      const int result = real().ioctl(fd, request, arg);
      if (result == 0) {
        *static_cast<int*>(arg) =
            request == FIONREAD ? stream->unread_bytes() : stream->unsent_bytes();
      }
      return result;
    }
    case FIONCLEX:
      if (is_cloexec(fd)) give_away(fd, Reason::kExec);
      return real().ioctl(fd, request, arg);
    case FIOASYNC:
    case SIOCATMARK:
      give_away(fd, Reason::kDescriptorUse);
      return real().ioctl(fd, request, arg);
    default: {
      const int result = real().ioctl(fd, request, arg);
      if (result == 0 && request == FIONBIO) {
        stream->set_nonblocking(*static_cast<int*>(arg) != 0);
      }
      return result;
    }
  }
}

RR_NOINLINE int stream_getsockopt(int fd, int level, int name, void* value, socklen_t* len) {
  if (level == IPPROTO_TCP && name == TCP_ZEROCOPY_RECEIVE) {
    give_away(fd, Reason::kDescriptorUse);  // it receives
    return real().getsockopt(fd, level, name, value, len);
  }
  const SocketRef socket = socket_lifecycle::find(fd);
  Stream* stream = socket.stream();
  if (level == IPPROTO_TCP && name == TCP_INFO) {
    const int result = real().getsockopt(fd, level, name, value, len);
    if (result == 0 && stream != nullptr && *len > offsetof(tcp_info, tcpi_state)) {
      auto& state = static_cast<tcp_info*>(value)->tcpi_state;
      state = stream->tcp_state(state);
    }
    return result;
  }
  if (level == IPPROTO_TCP) {
    const auto call = [&] { return real().getsockopt(fd, level, name, value, len); };
    return stream == nullptr ? call() : stream->between_frames(call);
  }
  const int result = real().getsockopt(fd, level, name, value, len);
  if (result != 0 || *len < sizeof(int)) return result;
  int& error = *static_cast<int*>(value);
  if (stream != nullptr) {
    if (error == 0 && !stream->on_kernel_for_good()) error = stream->take_error();
  } else if (error == 0 && socket.is(FdEntry::Kind::kConnecting)) {
    socket_lifecycle::establish(fd, socket);
  }
  return result;
}

using seen_options::sets_time_out_to_send;
constexpr bool is_time_out(int level, int name) noexcept {
  return level == SOL_SOCKET && (seen_options::sets_time_out(name) || sets_time_out_to_send(name));
}
// REQUIRES: the kernel has read it.
bool is_negative(const void* time_out) noexcept { return static_cast<const timeval*>(time_out)->tv_sec < 0; }

RR_NOINLINE int stream_setsockopt(int fd, int level, int name, const void* value,
                                  socklen_t len) {
  const Reason reason = reason_for_option(level, name);
  if (reason != Reason::kNone) give_away(fd, reason);
  const SocketRef socket = socket_lifecycle::find(fd);
  Stream* stream = socket.stream();
  const auto call = [&] { return real().setsockopt(fd, level, name, value, len); };
  if (stream != nullptr && level == IPPROTO_TCP && name == TCP_NODELAY) {
    return stream->between_frames(call);
  }
  const int result = call();
  if (result == 0 && stream != nullptr) {
    if (is_time_out(level, name)) stream->set_time_out(sets_time_out_to_send(name), is_negative(value));
    stream->set_options_changed();
  }
  return result;
}

RR_NOINLINE int set_on_stream(int fd, int level, int name, const void* value, socklen_t len) {
  if (deferred_stream::is(fd) && reason_for_option(level, name) == Reason::kNone) {
    const int result = real().setsockopt(fd, level, name, value, len);
    const bool is_told = result == 0 && is_time_out(level, name) && is_negative(value);
    // Else it is to become a stream, or has become one meanwhile, which is to know.
    if (deferred_stream::is(fd) && !is_told) return result;
  }
  return cancellation::no_point<stream_setsockopt>(fd, level, name, value, len);
}

// A program asks so what it has inherited, before it forks workers that accept there.
constexpr bool looks_at_what_it_was_given(int level, int name) noexcept {
  return level == SOL_SOCKET && (name == SO_TYPE || name == SO_ACCEPTCONN);
}

// An option that is asked for later, of a socket that may be a stream by then.
RR_NOINLINE int note_and_set(int fd, int level, int name, const void* value, socklen_t len) {
  const int result = fd_table::managed(fd) ? set_on_stream(fd, level, name, value, len)
                                              : real().setsockopt(fd, level, name, value, len);
  if (name == SO_LINGER) {
    seen_options::note_if_lingers(fd);
  } else if (seen_options::sets_time_out(name)) {
    seen_options::note_if_times_out(fd);
  } else {
    seen_options::note_if_reads_unusually(fd);
  }
  return result;
}

}  // namespace

int rr_dup(int fd) {
  return duplicate_in_kernel<&Real::dup, dup_known>(fd);
}

int rr_dup2(int from, int to) {
  return cancellation::no_point<dup_over>(from, to, 0, false);
}

int rr_dup3(int from, int to, int flags) {
  return cancellation::no_point<dup_over>(from, to, flags, true);
}

int rr_fcntl(int fd, int cmd, long arg) { return any_fcntl<&Real::fcntl>(fd, cmd, arg); }

int rr_fcntl64(int fd, int cmd, long arg) { return any_fcntl<&Real::fcntl64>(fd, cmd, arg); }

int rr_ioctl(int fd, unsigned long request, void* arg) {
  if (!fd_table::managed(fd)) return real().ioctl(fd, request, arg);
  return cancellation::no_point<stream_ioctl>(fd, request, arg);
}

int rr_getsockopt(int fd, int level, int name, void* value, socklen_t* len) {
  if (hardly_ever(looks_at_what_it_was_given(level, name)) && !fd_table::managed(fd)) {
    const int result = real().getsockopt(fd, level, name, value, len);
    if (result == 0) listeners::consider_unknown(fd);
    return result;
  }
  const bool ours =
      (level == IPPROTO_TCP &&
       (name == TCP_NODELAY || name == TCP_INFO || name == TCP_ZEROCOPY_RECEIVE)) ||
      (level == SOL_SOCKET && name == SO_ERROR);
  const bool kernels = deferred_stream::is(fd) && name != TCP_ZEROCOPY_RECEIVE;
  if (!ours || !fd_table::managed(fd) || kernels) {
    return real().getsockopt(fd, level, name, value, len);
  }
  return cancellation::no_point<stream_getsockopt>(fd, level, name, value, len);
}

int rr_setsockopt(int fd, int level, int name, const void* value, socklen_t len) {
  const bool noted =
      level == SOL_SOCKET && (name == SO_LINGER || seen_options::sets_time_out(name) ||
                              reason_for_option(level, name) != Reason::kNone);
  if (noted) return note_and_set(fd, level, name, value, len);
  if (fd_table::managed(fd)) return set_on_stream(fd, level, name, value, len);
  return real().setsockopt(fd, level, name, value, len);
}

FILE* rr_fdopen(int fd, const char* mode) {
  // stdio reads and writes by calls that nobody can interpose.
  if (fd_table::managed(fd)) give_away(fd, Reason::kDescriptorUse);
  return real().fdopen(fd, mode);
}

int rr_vdprintf(int fd, const char* format, va_list args) {
  if (fd_table::managed(fd)) give_away(fd, Reason::kDescriptorUse);
  return real().vdprintf(fd, format, args);
}

int rr_dprintf(int fd, const char* format, ...) {
  va_list args;
  va_start(args, format);
  const int result = rr_vdprintf(fd, format, args);
  va_end(args);
  return result;
}

// Where the bounds of what is printed are checked (_FORTIFY_SOURCE).
int rr___vdprintf_chk(int fd, int flag, const char* format, va_list args) {
  if (fd_table::managed(fd)) give_away(fd, Reason::kDescriptorUse);
  return real().__vdprintf_chk(fd, flag, format, args);
}

int rr___dprintf_chk(int fd, int flag, const char* format, ...) {
  va_list args;
  va_start(args, format);
  const int result = rr___vdprintf_chk(fd, flag, format, args);
  va_end(args);
  return result;
}

int rr_pidfd_getfd(int pidfd, int fd, unsigned flags) {
  // Nobody here says whose descriptors they are. If ours, a copy comes to be that the library is
  // not told of.
  if (fd_table::managed(fd)) give_away(fd, Reason::kFdPassed);
  return real().pidfd_getfd(pidfd, fd, flags);
}
