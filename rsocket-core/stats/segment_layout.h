// What `ringroad ss` reads: one shared-memory file a process, written without locks and readable
// while the process is stopped, hung or dead.
//
//   <directory>/<pid>   (file_name.h) 0644, made when the process first meets a TCP connection or listener
//
//   0            4096                  kSlotsOffset            + sizeof(StreamSlot)
//   | header     | rule 0 | rule 1 ... | slot 0                | slot 1 ...
//   kLatenciesOffset
//   | latencies of rule 0 | of rule 1 ... | of slot 0 | of slot 1 ...
//                 (sparse: of these, what was never used takes no memory)
//
// Publication: a slot's identity (everything that is not atomic) changes only between two
// increments of `sequence` (odd while it changes); a reader copies the slot, and believes the copy
// if `sequence` was even and equal before and after. Counters are relaxed atomics: each is exact,
// but two of them may be from slightly different moments.
//
// Versions: fields are appended only, to the header and to latencies; all sizes stand in the header: a
// reader takes the part that it knows, and finds zero in what an older writer did not know. `version`
// changes when that cannot be kept. What stands before `library_version`, and it, never moves. Rules and
// slots keep their sizes, for older commands read no others; what came later stands behind all slots.
//
// Totals: what a stream has counted moves to the header and to its rule when it ends. `closings`
// says which closings the header has (odd while one is added), and a slot the last one that
// happened in it: so a reader that has seen a stream live knows whether the header, read later, has
// it too.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "rsocket-core/base/histogram.h"
#include "rsocket-core/channel/channel.h"
#include "rsocket-core/net/endpoint.h"
#include "rsocket-core/protocol/reason.h"
#include "rsocket-core/protocol/state.h"

namespace ringroad::stats {

inline constexpr std::uint32_t kSegmentMagic = 0x54535252;  // "RRST"
inline constexpr std::uint32_t kSegmentVersion = 5;
inline constexpr std::uint32_t kSlots = 16384;
inline constexpr std::uint32_t kRules =
    64;  // that are counted apart; what comes later shares the last
inline constexpr std::size_t kHeaderBytes = 4096;
// Reasons that are counted where version 5 began to count them, and those that came later.
inline constexpr unsigned kFirstReasons = 38;
inline constexpr unsigned kLaterReasons = 4;
// All places are taken. Neither array can grow, for what stands behind it would move. Nor can kHeaderBytes:
// older commands refuse a file with another.
static_assert(static_cast<unsigned>(Reason::kCount) <= kFirstReasons + kLaterReasons,
              "one more reason: count the process' in a new array at the end of SegmentHeader, and each "
              "rule's in one at the end of Latencies; refusals() goes to them by the reason's number");
inline constexpr const char* kDefaultDirectory = "/dev/shm/ringroad";  // RINGROAD_RUNTIME_DIR

// Bytes and messages of one carrier (index 0: TCP, 1: channel), both directions. A message is one
// successful send or receive call of the program.
struct Counters {
  std::atomic<std::uint64_t> tx_bytes[2];
  std::atomic<std::uint64_t> rx_bytes[2];
  std::atomic<std::uint64_t> tx_messages[2];
  std::atomic<std::uint64_t> rx_messages[2];

  // One writer at a time: the lock of that direction. A stream on the kernel for good has no lock:
  // of calls by two threads at once in one direction, one may go uncounted.
  [[gnu::always_inline]] static void add(std::atomic<std::uint64_t>& counter,
                                         std::uint64_t n) noexcept {
    add_alone(counter, n);
  }
};

// What a stream counts, and what is left of all that have ended.
struct StreamCounts {
  Counters traffic;
  std::atomic<std::uint64_t> stalls;  // sends that found no room in the ring
  std::atomic<std::uint64_t> promotions;
  std::atomic<std::uint64_t> resumptions;
  Log2Histogram tx_sizes;  // bytes of the program's sends, whatever carried them
  Log2Histogram rx_sizes;
  // From a send that finds no room in the ring to one that does, in wait_units(): as long as a
  // thread that may sleep is kept. One that may not may come back later than it could.
  Log2Histogram waits;
  std::atomic<std::uint64_t> waited_ns;  // the sum of these

  void clear() noexcept;
  void add(const StreamCounts& other) noexcept;  // one caller at a time
};

// Times of some of a stream's calls (AnswerTimer).
struct Times {
  Log2Histogram counts;  // in latency_units()
  std::atomic<std::uint64_t> sum_ns;

  void add(std::uint64_t ns) noexcept {  // one writer at a time
    counts.add(latency_units(ns));
    add_alone(sum_ns, ns);
  }
  void clear() noexcept;
  void add(const Times& other) noexcept;
};
struct Latencies {
  Times answers[2];  // from a request's last byte to its answer's first; index as Counters
  Times reads;       // from the end of a sleep to the receive of what ended it

