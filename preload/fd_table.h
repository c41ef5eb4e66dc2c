// Which descriptor numbers are connections or listeners that the policy lets off the kernel.
//
// An unmanaged number costs one load. A managed one names a FdEntry: one open file description of
// the program's, shared by its duplicates. Sockets are recycled but their memory is never returned,
// so that a stale pointer can be looked at safely while its number is being closed.
//
// Looking up has no side effects here, and the table knows nothing of what an entry stands for: entries
// come, change and go by socket_lifecycle.h. A wrapper asks that for what it can use
// (socket_lifecycle::find()).
//
// Thread rule: find() by any thread at any time; changes are serialised inside.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "policy/settings.h"
#include "rsocket-core/agent/agent.h"
#include "rsocket-core/base/hints.h"
#include "rsocket-core/stream/deferred_selector.h"
#include "rsocket-core/stream/epoll_set.h"

namespace ringroad::preload {

struct FdEntry {
  enum class Kind : std::uint8_t {
    kFree,
    kConnecting,  // connect() is under way; `config` says what to do once it is established
    kDeferred,  // a connection of the kernel's alone, hardly used yet: deferred_stream.h
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
  Endpoint endpoint;          // kListener; kDeferred: where it was accepted from
  // At a fork: what the child that is about to be made will have of a stream.
  enum class InChild : std::uint8_t { kNothing, kInherited, kLost };
  InChild in_child = InChild::kNothing;
  bool lent = false;           // kInherited: it was in an epoll instance of the parent's
  bool kept_for_exec = false;  // by fork_exec.h
  std::atomic<bool> forked{false};  // kConnecting, kDeferred: a child, or the parent, has it too
  FourTuple tuple;             // kInherited, as config
  Role role = Role::kConnect;  // kInherited, kDeferred
  // kDeferred. The rule outlives it, as policies do.
  DeferredSelector use;
  WaitList waiters;
  bool nonblocking = false;  // one that was accepted so
  std::atomic<const void*> last_sender{nullptr};  // a thread's own address
  const policy::Settings* rule = nullptr;
  unsigned limit = 0;            // it becomes a stream with this use
  std::atomic<bool> old{false};  // it was there when the agent last looked
  std::uint64_t share = 0;                 // kInherited: ProcessGroup::ConnectionId
  std::shared_ptr<EpollSet> epoll;  // kEpoll; set before kind, constant until recycled
  FdEntry* next_free = nullptr;
};

// The last reference is gone.
[[gnu::cold]] void recycle(FdEntry* socket) noexcept;

// Keeps a FdEntry from being recycled.
class SocketRef {
 public:
  SocketRef() noexcept = default;
  explicit SocketRef(FdEntry* held) noexcept : socket_(held) {}
  // For a caller that calls drop() itself. A call takes its reference and then looks whether the number is
  // there still; close() takes the number out and then looks for references. One of the two must see the
  // other, hence seq_cst in all four places.
  static bool try_hold(FdEntry* socket) noexcept {
    std::uint32_t refs = socket->refs.load(std::memory_order_relaxed);
    while (refs != 0) {
      if (socket->refs.compare_exchange_weak(refs, refs + 1, std::memory_order_seq_cst,
                                             std::memory_order_relaxed)) {
        return true;
      }
    }
    return false;
  }
  static void drop(FdEntry* socket) noexcept {
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
  FdEntry* operator->() const noexcept { return socket_; }
  FdEntry* get() const noexcept { return socket_; }
  // For a caller that calls drop() itself, or makes another of it.
  FdEntry* release() noexcept { return std::exchange(socket_, nullptr); }
  // The stream, or null if this is something else.
  Stream* stream() const noexcept {
    return socket_ != nullptr &&
                   socket_->kind.load(std::memory_order_acquire) == FdEntry::Kind::kStream
               ? socket_->stream.get()
               : nullptr;
  }
  // The epoll instance, or null.
  EpollSet* epoll() const noexcept {
    return is(FdEntry::Kind::kEpoll) ? socket_->epoll.get() : nullptr;
  }
  bool is(FdEntry::Kind kind) const noexcept {
    return socket_ != nullptr && socket_->kind.load(std::memory_order_acquire) == kind;
  }

 private:
  FdEntry* socket_ = nullptr;
};

namespace fd_table {

inline constexpr int kLimit = 1 << 20;
extern std::atomic<FdEntry*> table[kLimit] RR_HIDDEN;
// Of the numbers that were ever managed; kLimit: none was.
extern std::atomic<int> lowest RR_HIDDEN;
// Number ever managed or in an epoll instance; -1: none.
extern std::atomic<int> highest RR_HIDDEN;
[[gnu::cold]] void raise_highest(int fd) noexcept;

inline bool in_range(int fd) noexcept {
  return static_cast<unsigned>(fd) < static_cast<unsigned>(kLimit);
}

// ---- looking up

// What `fd` names right now; null if it is not managed.
inline FdEntry* peek(int fd) noexcept {
  return in_range(fd) ? table[fd].load(std::memory_order_acquire) : nullptr;
}
inline bool none_managed() noexcept { return lowest.load(std::memory_order_relaxed) == kLimit; }
inline bool managed(int fd) noexcept { return __builtin_expect(peek(fd) != nullptr, 0); }
// For a caller that has just said that it waits outside of any EpollSet.
inline bool managed_by_now(int fd) noexcept {
  return __builtin_expect(in_range(fd) && table[fd].load(std::memory_order_seq_cst) != nullptr, 0);
}
// What `fd` names, whatever that is, held.
SocketRef find(int fd) noexcept;

// Whether `count` is beyond the kernel's own table of descriptors (proc(5), FDSize), whose size is then in
// `size`, FD_SETSIZE where it cannot be read. select(2) looks no further, and so programs may ask for as many
// numbers as a limit allows, with room for a few.
bool exceeds_kernels_table(int count, int& size) noexcept;

// ---- changing

// What a number names changes in the kernel and here: one such change at a time. Otherwise a number that
// one thread closes while another duplicates it leaves a copy behind whose stream is closed, or unknown
// here. Not in a vfork child, which has numbers of its own.
class RR_SCOPED_CAPABILITY FdMutation {
 public:
  FdMutation() noexcept RR_TAKES_RANK(fd_mutation);
  ~FdMutation() RR_RELEASE();
  FdMutation(const FdMutation&) = delete;
  FdMutation& operator=(const FdMutation&) = delete;
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

// What ends the entry of a number that the kernel has given to something else: the start says so, once,
// before there is any entry (socket_lifecycle::take_out_closed()).
using EndEntry = void(int fd) noexcept;
void set_end_of_stale_entries(EndEntry* end) noexcept;
// If `fd` is managed, ends it as such a one. No lock that the end of an entry may take is held.
void end_stale_entry(int fd) noexcept;

// Makes `fd` an entry of `kind`; what stood there is stale, and ended. The ref is null when out of memory.
SocketRef insert(int fd, FdEntry::Kind kind) noexcept;
// As insert(), of a connection that has not been used yet. `remote`: its peer; `limit`: it becomes a stream
// with this use; `forks`: how many there had been before it was made, so that one of since is known of.
SocketRef insert_deferred(int fd, Role role, const Endpoint& remote,
                          const policy::Settings& rule, unsigned limit, bool nonblocking,
                          unsigned forks) noexcept;
// An epoll instance that has no streams yet. Null also where `fd` is managed: the caller has locks, and
// ends nothing.
SocketRef insert_instance(int fd, std::shared_ptr<EpollSet> epoll) noexcept;
// Another number for the same open file.
void add_number(int fd, const SocketRef& socket) noexcept;
// Takes `fd` out, the only number of it.
void forget(int fd, const SocketRef& socket) noexcept;
// The same, of one that is kDeferred and stays so, with the caller's reference. Nothing is returned where
// that was the last one.
SocketRef forget_deferred(int fd, SocketRef socket) noexcept;
// Takes `fd` out. `last` says whether no other number names the socket; else `other` is one.
SocketRef take(int fd, bool& last, int& other) noexcept;

// ---- all of them

// Nothing else changes the table meanwhile.
class RR_SCOPED_CAPABILITY TableLock {
 public:
  TableLock() noexcept RR_TAKES_RANK(fd_table);
  ~TableLock() RR_RELEASE();
  TableLock(const TableLock&) = delete;
  TableLock& operator=(const TableLock&) = delete;
};
// Calls visit(fd, entry) for each number that is managed.
template <typename Visit>
void for_each(Visit visit) noexcept {
  for (int fd = 0; fd <= highest; ++fd) {
    FdEntry* const socket = table[fd].load(std::memory_order_relaxed);
    if (socket != nullptr) visit(fd, *socket);
  }
}
// The number is the kernel's from now on. The entry itself is not given back: a thread may be looking at
// it, or it is another process'.
inline void drop_number(int fd) noexcept { table[fd].store(nullptr, std::memory_order_relaxed); }

// Both the change of numbers and the table, over a fork.
void lock_for_fork() noexcept;
void unlock_after_fork() noexcept;
void reset_locks_after_fork() noexcept;

}  // namespace fd_table
}  // namespace ringroad::preload
