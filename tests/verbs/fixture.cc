#include "tests/verbs/fixture.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "rsocket-core/base/faults.h"
#include "rsocket-core/base/sys.h"

namespace ringroad::verbs_test {
namespace {

using Clock = std::chrono::steady_clock;

std::string from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

PromotionId next_id() noexcept {
  static std::atomic<PromotionId> last{0};
  return ++last;
}

int adopt(int fd) noexcept { return sys::move_high(fd); }
void release(int) noexcept {}

VerbsEntryPoint entry_point() {
  static void* object = dlopen(RINGROAD_VERBS_MODULE, RTLD_NOW | RTLD_LOCAL);
  if (object == nullptr) return nullptr;
  return reinterpret_cast<VerbsEntryPoint>(dlsym(object, kVerbsEntryPoint));
}

}  // namespace

std::string server_address() { return from_environment("RINGROAD_SERVER_ADDR"); }
std::string client_address() { return from_environment("RINGROAD_CLIENT_ADDR"); }
std::string server_device() { return from_environment("RINGROAD_SERVER_DEVICE"); }
std::string client_device() { return from_environment("RINGROAD_CLIENT_DEVICE"); }

Endpoint endpoint(const std::string& address, std::uint16_t port) {
  Endpoint result;
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  if (inet_pton(AF_INET, address.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    Endpoint::from_sockaddr(reinterpret_cast<sockaddr*>(&v4), sizeof v4, result);
  } else if (inet_pton(AF_INET6, address.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    Endpoint::from_sockaddr(reinterpret_cast<sockaddr*>(&v6), sizeof v6, result);
  }
  return result;
}

Nonce nonce_of(std::uint8_t first) {
  Nonce nonce;
  for (std::size_t i = 0; i < nonce.size(); ++i) nonce[i] = static_cast<std::uint8_t>(first + i);
  return nonce;
}

Side::Side() {
  const VerbsEntryPoint entry = entry_point();
  if (entry == nullptr) {
    load_failure_ = Reason::kNoVerbsLibrary;
    return;
  }
  const VerbsHost host{kVerbsAbi, this, next_id, adopt, adopt, release, faults::recover_also_by};
  transport_ = entry(host, &load_failure_);
}

Side::~Side() {
  outcomes_.clear();
  delete transport_;
}

PromotionId Side::connect(const ConnectParams& params) {
  const PromotionId id = next_id();
  outcomes_[id];
  transport_->connect(id, params);
  return id;
}

void Side::on_request(Transport& transport, PromotionId id, const PromotionRequest& r) noexcept {
  ++requests;
  last_request = id;
  request = r;
  std::this_thread::sleep_for(takes);
  if (answer == Answer::kAccept) transport.accept(id, accept_params);
  if (answer == Answer::kRefuse) transport.refuse(id, refusal);
}

void Side::on_channel(Transport&, PromotionId id, const Nonce& peer_nonce,
                      std::unique_ptr<Channel> channel) noexcept {
  Outcome& outcome = outcomes_[id];
  outcome.ended = true;
  outcome.peer_nonce = peer_nonce;
  outcome.channel = std::move(channel);
}

void Side::on_refused(Transport&, PromotionId id, Reason reason, Reason peer) noexcept {
  Outcome& outcome = outcomes_[id];
  outcome.ended = true;
  outcome.reason = reason;
  outcome.peer_reason = peer;
}

void Side::on_channel_event(Transport&, PromotionId id) noexcept { ++outcomes_[id].channel_events; }

ConnectParams connect_params(std::uint32_t ring_bytes) {
  ConnectParams params;
  params.tuple.local = endpoint(client_address(), kClientTcpPort);
  params.tuple.remote = endpoint(server_address(), kPort);
  params.nonce = nonce_of(1);
  params.ring_bytes = ring_bytes;
  return params;
}

bool serve_until(std::initializer_list<Side*> sides, const std::function<bool()>& done,
                 std::chrono::milliseconds limit) {
  const auto until = Clock::now() + limit;
  std::vector<pollfd> fds;
  for (Side* side : sides) fds.push_back({side->transport().event_fd(), POLLIN, 0});
  while (!done()) {
    if (Clock::now() >= until) return false;
    poll(fds.data(), fds.size(), 20);
    for (Side* side : sides) side->transport().dispatch();
  }
  return true;
}

bool poll_until(std::initializer_list<Channel*> channels, const std::function<bool()>& step,
                std::chrono::milliseconds limit) {
  const auto until = Clock::now() + limit;
  for (;;) {
    for (Channel* channel : channels) channel->progress();
    if (step()) return true;
    if (Clock::now() >= until) return false;
  }
}

std::size_t write_some(Channel& channel, std::string_view bytes) {
  const Channel::View view = channel.tx_view();
  const std::size_t n = std::min(bytes.size(), view.size);
  std::memcpy(view.data, bytes.data(), n);
  if (n > 0) channel.commit(n);
  return n;
}

std::string read_all(Channel& channel) {
  const Channel::View view = channel.rx_view();
  std::string bytes(reinterpret_cast<const char*>(view.data), view.size);
  if (view.size > 0) channel.consume(view.size);
  return bytes;
}

std::string pattern(std::uint64_t offset, std::size_t n) {
  std::string bytes(n, '\0');
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint64_t at = offset + i;
    bytes[i] = static_cast<char>((at * 0x9e3779b97f4a7c15ULL + (at >> 3)) >> 56);
  }
  return bytes;
}

}  // namespace ringroad::verbs_test
