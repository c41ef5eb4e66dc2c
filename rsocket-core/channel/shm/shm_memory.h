// The memory of a shared-memory channel: one sealed memfd a stream, made by the connector.
//
//   0         4096                     4096 + ring              4096 + 2 * ring
//   | header  | connector -> listener  | listener -> connector  |
//
// The header has a block for each side: 0 connector, 1 listener. A side writes its own block only, except
// that the other clears its `waiting` when it wakes it, and then counts `wakes`. Fields that are written on
// different paths stand 128 bytes apart (two cache lines: processors fetch them in pairs).
//
//   block at side * 2048:
//   0      8              12       128        136            256       260     384
//   | tail | control tail | closed | consumed | control head | waiting | wakes | 32 control slots |
//     by the sender                  by the receiver           sleeper           by the sender
//
// Publication: `tail`, `control_tail` and `closed` are stored after what they cover and loaded
// before it; `consumed` and `control_head` likewise, in the other direction. Stores to `tail`,
// `control_tail`, `closed` and `consumed` and accesses to `waiting` are sequentially consistent: a
// side that publishes and then finds nobody waiting, and a side that says it waits and then finds
// nothing published, cannot both happen (Dekker).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "rsocket-core/protocol/reason.h"
#include "rsocket-core/protocol/ring.h"
#include "rsocket-core/protocol/wire.h"

namespace ringroad {

inline constexpr std::uint32_t kShmControlSlots = 32;

// Bits of ShmSide::waiting.
inline constexpr std::uint32_t kShmWantsArrivals = 1;  // data, control messages, the end
inline constexpr std::uint32_t kShmWantsRoom = 2;      // a quarter of its ring free
inline constexpr std::uint32_t kShmWantsEmpty = 4;     // all it sent consumed
// And where it sleeps, one or both; the end that wakes it rings there. Neither, as from a build without
// Feature::kWaitWord: the descriptor.
inline constexpr std::uint32_t kShmOnWord = 8;         // futex(2) on `wakes`
inline constexpr std::uint32_t kShmOnDescriptor = 16;  // shm_wake.h

// A ControlMessage as words: the peer may write while we read, so each is read exactly once.
struct ShmControlSlot {
  std::atomic<std::uint64_t> words[sizeof(ControlMessage) / sizeof(std::uint64_t)];
};
static_assert(sizeof(ShmControlSlot) == sizeof(ControlMessage));

struct alignas(128) ShmSide {
  std::atomic<std::uint64_t> tail;          // bytes that this side has sent
  std::atomic<std::uint32_t> control_tail;  // control messages that this side has sent
  std::atomic<std::uint32_t> closed;        // not 0: this side is gone, all it sent stands before

  alignas(128) std::atomic<std::uint64_t> consumed;  // bytes of the other side that this one took
  std::atomic<std::uint32_t> control_head;           // and control messages

  alignas(128) std::atomic<std::uint32_t> waiting;  // this side sleeps, or is about to
  std::atomic<std::uint32_t> wakes;                 // changes with each wake-up of kShmOnWord

  alignas(128) ShmControlSlot control[kShmControlSlots];
  std::byte reserved[640];
};
static_assert(offsetof(ShmSide, tail) == 0 && offsetof(ShmSide, control_tail) == 8 &&
              offsetof(ShmSide, closed) == 12 && offsetof(ShmSide, consumed) == 128 &&
              offsetof(ShmSide, control_head) == 136 && offsetof(ShmSide, waiting) == 256 &&
              offsetof(ShmSide, wakes) == 260 && offsetof(ShmSide, control) == 384 &&
              sizeof(ShmSide) == 2048);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free &&
              std::atomic<std::uint32_t>::is_always_lock_free);

struct ShmHeader {
  ShmSide side[2];
};
inline constexpr std::size_t kShmHeaderBytes = 4096;
static_assert(sizeof(ShmHeader) == kShmHeaderBytes);

constexpr std::uint64_t shm_file_bytes(std::size_t ring_bytes) noexcept {
  return kShmHeaderBytes + 2 * std::uint64_t{ring_bytes};
}

// Owns the mappings, not the file. Both ends of a pair inside one process share one.
class ShmMemory {
 public:
  // A new file of zeroes, mapped. `memfd` becomes the caller's. Null and a reason on failure.
  // REQUIRES: valid_ring_bytes(ring_bytes).
  static std::shared_ptr<ShmMemory> create(std::size_t ring_bytes, int& memfd,
                                           Reason& why) noexcept;
  // Maps a file that a peer sent. kBadRequest unless it is a sealed memfd of exactly the size.
  // REQUIRES: valid_ring_bytes(ring_bytes).
  static std::shared_ptr<ShmMemory> map(int memfd, std::size_t ring_bytes, Reason& why) noexcept;

  ShmMemory() noexcept = default;
  ~ShmMemory();
  ShmMemory(const ShmMemory&) = delete;
  ShmMemory& operator=(const ShmMemory&) = delete;

  ShmHeader& header() const noexcept { return *header_; }
  // The ring that carries what `side` sends.
  const MirroredRing& ring(unsigned side) const noexcept { return rings_[side]; }
  std::uint64_t bytes() const noexcept { return shm_file_bytes(rings_[0].size()); }

 private:
  bool map_all(int memfd, std::size_t ring_bytes) noexcept;

  ShmHeader* header_ = nullptr;
  MirroredRing rings_[2];
};

// What an errno of a call that makes descriptors or mappings means to a stream.
Reason shm_reason_of(int error) noexcept;

}  // namespace ringroad
