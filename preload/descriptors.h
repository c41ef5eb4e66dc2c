// Which descriptor numbers are connections or listeners that the policy lets off the kernel.
//
// An unmanaged number costs one load. A managed one names a Socket: one open file description of
// the program's, shared by its duplicates. Sockets are recycled but their memory is never returned,
// so that a stale pointer can be looked at safely while its number is being closed.
//
// Thread rule: find() by any thread at any time; changes are serialised inside.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <utility>

#include "policy/settings.h"
#include "rsocket-core/agent.h"
#include "rsocket-core/epoll_set.h"
#include "rsocket-core/fresh_use.h"
#include "rsocket-core/hints.h"

namespace ringroad::preload {

struct Socket {
  enum class Kind : std::uint8_t {
    kFree,
    kConnecting,  // connect() is under way; `config` says what to do once it is established
    kFresh,  // a connection of the kernel's alone, hardly used yet: fresh.h
    kStream,
    kListener,
    kEpoll,       // an epoll instance that holds, or held, streams
    kInherited,   // a forked child's copy of a stream on TCP, not used by it yet
    kLost,  // a forked child has no copy: the library of the parent still needs the connection
  };

  std::atomic<std::uint32_t> refs{0};
  std::atomic<Kind> kind{Kind::kFree};
  std::uint32_t numbers = 0;  // how many descriptors name it; guarded by the table
  StreamPtr stream;           // kStream; set before kind, constant until recycled
  StreamConfig config;        // kConnecting, kInherited
  Endpoint endpoint;          // kListener; kFresh: where it was accepted from
  bool goes_to_child = false;  // at a fork: the child will have it as kInherited
  bool is_lost = false;        // at a fork: as kLost
  bool lent = false;           // kInherited: it was in an epoll instance of the parent's
  bool kept_for_exec = false;  // by keep_over_exec()
  std::atomic<bool> forked{false};  // kConnecting, kFresh: a child, or the parent, has it too
  FourTuple tuple;             // kInherited, as config
  StreamRole role = StreamRole::kConnect;  // kInherited, kFresh
  // kFresh. The rule outlives it, as policies do.
  FreshUse use;
  WaitList waiters;
  bool nonblocking = false;  // one that was accepted so
  std::atomic<const void*> last_sender{nullptr};  // a thread's own address
  const policy::Settings* rule = nullptr;
  unsigned limit = 0;            // it becomes a stream with this use
  std::atomic<bool> old{false};  // it was there when the agent last looked
  std::uint64_t share = 0;                 // kInherited: Family::Share
  std::shared_ptr<EpollSet> epoll;  // kEpoll; set before kind, constant until recycled
  Socket* next_free = nullptr;
};

// Nobody has it any more.
[[gnu::cold]] void recycle(Socket* socket) noexcept;

// Keeps a Socket from being recycled.
class SocketRef {
 public:
  SocketRef() noexcept = default;
  explicit SocketRef(Socket* held) noexcept : socket_(held) {}
  // For who calls drop(). A call takes its reference and then looks whether the number is there
  // still; close() takes the number out and then looks for references. One of the two must see the
  // other, hence seq_cst in all four places.
  static bool try_hold(Socket* socket) noexcept {
    std::uint32_t refs = socket->refs.load(std::memory_order_relaxed);
    while (refs != 0) {
      if (socket->refs.compare_exchange_weak(refs, refs + 1, std::memory_order_seq_cst,
                                             std::memory_order_relaxed)) {
        return true;
      }
    }
    return false;
  }
  static void drop(Socket* socket) noexcept {
    if (hardly_ever(socket->refs.fetch_sub(1, std::memory_order_acq_rel) == 1)) {
      recycle(socket);
    }
  }
  SocketRef(SocketRef&& other) noexcept : socket_(std::exchange(other.socket_, nullptr)) {}
  SocketRef& operator=(SocketRef&& other) noexcept {
    std::swap(socket_, other.socket_);
    return *this;
  }
  ~SocketRef() {
    if (socket_ != nullptr) drop(socket_);
  }
  explicit operator bool() const noexcept { return socket_ != nullptr; }
  Socket* operator->() const noexcept { return socket_; }
  Socket* get() const noexcept { return socket_; }
  // For who calls drop(), or makes another of it.
  Socket* release() noexcept { return std::exchange(socket_, nullptr); }
  // The stream, or null if this is something else.
  Stream* stream() const noexcept {
    return socket_ != nullptr &&
                   socket_->kind.load(std::memory_order_acquire) == Socket::Kind::kStream
               ? socket_->stream.get()
               : nullptr;
  }
  // The epoll instance, or null.
  EpollSet* epoll() const noexcept {
    return is(Socket::Kind::kEpoll) ? socket_->epoll.get() : nullptr;
  }
  bool is(Socket::Kind kind) const noexcept {
    return socket_ != nullptr && socket_->kind.load(std::memory_order_acquire) == kind;
  }