  void clear() noexcept;
  void add(const Latencies& other) noexcept;  // one caller at a time
};

enum class PolicyStatus : std::uint32_t {
  kNone = 0,
  kLoaded = 1,
  kRefused = 2,
  kEditRefused = 3,  // the policy from before the edit holds
};

struct SegmentHeader {
  std::uint32_t magic = 0;  // written last
  std::uint32_t version = 0;
  std::uint32_t header_bytes = 0;
  std::uint32_t slot_bytes = 0;
  std::uint32_t slots = 0;
  std::uint32_t pid = 0;
  std::uint64_t start_ticks = 0;  // field 22 of /proc/PID/stat: tells a reused pid
  char program[64] = {};
  // As a slot's: odd while what is said about the policy changes.
  std::atomic<std::uint32_t> policy_sequence{};
  std::atomic<std::uint32_t> policy_status{};
  std::uint32_t policy_rules = 0;
  char policy_detail[512] = {};  // the first error (file:line:column: ...), or the files that were read
  char library_version[32] = {};
  std::atomic<std::uint32_t> slots_used{};  // slots at or above this were never used
  std::atomic<std::uint32_t> unlisted{};    // live streams that found no slot
  // What the operator has asked for last (control_socket.h), and which request that was: written when
  // every stream has been told.
  std::atomic<std::uint32_t> operator_mode{};
  std::atomic<std::uint32_t> policy_reloads{};  // edits of the policy that were taken up
  std::atomic<std::uint64_t> operator_serial{};
  std::atomic<std::uint32_t> max_channels{};  // the policy's; 0: none could be made yet
  std::atomic<std::uint32_t> channels{};      // that streams have
  std::atomic<std::uint64_t> channels_given_back{};  // by streams that were not used
  // Streams that are gone; add the live ones to get the process' totals. See "Totals" above.
  std::atomic<std::uint64_t> closings{};
  StreamCounts closed{};
  std::atomic<std::uint64_t> streams_opened{};
  std::atomic<std::uint64_t> streams_promoted{};
  std::atomic<std::uint64_t> promotions_refused[kFirstReasons]{};  // see refusals()
  std::uint64_t pid_namespace = 0;  // inode of /proc/PID/ns/pid: where `pid` means something
  // What the name of its control socket has behind this file's (control_socket.h). Empty: there is none yet.
  char control_suffix[32] = {};
  std::uint32_t rule_bytes = 0;
  std::uint32_t rules = 0;
  std::atomic<std::uint32_t> rules_used{};  // the names of these are written
  std::atomic<std::uint64_t> later_refused[kLaterReasons]{};
  std::atomic<std::uint64_t> rules_later_refused[kRules][kLaterReasons]{};
  std::uint32_t latencies_bytes = 0;  // of each Latencies behind the slots; 0: there are none
};
static_assert(sizeof(SegmentHeader) <= kHeaderBytes && offsetof(SegmentHeader, library_version) == 620);

// What streams of one rule have done. Its name never changes; a rule that an edit of the policy has
// taken away stays.
struct RuleSlot {
  char name[64] = {};
  std::atomic<std::uint64_t> opened{};
  std::atomic<std::uint64_t> promoted{};
  std::atomic<std::uint64_t> refused[kFirstReasons]{};
  StreamCounts closed{};
};
// Promotions that did not come about for this reason: of the process, and of one of its rules.
template <typename Header>
auto& refusals(Header& header, unsigned reason) noexcept {
  return reason < kFirstReasons ? header.promotions_refused[reason]
                                : header.later_refused[reason - kFirstReasons];
}
template <typename Header, typename Rule>
auto& refusals(Header& header, Rule& rule, std::size_t index, unsigned reason) noexcept {
  return reason < kFirstReasons ? rule.refused[reason]
                                : header.rules_later_refused[index][reason - kFirstReasons];
}
inline constexpr std::size_t kSlotsOffset =
    kHeaderBytes + (sizeof(RuleSlot) * kRules + 4095) / 4096 * 4096;

struct StreamSlot {
  std::atomic<std::uint32_t> sequence{};
  std::atomic<std::uint32_t> in_use{};
  std::uint64_t id = 0;
  std::uint8_t role = 0;  // 0 connect, 1 accept
  std::uint8_t rule_index = 0;
  // What the ends of the channel agreed on: the protocol's version, 0 without a channel or from an older
  // library, and the features (Agreement).
  std::uint8_t protocol = 0;
  std::uint8_t features = 0;
  std::int32_t fd = -1;  // as the program numbers it; the first one if it was dup'ed
  Endpoint local{};
  Endpoint remote{};
  char rule[64] = {};
  std::atomic<std::uint8_t> state{};   // State
  std::atomic<std::uint8_t> reason{};  // Reason, at this end
  std::atomic<std::uint8_t> peer_reason{};
  std::atomic<std::uint8_t> descriptors_extra{};  // beyond those of the channel
  ChannelInfo channel{};                          // zero while there is none
  StreamCounts counts{};
  std::atomic<std::int64_t> stalled_since_ns{};  // CLOCK_MONOTONIC; 0: no send waits for room
  std::atomic<std::uint64_t> closed_at{};        // `closings` with the last stream that ended here
};

// As in every file of version 5.
static_assert(sizeof(RuleSlot) == 1056 && sizeof(StreamSlot) == 952);

// Of the rules' ended streams first, then of the slots' streams.
inline constexpr std::size_t kLatenciesOffset =
    kSlotsOffset + (sizeof(StreamSlot) * kSlots + 4095) / 4096 * 4096;
inline constexpr std::size_t kSegmentBytes = kLatenciesOffset + sizeof(Latencies) * (kRules + kSlots);

}  // namespace ringroad::stats
