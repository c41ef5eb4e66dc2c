// What crosses the wire, or stands in memory that a peer shares: the bytes, drawn. docs/protocol.md
// is the long form. All integers are little-endian (the library refuses to build elsewhere); ports
// and addresses inside CM private data included.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "rsocket-core/protocol/reason.h"

namespace ringroad {

static_assert(std::endian::native == std::endian::little, "the wire format is little-endian");

inline constexpr std::uint32_t kMagic = 0x31525252;  // "RRR1"

// ---- Versions ----------------------------------------------------------------------------------
// A Hello says which versions its sender speaks, and what it knows besides. Two ends use the highest
// version that both speak, and of the features those that both name. A build from before there were
// ranges says version 1, and zero in the other fields: 1 is all that it speaks, and it names nothing.

inline constexpr std::uint16_t kLowestVersion = 1;
inline constexpr std::uint8_t kHighestVersion = 1;

// Bits of Hello::features: what an end may do only to one that knows it, within any version.
// Append only.
enum class Feature : std::uint32_t {
  // Bytes behind a RESUME which the other end writes again. Builds of version 1 exist that read such a
  // RESUME as bytes of the program's, and reset the connection.
  kGivenBack = 1U << 0,
  // A return to TCP that a control message announces, and no frame (ControlType::kLeft): somebody may read
  // the TCP socket that would take a frame for bytes of the program's.
  kLeft = 1U << 1,
  // The same over RDMA, where each end answers it with its own.
  kLeftAnswered = 1U << 2,
  // Over shared memory: an end that sleeps on a word of the memory, futex(2), and that its peer wakes there.
  kWaitWord = 1U << 3,
  // Over shared memory: one eventfd for both directions, which the listener makes (shm_wake.h).
  kOneEvent = 1U << 4,
};
inline constexpr std::uint32_t kFeatures = static_cast<std::uint32_t>(Feature::kGivenBack) |
                                           static_cast<std::uint32_t>(Feature::kLeft) |
                                           static_cast<std::uint32_t>(Feature::kLeftAnswered) |
                                           static_cast<std::uint32_t>(Feature::kWaitWord) |
                                           static_cast<std::uint32_t>(Feature::kOneEvent);

// What both ends of a promotion can do. A message's path has no room for more than the features that there
// are.
struct Agreement {
  std::uint8_t version = kLowestVersion;
  std::uint8_t features = 0;