 private:
  Socket* socket_ = nullptr;
};

namespace descriptors {

inline constexpr int kLimit = 1 << 20;
extern std::atomic<Socket*> table[kLimit] RR_HIDDEN;
// Of the numbers that were ever managed; kLimit: none was.
extern std::atomic<int> lowest RR_HIDDEN;

inline bool in_range(int fd) noexcept {
  return static_cast<unsigned>(fd) < static_cast<unsigned>(kLimit);
}

// Which numbers socket(2) has last given a TCP socket: a hint, for who looks again before it matters.
extern std::atomic<bool> made_for_tcp[kLimit];
inline void note_socket(int fd, int domain, int type, int protocol) noexcept {
  if (!in_range(fd)) return;
  const bool tcp = (domain == AF_INET || domain == AF_INET6) &&
                   (type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC)) == SOCK_STREAM &&
                   (protocol == 0 || protocol == IPPROTO_TCP);
  made_for_tcp[fd].store(tcp, std::memory_order_relaxed);
}
inline bool may_be_tcp(int fd) noexcept {
  return in_range(fd) && made_for_tcp[fd].load(std::memory_order_relaxed);
}

// What `fd` names right now; null if it is not managed.
inline Socket* peek(int fd) noexcept {
  return in_range(fd) ? table[fd].load(std::memory_order_acquire) : nullptr;
}
inline bool none_managed() noexcept { return lowest.load(std::memory_order_relaxed) == kLimit; }
inline bool managed(int fd) noexcept { return __builtin_expect(peek(fd) != nullptr, 0); }
// For who has just said that it waits outside of any EpollSet.
inline bool managed_by_now(int fd) noexcept {
  return __builtin_expect(in_range(fd) && table[fd].load(std::memory_order_seq_cst) != nullptr, 0);
}

// What a number names changes in the kernel and here: one such change at a time. Otherwise a number that
// one thread closes while another duplicates it leaves a copy behind whose stream is closed, or unknown
// here. Not in a vfork child, which has numbers of its own. Taken before all other locks.
class Change {
 public:
  Change() noexcept;
  ~Change();
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;
  // Whether there is one. A number that was looked up before, and is unknown, names what it does in the
  // kernel if there is none. The fence: what the kernel has looked up for the caller, it did by plain loads.
  static bool under_way() noexcept {
    std::atomic_thread_fence(std::memory_order_acquire);
    return under_way_.load(std::memory_order_acquire);
  }
  // Whether this is one: not in a vfork child.
  bool taken() const noexcept { return taken_; }
  // How many have begun.
  static unsigned count() noexcept {
    std::atomic_thread_fence(std::memory_order_acquire);
    return count_.load(std::memory_order_acquire);
  }

 private:
  static std::atomic<bool> under_way_ RR_HIDDEN;
  static std::atomic<unsigned> count_ RR_HIDDEN;
  const bool taken_;
};
// Whether closing may take its time (SO_LINGER), as far as it is known here: the program has set
// the option, or inherited a listener that has it. Never false again.
extern std::atomic<bool> some_linger;
void note_if_lingers(int fd) noexcept;
// Whether reading from `fd` may be another thing than reading bytes as they come, by options that
// are set before it is a stream or that an accepted socket has from its listener (SO_RCVLOWAT and
// the like; on a stream they hand it back). Asks the kernel only where the program, as far as it is
// known here, has ever set one.
bool reads_unusually(int fd) noexcept;
void note_if_reads_unusually(int fd) noexcept;
// Whether a receive may be over in time (SO_RCVTIMEO), as some_linger.
extern std::atomic<bool> some_time_out;
void note_if_times_out(int fd) noexcept;
// That option of SOL_SOCKET.
constexpr bool sets_time_out(int name) noexcept {
  return name == SO_RCVTIMEO_OLD || name == SO_RCVTIMEO_NEW;
}
// Keeps the file that `fd` names open for as long as it lives, if closing it may take its time
// (SO_LINGER): made before a Change, it waits behind it. Of a number that is not known here the
// kernel is asked in any case.
class Farewell {
 public:
  explicit Farewell(int fd) noexcept;
  ~Farewell();
  Farewell(const Farewell&) = delete;
  Farewell& operator=(const Farewell&) = delete;

