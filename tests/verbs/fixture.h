// Two ends of a promotion over real verbs, for tests and the ping-pong: the loadable object, an
// agent that answers as it is told, and waiting by descriptor.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "rsocket-core/channel/channel.h"
#include "rsocket-core/channel/transport.h"

namespace ringroad::verbs_test {

inline constexpr std::uint16_t kPort = 13306;
inline constexpr std::uint16_t kClientTcpPort = 40001;

// What integration/softroce/run says of the devices; empty where there are none.
std::string server_address();
std::string client_address();
std::string server_device();
std::string client_device();

Endpoint endpoint(const std::string& address, std::uint16_t port);
Nonce nonce_of(std::uint8_t first);

// One process' half: a transport from the loadable object and what it reported.
class Side final : public TransportEvents {
 public:
  enum class Answer { kAccept, kRefuse, kNone };
  struct Outcome {
    bool ended = false;
    Reason reason = Reason::kNone;
    Reason peer_reason = Reason::kNone;
    Nonce peer_nonce{};
    std::unique_ptr<Channel> channel;
    unsigned channel_events = 0;
  };

  Side();
  ~Side();
  bool loaded() const { return transport_ != nullptr; }
  Reason load_failure() const { return load_failure_; }
  Transport& transport() { return *transport_; }

  PromotionId connect(const ConnectParams& params);
  Outcome& outcome(PromotionId id) { return outcomes_[id]; }

  Answer answer = Answer::kAccept;
  Reason refusal = Reason::kPolicy;
  AcceptParams accept_params;
  std::chrono::milliseconds takes{0};  // for each request
  unsigned requests = 0;
  PromotionId last_request = 0;
  PromotionRequest request;

  void on_request(Transport&, PromotionId id, const PromotionRequest& r) noexcept override;
  void on_channel(Transport&, PromotionId id, const Nonce& peer_nonce,
                  std::unique_ptr<Channel> channel) noexcept override;
  void on_refused(Transport&, PromotionId id, Reason reason, Reason peer) noexcept override;
  void on_channel_event(Transport&, PromotionId id) noexcept override;

 private:
  Transport* transport_ = nullptr;
  Reason load_failure_ = Reason::kNone;
  std::map<PromotionId, Outcome> outcomes_;
};

ConnectParams connect_params(std::uint32_t ring_bytes);

// Serves the sides' transports until `done`. False when it takes longer than `limit`.
bool serve_until(std::initializer_list<Side*> sides, const std::function<bool()>& done,
                 std::chrono::milliseconds limit = std::chrono::seconds(10));

// Calls progress() and `step` until `step` gives true. False after `limit`.
bool poll_until(std::initializer_list<Channel*> channels, const std::function<bool()>& step,
                std::chrono::milliseconds limit = std::chrono::seconds(30));

// Copies into the channel what fits; returns the bytes taken.
std::size_t write_some(Channel& channel, std::string_view bytes);
// Takes all that has arrived.
std::string read_all(Channel& channel);

// Bytes that differ by position, so that a lost, repeated or misplaced one shows.
std::string pattern(std::uint64_t offset, std::size_t n);

}  // namespace ringroad::verbs_test
