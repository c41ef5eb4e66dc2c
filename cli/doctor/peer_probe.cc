#include "cli/doctor/peer_probe.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "cli/doctor/answerer.h"
#include "cli/doctor/probe_socket.h"
#include "cli/operator_request.h"
#include "cli/segment_reader.h"
#include "rsocket-core/net/endpoint.h"

namespace ringroad::cli::doctor {
namespace {

using Clock = ProbeClock;
using nlohmann::ordered_json;

constexpr std::chrono::seconds kConnectTime{5};
// The greeting is sent at once, but an emulated machine is slow.
constexpr std::chrono::seconds kGreetingTime{2};
constexpr std::chrono::seconds kEchoTime{5};
constexpr std::chrono::seconds kPromotionTime{10};

struct Plan {
  std::uint32_t bytes;
  std::uint32_t most;
  std::chrono::milliseconds time;
};
constexpr Plan kPlans[] = {{64, 1000, std::chrono::milliseconds(1000)},
                           {65536, 200, std::chrono::milliseconds(1500)}};
constexpr std::uint32_t kFewest = 5;
constexpr std::uint32_t kWarmUp = 3;

double microseconds(Clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

int open_socket(const Endpoint& peer, std::string& why) {
  sockaddr_storage name{};
  const socklen_t length = peer.to_sockaddr(name);
  const int fd = socket(name.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd >= 0) set_socket_time(fd, SO_SNDTIMEO, kConnectTime);
  if (fd < 0 || connect(fd, reinterpret_cast<sockaddr*>(&name), length) != 0) {
    why = errno == EINPROGRESS ? "no answer within 5 s" : strerrordesc_np(errno);
    if (fd >= 0) close(fd);
    return -1;
  }
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

bool greeted(int fd) {
  set_socket_time(fd, SO_RCVTIMEO, kGreetingTime);
  char greeting[sizeof kGreeting - 1];
  const bool got = receive_all(fd, greeting, sizeof greeting);
  set_socket_time(fd, SO_RCVTIMEO, kEchoTime);
  return got && std::memcmp(greeting, kGreeting, sizeof greeting) == 0;
}

bool ping(int fd, const Plan& plan, std::vector<Pings>& results, std::string& why) {
  std::vector<char> message(plan.bytes);
  std::vector<char> echo(plan.bytes);
  std::vector<double> times;
  const Clock::time_point until = Clock::now() + plan.time;
  for (std::uint32_t i = 0; i < plan.most + kWarmUp; ++i) {
    for (std::size_t at = 0; at < message.size(); ++at) message[at] = static_cast<char>(at * 7 + i);
    const std::uint32_t length = htonl(plan.bytes);
    std::memcpy(message.data(), &length, sizeof length);
    const Clock::time_point began = Clock::now();
    if (!send_all(fd, message.data(), message.size()) ||
        !receive_all(fd, echo.data(), echo.size())) {
      why = errno == EAGAIN ? "no echo within 5 s" : strerrordesc_np(errno);
      return false;
    }
    const Clock::time_point ended = Clock::now();
    if (echo != message) {
      why = "the echo differs from what was sent";
      return false;
    }
    if (i >= kWarmUp) times.push_back(microseconds(ended - began));
    if (times.size() >= kFewest && ended >= until) break;
  }
  results.push_back(summary(plan.bytes, std::move(times)));
  return true;
}

bool ping_all(int fd, std::vector<Pings>& results, std::string& why) {
  return std::all_of(std::begin(kPlans), std::end(kPlans),
                     [&](const Plan& plan) { return ping(fd, plan, results, why); });
}

void look(const ProcessReport& process, std::uint16_t port, ProbeResult& result) {
  for (const StreamReport& stream : process.streams) {
    if (stream.role == Role::kAccept || stream.remote.port != port) continue;
    result.state = state_name(stream.state);
    result.carrier = carrier_name(stream.carrier());
    result.reason = reason_name(stream.reason);
    result.peer_reason = reason_name(stream.peer_reason);
    result.device = stream.channel.device;
  }
}

// Has the library take the stream off TCP, whatever its rule's promote_after, and waits for it.
void promote(std::uint16_t port, ProbeResult& result) {
  const std::string directory = segment_directory();
  const pid_t self = getpid();
  const std::uint64_t serial = new_serial();
  const Clock::time_point began = Clock::now();
  if (!ask(directory, self, control::Mode::kRdma, serial, result.asked)) return;
  ProcessReport process;
  Progress progress;
  if (!watch(directory, self, control::Mode::kRdma, serial, began + kPromotionTime, process,
             progress, result.asked)) {
    return;
  }
  result.promotion_ms = microseconds(Clock::now() - began) / 1000;
  look(process, port, result);
}

void look_again(std::uint16_t port, ProbeResult& result) {
  ProcessReport process;
  std::string why;
  if (read_segment(place_of(segment_directory(), getpid()), process, why)) {
    look(process, port, result);
  }
}

std::string local_end(int fd) {
  sockaddr_storage name{};
  socklen_t length = sizeof name;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length) != 0) return {};
  Endpoint local;
  const bool named = Endpoint::from_sockaddr(reinterpret_cast<sockaddr*>(&name), length, local);
  return named ? local.to_string() : std::string();
}

void probe(const Endpoint& peer, ProbeResult& result) {
  const Clock::time_point began = Clock::now();
  const int fd = open_socket(peer, result.error);
  if (fd < 0) return;
  result.connect_us = microseconds(Clock::now() - began);
  result.connected = true;
  result.local = local_end(fd);
  result.answers = greeted(fd);
  const bool tcp_works = !result.answers || ping_all(fd, result.tcp, result.error);
  if (tcp_works && result.preloaded) {
    promote(peer.port, result);
    if (result.answers && result.state == "ON_CHANNEL" && ping_all(fd, result.rdma, result.error)) {
      look_again(peer.port, result);
    }
  }
  close(fd);
}

ordered_json to_json(const std::vector<Pings>& pings) {
  ordered_json list = ordered_json::array();
  for (const Pings& one : pings) {
    list.push_back({{"bytes", one.bytes},
                    {"count", one.count},
                    {"min_us", one.min_us},
                    {"p50_us", one.p50_us}});
  }
  return list;
}

std::vector<Pings> pings_of(const ordered_json& object, const char* name) {
  std::vector<Pings> result;
  for (const ordered_json& one : object.value(name, ordered_json::array())) {
    result.push_back({one.value("bytes", 0U), one.value("count", 0U), one.value("min_us", 0.0),
                      one.value("p50_us", 0.0)});
  }
  return result;
}

}  // namespace

Pings summary(std::uint32_t bytes, std::vector<double> times_us) {
  Pings result;
  result.bytes = bytes;
  result.count = static_cast<std::uint32_t>(times_us.size());
  if (times_us.empty()) return result;
  std::sort(times_us.begin(), times_us.end());
  result.min_us = times_us.front();
  result.p50_us = times_us[times_us.size() / 2];
  return result;
}

std::string to_text(const ProbeResult& result) {
  const ordered_json object = {{"error", result.error},
                               {"connected", result.connected},
                               {"local", result.local},
                               {"connect_us", result.connect_us},
                               {"answers", result.answers},
                               {"preloaded", result.preloaded},
                               {"asked", result.asked},
                               {"state", result.state},
                               {"carrier", result.carrier},
                               {"reason", result.reason},
                               {"peer_reason", result.peer_reason},
                               {"device", result.device},
                               {"promotion_ms", result.promotion_ms},
                               {"tcp", to_json(result.tcp)},
                               {"rdma", to_json(result.rdma)}};
  return object.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

bool probe_result_from_text(const std::string& text, ProbeResult& result) {
  try {
    const ordered_json object = ordered_json::parse(text);
    result.error = object.value("error", "");
    result.connected = object.value("connected", false);
    result.local = object.value("local", "");
    result.connect_us = object.value("connect_us", 0.0);
    result.answers = object.value("answers", false);
    result.preloaded = object.value("preloaded", false);
    result.asked = object.value("asked", "");
    result.state = object.value("state", "");
    result.carrier = object.value("carrier", "");
    result.reason = object.value("reason", "");
    result.peer_reason = object.value("peer_reason", "");
    result.device = object.value("device", "");
    result.promotion_ms = object.value("promotion_ms", 0.0);
    result.tcp = pings_of(object, "tcp");
    result.rdma = pings_of(object, "rdma");
  } catch (const ordered_json::exception&) {
    return false;
  }
  return true;
}

int probe_peer(const std::string& peer) {
  const auto endpoint = Endpoint::parse(peer);
  if (!endpoint) {
    std::fprintf(stderr, "\"%s\" is no ADDRESS:PORT\n", peer.c_str());
    return 1;
  }
  ProbeResult result;
  const char* preload = std::getenv("LD_PRELOAD");
  result.preloaded = preload != nullptr && *preload != '\0';
  probe(*endpoint, result);
  std::fputs(to_text(result).c_str(), stdout);
  return 0;
}

}  // namespace ringroad::cli::doctor
