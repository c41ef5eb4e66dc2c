// What two processes of one host say to each other to build a shared-memory channel: one packet each
// way over a Unix SOCK_SEQPACKET connection.
//
//   hello    connector -> listener, 96 bytes
//   0        48               72              96
//   | Hello  | connector      | listener      |   + descriptors: memfd [, connector's eventfd]
//
//   address: 0       16      20     22     24
//            | addr  | scope | port | zero |      the ends of the TCP connection
//
//   answer   listener -> connector, 48 bytes
//   0        48
//   | Hello  |                                    [+ descriptor: listener's eventfd]
//
// Where the policy names a key 8 bytes follow in both, a Proof (proof.h).
//
//   refusal  listener -> connector, 8 bytes, or 32 where it names another process to ask (wire.h)
//
// Every packet carries SCM_CREDENTIALS (unix(7)), which the kernel vouches for: they decide how the
// ends wake each other (shm_wake.h). A hello without an eventfd asks for kSocket; an answer with one
// means kEvents, an answer without means kSocket, over this very connection.
//
// Names are abstract (unix(7)): they live in the network namespace, as the TCP port does that they
// stand for, and end with the process. Nobody's permission is needed to bind or connect to one.
#pragma once

#include <sys/types.h>
#include <sys/un.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "rsocket-core/net/endpoint.h"
#include "rsocket-core/protocol/wire.h"

namespace ringroad {

struct ShmAddress {
  std::uint8_t addr[16] = {};
  std::uint32_t scope = 0;
  std::uint16_t port = 0;
  std::uint16_t zero16 = 0;

  static ShmAddress from(const Endpoint& endpoint) noexcept;
  Endpoint endpoint() const noexcept;
};
static_assert(sizeof(ShmAddress) == 24);

struct ShmHello {
  Hello hello;
  ShmAddress connector;
  ShmAddress listener;
};
static_assert(sizeof(ShmHello) == 96 && offsetof(ShmHello, connector) == 48 &&
              offsetof(ShmHello, listener) == 72);

struct ProvenShmHello {
  ShmHello hello;
  Proof proof = 0;
};
static_assert(sizeof(ProvenShmHello) == 104);

// The names that answer for a TCP endpoint. A listener has one; a connector tries them in order.
enum class ShmName : std::uint8_t { kExact, kAny4, kAny6 };

// "ringroad/1/10.9.0.1:3306", "ringroad/1/[fe80::1%2]:3306", "ringroad/1/any4:3306".
socklen_t make_shm_name(ShmName kind, const Endpoint& endpoint, sockaddr_un& out) noexcept;
// "ringroad/1/process/0123..ef": where one process answers for what it holds.
socklen_t make_shm_process_name(const std::array<std::uint8_t, 16>& token,
                                sockaddr_un& out) noexcept;
// The name of a listener that is bound to `endpoint`.
ShmName shm_name_of_listener(const Endpoint& endpoint) noexcept;

// One received packet. Owns its descriptors, which are foreign (deferred_close.h) until taken.
class ShmPacket {
 public:
  static constexpr unsigned kMaxDescriptors = 2;

  ShmPacket() noexcept = default;
  ~ShmPacket();
  ShmPacket(const ShmPacket&) = delete;
  ShmPacket& operator=(const ShmPacket&) = delete;

  enum class Got : std::uint8_t { kNothing, kPacket, kEnd };
  Got receive(int socket) noexcept;

  const std::uint8_t* data() const noexcept { return bytes_; }
  std::size_t size() const noexcept { return size_; }
  unsigned descriptors() const noexcept { return count_; }
  // The caller owns it from then on. REQUIRES: index < descriptors(), once each.
  int take_descriptor(unsigned index) noexcept;
  // More bytes or descriptors were sent than there is room for, or than this process may open.
  bool truncated() const noexcept { return truncated_; }
  // The sender is a process of this user, of this process's own.
  bool from_user(uid_t user) const noexcept;
  // kNone, or why it is not believed.
  Reason proves_user(uid_t user) const noexcept;
  bool from_same_user() const noexcept;

 private:
  alignas(8) std::uint8_t bytes_[sizeof(ProvenShmHello)] = {};
  std::size_t size_ = 0;
  int fds_[kMaxDescriptors] = {-1, -1};
  unsigned count_ = 0;
  bool truncated_ = false;
  uid_t sender_ = 0;
  bool has_sender_ = false;
};

// 0 or an errno. `socket` is non-blocking.
int send_shm_packet(int socket, const void* data, std::size_t size, const int* fds,
                    unsigned count) noexcept;

// Asks the kernel to put the sender's credentials beside each packet received.
bool receive_credentials(int socket) noexcept;

}  // namespace ringroad