 private:
  int copy_ = -1;
};

SocketRef find_as_it_is(int fd) noexcept;
// And makes it a stream, if it is one that has not been one before (kInherited, kFresh).
SocketRef find_slow(int fd) noexcept;
inline SocketRef find(int fd) noexcept { return managed(fd) ? find_slow(fd) : SocketRef(); }

// Makes `fd` a Socket of `kind`; what stood there is stale (number_is_gone()). The ref is null when out of
// memory.
SocketRef insert(int fd, Socket::Kind kind) noexcept;
// As insert(), of a connection that has not been used yet. `remote`: its peer; `limit`: it becomes a stream
// with this use; `forks`: how many there had been before it was made, so that one of since is known of.
SocketRef insert_fresh(int fd, StreamRole role, const Endpoint& remote, const policy::Settings& rule,
                       unsigned limit, bool nonblocking, unsigned forks) noexcept;
// As insert(), of an epoll instance that has no streams yet.
SocketRef insert(int fd, std::shared_ptr<EpollSet> epoll) noexcept;
// Another number for the same open file.
void add_number(int fd, const SocketRef& socket) noexcept;
// Takes `fd` out, the only number of it.
void forget(int fd, const SocketRef& socket) noexcept;
// The same, of one that is kFresh and stays so, with the caller's reference. Nothing is returned where that was
// the last one.
SocketRef forget_fresh(int fd, SocketRef socket) noexcept;
// Takes `fd` out. `last` says whether no other number names the socket; else `other` is one.
SocketRef take(int fd, bool& last, int& other) noexcept;
void lock_for_fork() noexcept;
void unlock_after_fork() noexcept;
// With the table locked: the child `member` will hold what can be shared, if that is not 0. The rest is
// pinned to TCP.
void share_with_child(Agent& agent, Family::Member member) noexcept;
// In a forked child: shared streams become kInherited; those on a channel are kLost, and so are those
// that the others took for theirs meanwhile; the rest is gone from the table.
void after_fork_child(Family::Joined joined) noexcept;
// Leaves what this process has inherited and not used to the kernel.
void leave_inherited() noexcept;
// The process becomes another program: what stays open is held by somebody who does not know it. Where that
// one could read frames, or an end that is none, the connection is cut.
void keep_over_exec(Agent& agent) noexcept;
// It has not become one.
void go_on_after_exec(Agent& agent) noexcept;

// Which numbers the program has put into the kernel's epoll instances, and in which.
inline constexpr int kNoEpoll = -1;
inline constexpr int kSeveralEpolls = -2;
// The instance's number plus one.
inline constexpr int kSeveralMark = -1;
extern std::atomic<int> epoll_marks[kLimit] RR_HIDDEN;
inline bool in_an_epoll(int fd) noexcept {
  return in_range(fd) && epoll_marks[fd].load(std::memory_order_relaxed) != 0;
}
inline int epoll_of(int fd) noexcept {  // or kNoEpoll, kSeveralEpolls
  if (!in_range(fd)) return kNoEpoll;
  const int mark = epoll_marks[fd].load(std::memory_order_relaxed);
  return mark == kSeveralMark ? kSeveralEpolls : mark - 1;
}
extern std::atomic<int> highest RR_HIDDEN;  // number ever managed or in an epoll instance
[[gnu::cold]] void raise_highest(int fd) noexcept;
inline void note_epoll_add(int fd, int epfd) noexcept {
  if (!in_range(fd)) return;
  const bool first = epoll_marks[fd].load(std::memory_order_relaxed) == 0;
  epoll_marks[fd].store(first ? epfd + 1 : kSeveralMark, std::memory_order_relaxed);
  if (hardly_ever(fd > highest.load(std::memory_order_relaxed))) raise_highest(fd);
}
// Taken out of `epfd`.
inline void note_epoll_delete(int fd, int epfd) noexcept {
  if (!in_range(fd)) return;
  if (epoll_marks[fd].load(std::memory_order_relaxed) == epfd + 1)
    epoll_marks[fd].store(0, std::memory_order_relaxed);
}
// Taken out, or closed.
inline void note_epoll_end(int fd) noexcept {
  if (in_an_epoll(fd)) epoll_marks[fd].store(0, std::memory_order_relaxed);
}

// No number beyond it was ever managed, noted, or the library's own; -1 if none was.
int highest_known() noexcept;
// Whether `count` is beyond the kernel's own table of descriptors (proc(5), FDSize), whose size is then in
// `size`, FD_SETSIZE where it cannot be read. select(2) looks no further, and so programs may ask for as many
// numbers as a limit allows, with room for a few.
bool exceeds_kernels_table(int count, int& size) noexcept;

}  // namespace descriptors
}  // namespace ringroad::preload