  bool has(Feature feature) const noexcept {
    return (features & static_cast<std::uint32_t>(feature)) != 0;
  }
};
static_assert(kFeatures <= 0xff);

// ---- Nonces ------------------------------------------------------------------------------------
// Each end of a promotion draws 15 random bytes and tells the other over the channel. A frame that
// an end writes into the TCP stream starts with the *other* end's nonce, so only a process that
// sits at the far end of the channel can write it, and application bytes cannot look like it.

inline constexpr std::size_t kNonceBytes = 15;
using Nonce = std::array<std::uint8_t, kNonceBytes>;

// From getrandom(2). False when the kernel has no randomness to give (then nothing is promoted).
bool make_nonce(Nonce& out) noexcept;

// ---- Frames inside the TCP stream --------------------------------------------------------------
//
//  0              15 16                  24       25       26           30     32
//  | nonce         |k| consumed (RESUME) | reason | answer | given back | zero |
//
// TOKEN is the first 16 bytes alone, RESUME all 32. k tells them apart.

enum class FrameKind : std::uint8_t { kToken = 1, kResume = 2 };

inline constexpr std::size_t kTokenBytes = 16;
inline constexpr std::size_t kResumeBytes = 32;

struct ResumeFrame {
  std::uint64_t consumed = 0;  // bytes taken from the ring since the switch
  Reason reason = Reason::kNone;
  bool answer = false;  // the sender knows where the other's frames would stand, and waits for one
  // So many bytes follow the frame that the other had written before the switch and that the sender's program
  // has not read: the other writes them again.
  std::uint32_t given_back = 0;
};

void encode_token(const Nonce& nonce, std::uint8_t out[kTokenBytes]) noexcept;
void encode_resume(const Nonce& nonce, const ResumeFrame& frame,
                   std::uint8_t out[kResumeBytes]) noexcept;

enum class FrameMatch : std::uint8_t {
  kOther,    // application bytes: they differ from every frame of this nonce
  kPartial,  // fewer bytes than a frame, and so far they agree with one
  kToken,
  kResume,
};

// Compares the first bytes of the TCP stream at a place where a frame may stand. A RESUME whose
// tail is malformed is kOther. `resume` is filled only for kResume.
FrameMatch match_frame(const Nonce& nonce, const std::uint8_t* bytes, std::size_t n,
                       ResumeFrame& resume) noexcept;

// ---- Control messages on a channel -------------------------------------------------------------
//
//  0      1        2        4          8                16               24              32
//  | type | reason | zero   | credits  | consumed       | value          | proof         |
//
// `credits` and `consumed` are cumulative and stand in every message (verbs uses them for flow
// control; shm has them in shared memory and sends zero, but for kLeft). `value` depends on the type.

// That a key is known (proof.h). 0: none.
using Proof = std::uint64_t;

enum class ControlType : std::uint8_t {
  kCredit = 1,     // verbs only; never handed to the stream
  kSwitch = 2,     // value = TCP bytes written by the sender before its token (the S of the design);
                   // proof = the connector's, where the policy names a key (proof.h)
  kSwitchAck = 3,  // value = the S that is accepted
  kGiveUp = 4,     // the sender gave the promotion up before it wrote its token
  kFin = 5,        // value = ring offset after the last byte of the direction
  kLeft = 6,  // where both know Feature::kLeft. The sender is on TCP from here on. value = ring offset up to
              // which its program has read; shm: consumed = the same of the receiver's, whom it gives the
              // rest over TCP; verbs: the receiver answers with its own (Feature::kLeftAnswered)
};

struct ControlMessage {
  std::uint8_t type = 0;
  std::uint8_t reason = 0;
  std::uint16_t zero16 = 0;
  std::uint32_t credits = 0;
  std::uint64_t consumed = 0;
  std::uint64_t value = 0;
  Proof proof = 0;  // zero but in kSwitch
};
static_assert(sizeof(ControlMessage) == 32);
static_assert(offsetof(ControlMessage, credits) == 4 && offsetof(ControlMessage, consumed) == 8 &&
              offsetof(ControlMessage, value) == 16);

// ---- Promotion request and answer (CM private data; the shm hello starts the same) --------------
//
//  0       4         6          8            16     20          24       26   28           32     47 48
//  | magic | lowest  | tcp port | ring addr  | rkey | ring size | credits| port | features  | nonce  |h|
//
// `lowest` and `h`ighest are the versions that the sender speaks. They, the magic and `features` stand
// where they stand in every version.
//
// REQ carries it from the connector, REP the same from the listener. 48 bytes: an IBTA CM REQ in
// RDMA_PS_TCP leaves 56 bytes to the user (rdma_connect(3)), REP 196, REJ 148. Where the policy names a
// key a Proof follows, and the message has 56 bytes; a CM fills up with zeroes, which is no proof.

struct Hello {
  std::uint32_t magic = kMagic;
  std::uint16_t version = kLowestVersion;
  std::uint16_t tcp_port = 0;    // the sender's own port of the TCP connection
  std::uint64_t ring_addr = 0;   // verbs: remote address of the sender's receive ring
  std::uint32_t rkey = 0;        // verbs: its rkey
  std::uint32_t ring_bytes = 0;  // size of the sender's receive ring
  std::uint16_t credits = 0;     // verbs: data messages that the sender has posted receives for
  std::uint16_t listener_port = 0;  // verbs: the TCP listener's, where the CM is asked at another port
  std::uint32_t features = kFeatures;
  Nonce nonce{};
  std::uint8_t highest = kHighestVersion;  // 0: `version` is the only one
};
static_assert(sizeof(Hello) == 48 && offsetof(Hello, version) == 4 && offsetof(Hello, features) == 28 &&
              offsetof(Hello, highest) == 47);

// REJ carries this, in every version.
struct Refusal {
  std::uint32_t magic = kMagic;
  std::uint16_t version = kLowestVersion;
  std::uint8_t reason = 0;
  std::uint8_t zero8 = 0;
};
static_assert(sizeof(Refusal) == 8);

// Where one process answers for the connections that it holds, of any listener.
struct Rendezvous {
  std::array<std::uint8_t, 16> token{};  // names its Unix socket (shm_hello.h); zero: it has none
  std::uint16_t rdma_port = 0;           // its rdma_cm port in RDMA_PS_TCP; 0: it has none

  bool has_shm() const noexcept { return token != std::array<std::uint8_t, 16>{}; }
};

//  0       4         6        7   8           10     16                32
//  | magic | version | reason | 0 | rdma port | zero | token           |
//
// REJ carries this where the reason is kRedirect: ask there.
struct Redirect {
  Refusal refusal;
  std::uint16_t rdma_port = 0;
  std::uint16_t zero16 = 0;
  std::uint32_t zero32 = 0;
  std::array<std::uint8_t, 16> token{};
};
static_assert(sizeof(Redirect) == 32 && offsetof(Redirect, token) == 16);

Redirect make_redirect(const Rendezvous& where) noexcept;
// False if the bytes are no Redirect of ours.
bool parse_redirect(const void* data, std::size_t n, Rendezvous& where) noexcept;

struct ProvenHello {
  Hello hello;
  Proof proof = 0;
};
static_assert(sizeof(ProvenHello) == 56);

// kNone when `n` bytes at `data` are a Hello of an end that speaks a version which this one speaks, too.
Reason parse_hello(const void* data, std::size_t n, Hello& out) noexcept;
// With the sender of a Hello that parse_hello() has taken.
Agreement agreement_with(const Hello& peer) noexcept;

// The peer's reason; kPeerRefused when the bytes are no Refusal of ours.
Reason parse_refusal(const void* data, std::size_t n) noexcept;

}  // namespace ringroad
