#include "rsocket-core/process/process_group.h"

#include <cerrno>
#include <cstring>
#include <new>

#include "rsocket-core/base/above_limit.h"
#include "rsocket-core/base/reserved_fds.h"
#include "rsocket-core/base/sys.h"

namespace ringroad {
namespace {

constexpr std::uint32_t kIndexBits = 12;
constexpr std::uint32_t kIndexMask = (1U << kIndexBits) - 1;
constexpr std::uint32_t kGenerationMask = (1U << 20) - 1;

// A member's word: generation << 2 | state.
enum MemberState : std::uint32_t { kFree = 0, kExpected = 1, kLiving = 2, kUncertain = 3 };

// A connection's word: sequence << 40 | writer << 8 | kept, state. The writer is named while it writes.
constexpr std::uint64_t kEmpty = 0;
constexpr std::uint64_t kWriting = 1;
constexpr std::uint64_t kEntered = 2;
constexpr std::uint64_t kStates = 3;
constexpr std::uint64_t kKept = 4;
constexpr std::uint64_t kSequenceMask = (1U << 24) - 1;

constexpr std::uint64_t sequence_of(std::uint64_t word) { return word >> 40; }
constexpr std::uint32_t writer_of(std::uint64_t word) {
  return static_cast<std::uint32_t>(word >> 8);
}
constexpr std::uint64_t make_word(std::uint64_t sequence, std::uint32_t writer,
                                  std::uint64_t state) {
  return (sequence & kSequenceMask) << 40 | std::uint64_t{writer} << 8 | state;
}

// The locks of listeners' addresses stand behind those of the members.
constexpr std::int64_t kListenerLocks = std::int64_t{1} << 32;

std::uint64_t mix(std::uint64_t h) noexcept {
  h ^= h >> 33;
  h *= 0xff51afd7ed558ccdULL;
  h ^= h >> 33;
  h *= 0xc4ceb9fe1a85ec53ULL;
  return h ^ (h >> 33);
}

std::array<std::uint64_t, 6> words_of(const FourTuple& tuple) noexcept {
  std::array<std::uint64_t, 6> out;
  std::memcpy(&out[0], tuple.local.addr.bytes.data(), 16);
  std::memcpy(&out[2], tuple.remote.addr.bytes.data(), 16);
  out[4] = std::uint64_t{tuple.local.scope} << 32 | tuple.remote.scope;
  out[5] = std::uint64_t{tuple.local.port} << 32 | tuple.remote.port;
  return out;
}

// Never 0, which is no tag.
std::uint64_t tag_of(const std::array<std::uint64_t, 6>& words) noexcept {
  std::uint64_t h = 0;
  for (const std::uint64_t word : words) h = mix(h ^ word) + 0x9e3779b97f4a7c15ULL;
  return h | 1;
}

std::int64_t lock_of(const Endpoint& listener, Carrier carrier) noexcept {
  const auto of_carrier = static_cast<std::int64_t>(carrier) << 40;
  return kListenerLocks + of_carrier +
         static_cast<std::int64_t>(tag_of(words_of({listener, {}})) >> 24);
}

std::uint32_t place(std::uint64_t tag, unsigned i) noexcept {
  // In lines of eight tags.
  const auto first = static_cast<std::uint32_t>(tag >> 20) & ~7U;
  return (first + i) & (ProcessGroup::kMaxConnections - 1);
}

}  // namespace

struct ProcessGroup::MemberSlot {
  std::atomic<std::uint32_t> word{0};
  std::atomic<std::uint32_t> carriers{0};  // 1 shm, 2 rdma: what is published below
  std::atomic<std::int64_t> expected_ns{0};
  std::atomic<std::uint64_t> token[2]{};
  std::atomic<std::uint32_t> rdma_port{0};
  std::uint32_t unused[7] = {};
};

struct ProcessGroup::Connection {
  std::atomic<std::uint64_t> word{0};
  std::atomic<std::uint64_t> tuple[6]{};
  std::atomic<Member> holders[kMaxHolders]{};
};

// ---- fork

bool ProcessGroup::create() noexcept {
  static_assert(sizeof(MemberSlot) == 64 && std::atomic<std::uint64_t>::is_always_lock_free);
  if (exists()) return true;
  constexpr std::size_t kMembersBytes = sizeof(MemberSlot) * kMaxMembers;
  constexpr std::size_t kTagsBytes = sizeof(std::uint64_t) * kMaxConnections;
  constexpr std::size_t kBytes = kMembersBytes + kTagsBytes + sizeof(Connection) * kMaxConnections;
  const int fd = above_limit(sys::open_high([] {
    return sys::call(SYS_memfd_create, "ringroad-family", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  }));
  if (fd < 0) return false;
  // A member may run as another user, and be taken over: it must not cut the others' memory off.
  const long at = !sys::make_long(fd, kBytes) ||
                          sys::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0
                      ? -1
                      : sys::call(SYS_mmap, nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                                  fd, 0);
  if (at == -1) {
    sys::close_quietly(fd);
    return false;
  }
  auto* base = reinterpret_cast<std::uint8_t*>(at);
  // Zero is what their constructors leave.
  members_ = reinterpret_cast<MemberSlot*>(base);
  tags_ = reinterpret_cast<std::atomic<std::uint64_t>*>(base + kMembersBytes);
  connections_ = reinterpret_cast<Connection*>(base + kMembersBytes + kTagsBytes);
  news_fd_ =
      above_limit(sys::open_high([] { return sys::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); }));
  if (news_fd_ >= 0) reserved_fds::keep_in_children(news_fd_);
  fd_ = fd;
  reserved_fds::keep_in_children(fd);
  join(reserve());
  return joined();
}

ProcessGroup::Member ProcessGroup::reserve() noexcept {
  if (!exists()) return 0;
  for (const bool desperate : {false, true}) {
    for (unsigned i = 0; i < kMaxMembers; ++i) {
      const std::uint32_t index = (hint_ + i) & kIndexMask;
      MemberSlot& slot = members_[index];
      std::uint32_t word = slot.word.load(std::memory_order_acquire);
      const Member member = (word >> 2) << kIndexBits | index;
      if ((word & 3) != kFree) {
        if (!desperate || alive(member)) continue;
        word = slot.word.load(std::memory_order_acquire);  // which says so now
        if ((word & 3) != kFree) continue;
      }
      // Two steps, so that nobody takes the date of the one before for the child's.
      std::uint32_t generation = ((word >> 2) + 1) & kGenerationMask;
      if (generation == 0) generation = 1;
      if (!slot.word.compare_exchange_strong(word, generation << 2 | kUncertain)) continue;
      slot.carriers.store(0, std::memory_order_relaxed);
      slot.expected_ns.store(sys::now_ns(), std::memory_order_relaxed);
      slot.word.store(generation << 2 | kExpected, std::memory_order_release);
      hint_ = index + 1;
      return generation << kIndexBits | index;
    }
  }
  return 0;
}

ProcessGroup::Joined ProcessGroup::join(Member self) noexcept {
  self_.store(0, std::memory_order_relaxed);
  if (!exists() || self == 0) return Joined::kNo;
  const std::uint32_t index = self & kIndexMask;
  const std::uint32_t generation = self >> kIndexBits;
  std::uint32_t word = generation << 2 | kExpected;
  if (!lock(index, true)) {
    members_[index].word.compare_exchange_strong(word, generation << 2 | kUncertain);
    return Joined::kNo;
  }
  if (!members_[index].word.compare_exchange_strong(word, generation << 2 | kLiving)) {
    lock(index, false);
    return Joined::kTooLate;
  }
  self_.store(self, std::memory_order_relaxed);
  return Joined::kYes;
}

void ProcessGroup::resign() noexcept {
  const Member self = self_.exchange(0, std::memory_order_relaxed);
  if (self == 0) return;
  const std::uint32_t generation = self >> kIndexBits;
  std::uint32_t word = generation << 2 | kLiving;
  // The next one's generation is another, so what stands in this one's name counts for nothing.
  members_[self & kIndexMask].word.compare_exchange_strong(word, generation << 2 | kFree);
}

bool ProcessGroup::lock(std::int64_t at, bool on) noexcept {
  struct flock what {};
  what.l_type = static_cast<short>(on ? F_WRLCK : F_UNLCK);
  what.l_whence = SEEK_SET;
  what.l_start = at;
  what.l_len = 1;
  const int saved = errno;
  const bool done = sys::fcntl(fd_, F_SETLK, reinterpret_cast<long>(&what)) == 0;
  errno = saved;
  return done;
}

bool ProcessGroup::locked(std::int64_t at, pid_t* holder) noexcept {
  struct flock what {};
  what.l_type = F_WRLCK;
  what.l_whence = SEEK_SET;
  what.l_start = at;
  what.l_len = 1;
  const int saved = errno;
  // Where the kernel does not say, nobody is dead.
  const bool yes = sys::fcntl(fd_, F_GETLK, reinterpret_cast<long>(&what)) != 0 ||
                   what.l_type != F_UNLCK;
  if (holder != nullptr) *holder = yes && what.l_pid > 0 ? what.l_pid : 0;
  errno = saved;
  return yes;
}

bool ProcessGroup::alive(Member member) noexcept {
  if (member == self()) return true;  // a process' own locks are not in its way
  const std::uint32_t index = member & kIndexMask;
  MemberSlot& slot = members_[index];
  std::uint32_t word = slot.word.load(std::memory_order_acquire);
  if (word >> 2 != member >> kIndexBits) return false;
  switch (word & 3) {
    case kUncertain:
      return true;
    case kExpected: {
      if (locked(index)) return true;
      if (sys::now_ns() - slot.expected_ns.load(std::memory_order_relaxed) < kBirthNs) return true;
      break;
    }
    case kLiving:
      if (locked(index)) return true;
      break;
    default:
      return false;
  }
  // The member that finds it first says so, and a child that comes after all learns it.
  const std::uint32_t free_word = (word & ~3U) | kFree;
  return !slot.word.compare_exchange_strong(word, free_word) && word != free_word &&
         word >> 2 == member >> kIndexBits;
}

// ---- Connections

bool ProcessGroup::same(const Connection& connection, const Words& tuple) const noexcept {
  for (std::size_t i = 0; i < tuple.size(); ++i) {
    if (connection.tuple[i].load(std::memory_order_relaxed) != tuple[i]) return false;
  }
  return true;
}

bool ProcessGroup::claim(std::uint32_t index, std::uint64_t seen) noexcept {
  return connections_[index].word.compare_exchange_strong(
      seen, make_word(sequence_of(seen) + 1, self(), kWriting), std::memory_order_acq_rel);
}

// REQUIRES: claim().
ProcessGroup::ConnectionId ProcessGroup::fill(std::uint32_t index, const Words& tuple,
                                              std::uint64_t tag) noexcept {
  Connection& connection = connections_[index];
  // A reader of any of this sees the claim when it looks at the word again: find().
  std::atomic_thread_fence(std::memory_order_release);
  for (std::size_t i = 0; i < tuple.size(); ++i) {
    connection.tuple[i].store(tuple[i], std::memory_order_relaxed);
  }
  for (auto& holder : connection.holders) holder.store(0, std::memory_order_relaxed);
  connection.holders[0].store(self(), std::memory_order_relaxed);
  tags_[index].store(tag, std::memory_order_relaxed);
  const std::uint64_t sequence = sequence_of(connection.word.load(std::memory_order_relaxed));
  connection.word.store(make_word(sequence, 0, kEntered), std::memory_order_release);
  return sequence << 32 | (index + 1);
}

// True: `index` is empty now, by this or another thread.
bool ProcessGroup::free_if_unheld(std::uint32_t index, std::uint64_t word) noexcept {
  Connection& connection = connections_[index];
  for (unsigned i = 0; i < kMaxHolders; ++i) {
    const Member holder = connection.holders[i].load(std::memory_order_acquire);
    if (holder != 0 && !drop_if_dead(connection, i, holder)) return false;
  }
  if (!claim(index, word)) return false;
  tags_[index].store(0, std::memory_order_relaxed);
  connection.word.store(make_word(sequence_of(word) + 1, 0, kEmpty), std::memory_order_release);
  return true;
}

bool ProcessGroup::drop_if_dead(Connection& connection, unsigned holder, Member seen) noexcept {
  if (alive(seen)) return false;
  connection.holders[holder].compare_exchange_strong(seen, 0, std::memory_order_acq_rel);
  return true;
}

// What the dead have left at a place.
bool ProcessGroup::reclaim(std::uint32_t index) noexcept {
  const std::uint64_t word = connections_[index].word.load(std::memory_order_acquire);
  switch (word & kStates) {
    case kEntered:
      return free_if_unheld(index, word);
    case kWriting:
      if (alive(writer_of(word)) || !claim(index, word)) return false;
      tags_[index].store(0, std::memory_order_relaxed);
      connections_[index].word.store(make_word(sequence_of(word) + 1, 0, kEmpty),
                                     std::memory_order_release);
      return true;
    default:
      return true;
  }
}

ProcessGroup::ConnectionId ProcessGroup::enter(const FourTuple& tuple) noexcept {
  if (!joined()) return 0;
  const Words words = words_of(tuple);
  const std::uint64_t tag = tag_of(words);
  std::uint32_t empty = kMaxConnections;
  for (unsigned i = 0; i < kWindow; ++i) {
    const std::uint32_t index = place(tag, i);
    const std::uint64_t there = tags_[index].load(std::memory_order_relaxed);
    if (there == 0 && empty == kMaxConnections) empty = index;
    if (there != tag) continue;
    // The kernel knows one connection by these addresses at a time: this is an older one.
    const std::uint64_t word = connections_[index].word.load(std::memory_order_acquire);
    if ((word & kStates) == kEntered && same(connections_[index], words) && claim(index, word)) {
      return fill(index, words, tag);
    }
  }
  for (const bool desperate : {false, true}) {
    for (unsigned i = 0; i < kWindow; ++i) {
      const std::uint32_t index = desperate || empty == kMaxConnections ? place(tag, i) : empty;
      if (desperate) reclaim(index);
      const std::uint64_t word = connections_[index].word.load(std::memory_order_acquire);
      if ((word & kStates) == kEmpty && claim(index, word)) return fill(index, words, tag);
      empty = kMaxConnections;
    }
  }
  return 0;
}

ProcessGroup::Connection* ProcessGroup::live(ConnectionId share, std::uint64_t& word) noexcept {
  const auto index = static_cast<std::uint32_t>(share) - 1;
  if (!exists() || share == 0 || index >= kMaxConnections) return nullptr;
  Connection& connection = connections_[index];
  word = connection.word.load(std::memory_order_acquire);
  const bool is = (word & kStates) == kEntered && sequence_of(word) == share >> 32;
  return is ? &connection : nullptr;
}

bool ProcessGroup::add(ConnectionId share, Member member) noexcept {
  std::uint64_t word;
  Connection* connection = live(share, word);
  if (connection == nullptr || member == 0) return false;
  for (const auto& holder : connection->holders) {
    if (holder.load(std::memory_order_relaxed) == member) return true;
  }
  for (unsigned i = 0; i < kMaxHolders; ++i) {
    Member there = connection->holders[i].load(std::memory_order_acquire);
    if (there != 0 && drop_if_dead(*connection, i, there)) there = 0;
    if (there == 0 && connection->holders[i].compare_exchange_strong(there, member)) return true;
  }
  keep(share);
  return false;
}

void ProcessGroup::release(ConnectionId share) noexcept {
  std::uint64_t word;
  Connection* connection = live(share, word);
  if (connection == nullptr) return;
  bool held = false;
  for (auto& holder : connection->holders) {
    Member there = holder.load(std::memory_order_acquire);
    if (there == self()) {
      holder.compare_exchange_strong(there, 0, std::memory_order_acq_rel);
    } else {
      held |= there != 0;
    }
  }
  if (!held) free_if_unheld(static_cast<std::uint32_t>(share) - 1, word);
}

bool ProcessGroup::keep(ConnectionId share) noexcept {
  std::uint64_t word;
  Connection* connection = live(share, word);
  while (connection != nullptr && (word & kKept) == 0) {
    if (connection->word.compare_exchange_weak(word, word | kKept, std::memory_order_acq_rel)) {
      return true;
    }
    if ((word & kStates) != kEntered || sequence_of(word) != share >> 32) break;
  }
  return false;
}

void ProcessGroup::keep_no_longer(ConnectionId share) noexcept {
  std::uint64_t word;
  Connection* connection = live(share, word);
  while (connection != nullptr && (word & kKept) != 0 &&
         !connection->word.compare_exchange_weak(word, word & ~std::uint64_t{kKept},
                                                 std::memory_order_acq_rel)) {
    if ((word & kStates) != kEntered || sequence_of(word) != share >> 32) return;
  }
}

bool ProcessGroup::alone(ConnectionId share) noexcept {
  std::uint64_t word;
  Connection* connection = live(share, word);
  if (connection == nullptr || (word & kKept) != 0) return false;
  bool self_holds = false;
  for (unsigned i = 0; i < kMaxHolders; ++i) {
    const Member holder = connection->holders[i].load(std::memory_order_acquire);
    if (holder == 0) continue;
    if (holder == self()) {
      self_holds = true;
    } else if (!drop_if_dead(*connection, i, holder)) {
      return false;
    }
  }
  return self_holds && connection->word.load(std::memory_order_acquire) == word;
}

ProcessGroup::Found ProcessGroup::find(const FourTuple& tuple, Rendezvous& where) noexcept {
  if (!exists()) return Found::kNobody;
  const Words words = words_of(tuple);
  const std::uint64_t tag = tag_of(words);
  Member one = 0;
  for (unsigned i = 0; i < kWindow; ++i) {
    const std::uint32_t index = place(tag, i);
    if (tags_[index].load(std::memory_order_relaxed) != tag) continue;
    Connection& connection = connections_[index];
    const std::uint64_t word = connection.word.load(std::memory_order_acquire);
    if ((word & kStates) != kEntered || !same(connection, words)) continue;
    Member holders[kMaxHolders];
    unsigned count = 0;
    for (unsigned h = 0; h < kMaxHolders; ++h) {
      const Member holder = connection.holders[h].load(std::memory_order_acquire);
      if (holder != 0 && !drop_if_dead(connection, h, holder)) holders[count++] = holder;
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    if (connection.word.load(std::memory_order_relaxed) != word || count == 0) continue;
    if ((word & kKept) != 0 || count > 1 || one != 0) return Found::kSeveral;
    one = holders[0];
  }
  if (one == 0) return Found::kNobody;
  if (one == self()) return Found::kSelf;
  const MemberSlot& slot = members_[one & kIndexMask];
  const std::uint32_t carriers = slot.carriers.load(std::memory_order_acquire);
  where = Rendezvous{};
  if ((carriers & 1) != 0) {
    const std::uint64_t token[2] = {slot.token[0].load(std::memory_order_relaxed),
                                    slot.token[1].load(std::memory_order_relaxed)};
    std::memcpy(where.token.data(), token, sizeof token);
  }
  if ((carriers & 2) != 0) {
    where.rdma_port = static_cast<std::uint16_t>(slot.rdma_port.load(std::memory_order_relaxed));
  }
  std::atomic_thread_fence(std::memory_order_acquire);
  const std::uint32_t word = slot.word.load(std::memory_order_relaxed);
  return word >> 2 == one >> kIndexBits ? Found::kOther : Found::kNobody;
}

// ---- Being found

void ProcessGroup::publish(const Rendezvous& where) noexcept {
  if (!joined()) return;
  MemberSlot& slot = members_[self() & kIndexMask];
  std::uint64_t token[2];
  std::memcpy(token, where.token.data(), sizeof token);
  std::uint32_t carriers = 0;
  std::atomic_thread_fence(std::memory_order_release);  // as in fill(), of the member's word
  if (where.has_shm()) {
    slot.token[0].store(token[0], std::memory_order_relaxed);
    slot.token[1].store(token[1], std::memory_order_relaxed);
    carriers |= 1;
  }
  if (where.rdma_port != 0) {
    slot.rdma_port.store(where.rdma_port, std::memory_order_relaxed);
    carriers |= 2;
  }
  slot.carriers.store(carriers, std::memory_order_release);
}

bool ProcessGroup::try_become_responder(const Endpoint& listener, Carrier carrier, pid_t& holder) noexcept {
  holder = 0;
  if (!exists()) return true;
  const std::int64_t at = lock_of(listener, carrier);
  return lock(at, true) || (locked(at, &holder), false);
}

void ProcessGroup::stop_leading(const Endpoint& listener, Carrier carrier) noexcept {
  if (!exists()) return;
  lock(lock_of(listener, carrier), false);
  tell();
}

void ProcessGroup::tell() noexcept {
  if (news_fd_ >= 0) sys::signal_eventfd(news_fd_);
}

}  // namespace ringroad
