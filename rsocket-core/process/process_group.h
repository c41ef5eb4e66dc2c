// What a process and those that it forks know of each other: a table in memory that they share by
// inheritance. It says which process holds which connection, and where that process can be asked for a
// channel, so that the one of them that answers for a listener can send a connector on.
//
// It is made when a process that has a listener or a stream forks for the first time. A process that never
// forks has none.
//
//   memfd   0          256 KiB    512 KiB
//           | members  | tags     | connections |      mapped by every member; sparse
//   locks   one byte a member, held by that process; one byte a listener's address, held by the member
//           that answers for it
//
// A member that dies leaves nothing behind. A member is alive while the kernel says that its byte is
// locked (fcntl(2), F_SETLK: a lock goes with its process, also when that becomes another program,
// because the memfd is close-on-exec; a zombie has none, and nobody else can come to have it). What the
// dead held is found by asking that of each holder, at the time when it matters. The table itself is
// changed by compare-and-swap only; an entry whose writer died is known by that writer's name in it.
//
//   Member   | generation, 20 bits | index, 12 |     0: none
//   ConnectionId    | sequence, 24 bits | index + 1, 32 |   0: none. One connection, as long as it is entered
//
// Thread rule: any thread, except create(), reserve() and join(), which belong to fork. Nothing sleeps.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "rsocket-core/channel/channel.h"
#include "rsocket-core/net/endpoint.h"
#include "rsocket-core/protocol/wire.h"

namespace ringroad {

class ProcessGroup {
 public:
  using Member = std::uint32_t;
  using ConnectionId = std::uint64_t;

  static constexpr unsigned kMaxMembers = 4096;
  static constexpr unsigned kMaxConnections = 32768;
  static constexpr unsigned kWindow = 32;  // places where a connection may stand
  static constexpr unsigned kMaxHolders = 6;
  // A child that fork(2) has promised and that has not come by then: fork failed.
  static constexpr std::int64_t kBirthNs = 60'000'000'000;

  ProcessGroup() noexcept = default;
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  bool exists() const noexcept { return members_ != nullptr; }
  // Whether this process is one of it.
  bool joined() const noexcept { return self_.load(std::memory_order_relaxed) != 0; }
  Member self() const noexcept { return self_.load(std::memory_order_relaxed); }

  // ---- fork
  // Makes the table, with this process as its first member. False: no memory, descriptor or lock.
  bool create() noexcept;
  // A member for the child that is about to be forked; 0 when there are too many.
  Member reserve() noexcept;
  enum class Joined : std::uint8_t {
    kYes,
    kNo,       // it counts as alive for ever: the others leave alone what it may hold
    kTooLate,  // the others have stopped waiting for it
  };
  // In that child.
  Joined join(Member self) noexcept;
  // The process ends and uses no connection any more.
  void resign() noexcept;

  // ---- Connections, as this end sees them
  // This process alone holds it. 0: no room, it will not be found.
  ConnectionId enter(const FourTuple& tuple) noexcept;
  // `member` holds it too. False: there is no place for one more, and it counts as held for ever.
  bool add(ConnectionId share, Member member) noexcept;
  // This process holds it no longer.
  void release(ConnectionId share) noexcept;
  // A process that cannot be known holds it: for ever. True: nobody had said so before.
  bool keep(ConnectionId share) noexcept;
  // It has turned out that there is nobody. REQUIRES: keep() was true.
  void keep_no_longer(ConnectionId share) noexcept;
  // No other process holds it.
  bool alone(ConnectionId share) noexcept;

  enum class Found : std::uint8_t {
    kNobody,
    kSelf,
    kOther,    // another process alone
    kSeveral,
  };
  // `where` may be asked for a channel once it says something about the wanted carrier.
  Found find(const FourTuple& tuple, Rendezvous& where) noexcept;

  // ---- Being found
  void publish(const Rendezvous& where) noexcept;
  // At most one member answers for a listener's address over a carrier: true if it is this process now,
  // else `holder` is that one's number, or 0 where it has none here.
  bool try_become_responder(const Endpoint& listener, Carrier carrier, pid_t& holder) noexcept;
  void stop_leading(const Endpoint& listener, Carrier carrier) noexcept;
  // The same for the member that watches the policy's files, and tells the others.
  bool lead_watching(pid_t& holder) noexcept {
    return try_become_responder(Endpoint{}, Carrier::kTcp, holder);
  }
  void tell() noexcept;
  // An eventfd that is signalled by tell(), and when a member has stopped leading. To be waited for
  // by edges, not read.
  int news_fd() const noexcept { return news_fd_; }

 private:
  struct MemberSlot;
  struct Connection;
  using Words = std::array<std::uint64_t, 6>;

  bool lock(std::int64_t at, bool on) noexcept;
  bool locked(std::int64_t at, pid_t* holder = nullptr) noexcept;
  bool alive(Member member) noexcept;
  bool drop_if_dead(Connection& connection, unsigned holder, Member seen) noexcept;
  Connection* live(ConnectionId share, std::uint64_t& word) noexcept;
  bool claim(std::uint32_t index, std::uint64_t seen) noexcept;
  ConnectionId fill(std::uint32_t index, const Words& tuple, std::uint64_t tag) noexcept;
  bool free_if_unheld(std::uint32_t index, std::uint64_t word) noexcept;
  bool reclaim(std::uint32_t index) noexcept;
  bool same(const Connection& connection, const Words& tuple) const noexcept;

  MemberSlot* members_ = nullptr;
  std::atomic<std::uint64_t>* tags_ = nullptr;
  Connection* connections_ = nullptr;
  int fd_ = -1;
  int news_fd_ = -1;
  std::atomic<Member> self_{0};
  std::uint32_t hint_ = 0;
};

}  // namespace ringroad
