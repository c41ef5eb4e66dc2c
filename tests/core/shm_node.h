// Both ends of a shared-memory transport in one process, each with an agent that remembers what it is told.
#pragma once

#include <gtest/gtest.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "rsocket-core/base/sys.h"
#include "rsocket-core/channel/shm/shm_transport.h"

namespace ringroad::shm_test {

inline constexpr std::uint32_t kRing = 16384;
inline constexpr int kHungMs = 20'000;

inline std::atomic<PromotionId> last_id{0};
inline PromotionId next_id() noexcept { return ++last_id; }

// Names are shared by the whole network namespace, and tests run side by side. A child of a test
// keeps its parent's.
inline std::uint16_t test_port() {
  static const auto port = static_cast<std::uint16_t>(10'000 + getpid() % 50'000);
  return port;
}

inline Endpoint v4(std::uint32_t address, std::uint16_t port) {
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_addr.s_addr = htonl(address);
  in.sin_port = htons(port);
  Endpoint out;
  EXPECT_TRUE(Endpoint::from_sockaddr(reinterpret_cast<const sockaddr*>(&in), sizeof in, out));
  return out;
}

inline Endpoint v6(const in6_addr& address, std::uint16_t port) {
  sockaddr_in6 in{};
  in.sin6_family = AF_INET6;
  in.sin6_addr = address;
  in.sin6_port = htons(port);
  Endpoint out;
  EXPECT_TRUE(Endpoint::from_sockaddr(reinterpret_cast<const sockaddr*>(&in), sizeof in, out));
  return out;
}

inline const Endpoint kClient = v4(INADDR_LOOPBACK, 55'555);
inline Endpoint server() { return v4(INADDR_LOOPBACK, test_port()); }

inline const SharedKey kOneKey = SharedKey::of("one secret, long enough", 23);

inline Nonce nonce_of(std::uint8_t fill) {
  Nonce nonce;
  nonce.fill(fill);
  return nonce;
}

// An agent that remembers what it was told. Answers each request as `answer` says, if that is set.
struct Agent final : TransportEvents {
  struct Refused {
    PromotionId id;
    Reason reason;
    Reason peer_reason;
  };

  void on_request(Transport& transport, PromotionId id,
                  const PromotionRequest& request) noexcept override {
    requests.push_back(request);
    request_ids.push_back(id);
    if (answer) answer(transport, id);
  }
  void on_channel(Transport&, PromotionId id, const Nonce& peer_nonce,
                  std::unique_ptr<Channel> made) noexcept override {
    channel_ids.push_back(id);
    nonces.push_back(peer_nonce);
    channels.push_back(std::move(made));
  }
  void on_refused(Transport&, PromotionId id, Reason reason, Reason peer_reason) noexcept override {
    refused.push_back({id, reason, peer_reason});
  }
  void on_redirect(Transport&, PromotionId id, const Rendezvous& where) noexcept override {
    redirected.emplace_back(id, where);
  }
  void on_channel_event(Transport&, PromotionId) noexcept override {
    ADD_FAILURE() << "shared memory reports to its stream alone";
  }

  Channel& channel() { return *channels.back(); }
  bool has_outcome() const { return !channels.empty() || !refused.empty(); }

  std::function<void(Transport&, PromotionId)> answer;
  std::vector<PromotionRequest> requests;
  std::vector<PromotionId> request_ids;
  std::vector<PromotionId> channel_ids;
  std::vector<Nonce> nonces;
  std::vector<std::unique_ptr<Channel>> channels;
  std::vector<Refused> refused;
  std::vector<std::pair<PromotionId, Rendezvous>> redirected;
};

// There are no TCP connections here; this is what the kernel would say of them.
inline uid_t owner = geteuid();
inline SocketOwner owner_said = SocketOwner::kNamed;
inline SocketOwner said_owner(const FourTuple&, uid_t& out) noexcept {
  if (owner_said == SocketOwner::kNamed) out = owner;
  return owner_said;
}

// A transport and its agent.
struct Node {
  // `directory`: the rendezvous directory, where connections are made by path.
  explicit Node(const char* directory = nullptr) : by_path(directory != nullptr) {
    Reason why = Reason::kNone;
    transport.reset(make_shm_transport(agent, next_id, why, said_owner, directory));
    EXPECT_NE(transport, nullptr) << reason_name(why);
  }

  void accept_everything(std::uint8_t nonce = 0xbb) {
    agent.answer = [this, nonce](Transport& on, PromotionId id) {
      AcceptParams params;
      params.key = key;
      params.nonce = nonce_of(nonce);
      on.accept(id, params);
    };
  }
  PromotionId connect(const Endpoint& to, const Endpoint& from = kClient,
                      const Rendezvous* where = nullptr) {
    ConnectParams params;
    params.key = key;
    params.by_path = by_path;
    if (where != nullptr) {
      params.redirected = true;
      params.rendezvous = *where;
    }
    params.tuple = {from, to};
    params.nonce = nonce_of(0xaa);
    params.ring_bytes = kRing;
    const PromotionId id = next_id();
    transport->connect(id, params);
    return id;
  }

  Agent agent;
  std::unique_ptr<Transport> transport;
  SharedKey key;
  bool by_path;
};

// What a hello or an answer may carry: one that is right, and others.
struct Descriptors {
  Descriptors() {
    memfd = create_sealed_memfd("good", shm_file_bytes(kRing));
    small = create_sealed_memfd("small", shm_file_bytes(kRing) - 4096);
    loose = memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    EXPECT_EQ(ftruncate(loose, static_cast<off_t>(shm_file_bytes(kRing))), 0);
    event = sys::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    EXPECT_EQ(pipe2(pipe, O_CLOEXEC), 0);
  }
  ~Descriptors() {
    for (const int fd : {memfd, small, loose, event, pipe[0], pipe[1]}) sys::close_quietly(fd);
  }
  int memfd, small, loose, event;
  int pipe[2];
};

// Dispatches what is ready until `done`, which must come to pass.
inline bool run_until(std::initializer_list<Transport*> transports, const std::function<bool()>& done,
               int limit_ms = kHungMs) {
  const std::int64_t until = sys::now_ns() + std::int64_t{limit_ms} * 1'000'000;
  while (!done()) {
    std::vector<pollfd> fds;
    for (Transport* transport : transports) fds.push_back({transport->event_fd(), POLLIN, 0});
    const int left = static_cast<int>((until - sys::now_ns()) / 1'000'000);
    if (left <= 0 || ::poll(fds.data(), fds.size(), left) <= 0) return false;
    std::size_t i = 0;
    for (Transport* transport : transports) {
      if (fds[i++].revents != 0) transport->dispatch();
    }
  }
  return true;
}

inline bool says(Channel& from, Channel& to, std::string_view text) {
  std::memcpy(from.tx_view().data, text.data(), text.size());
  from.commit(text.size());
  to.progress();
  const Channel::View view = to.rx_view();
  const bool same = view.size == text.size() && std::memcmp(view.data, text.data(), view.size) == 0;
  to.consume(view.size);
  return same;
}

}  // namespace ringroad::shm_test
