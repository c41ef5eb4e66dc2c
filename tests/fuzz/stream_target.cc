#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "rsocket-core/stream/agent_stream.h"
#include "tests/fuzz/hostile_memory.h"

namespace ringroad::fuzz {
namespace {

// What a byte is tells which end wrote it:
//   0x00 .. 0x2f  parts of frames: nonces from 0x10 on
//   0x30 .. 0x7f  the hostile end's TCP bytes
//   0x80 .. 0xff  what stands in its ring: 0x80 | number of the promotion << 4
constexpr unsigned kPromotions = 8;
// What the honest end's frames start with.
constexpr Nonce kTheirs = [] {
  Nonce nonce{};
  for (std::uint8_t& byte : nonce) byte = 0x55;
  return nonce;
}();

class QuietHost final : public StreamHost {
 public:
  void attend(Stream&) noexcept override {}
  void start_promotion(Stream&) noexcept override {}
  void unwatch(Stream&, int) noexcept override {}
};

// From another address each time: the ports of one would be used up by TIME_WAIT.
std::pair<int, int> tcp_pair() {
  static const int listener = [] {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(fd, reinterpret_cast<sockaddr*>(&any), sizeof any) != 0 || listen(fd, 4) != 0) {
      std::abort();
    }
    return fd;
  }();
  sockaddr_in at{};
  socklen_t length = sizeof at;
  getsockname(listener, reinterpret_cast<sockaddr*>(&at), &length);
  const int a = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  static std::uint16_t pairs = 0;
  sockaddr_in from{};
  from.sin_family = AF_INET;
  from.sin_addr.s_addr = htonl(0x7f010000U | ++pairs);
  const int port_later = 1;
  setsockopt(a, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &port_later, sizeof port_later);
  if (bind(a, reinterpret_cast<sockaddr*>(&from), sizeof from) != 0) std::abort();
  // The fuzzer has a timer, whose signal may come in between.
  while (connect(a, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0 && errno != EISCONN) {
    if (errno != EINTR && errno != EALREADY) std::abort();
  }
  int b;
  do {
    b = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  } while (b < 0 && errno == EINTR);
  if (b < 0) std::abort();
  const linger reset{1, 0};
  for (const int fd : {a, b}) {
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    fcntl(fd, F_SETFL, O_RDWR | O_NONBLOCK);
  }
  return {a, b};
}

AgentStreamPtr make_stream(StreamHost& host, int fd, Role role) {
  StreamConfig config;
  config.via_shm = true;
  config.ring_bytes = kFuzzRing;
  config.spin_ns = 0;
  FourTuple tuple;
  Endpoint::local_of(fd, tuple.local);
  Endpoint::peer_of(fd, tuple.remote);
  return std::make_shared<AgentStream>(&host, nullptr, 1, fd, role, tuple, config, true);
}

ssize_t send_all(AgentStream& stream, Bytes bytes) {
  iovec piece{const_cast<std::uint8_t*>(bytes.data()), bytes.size()};
  return stream.send(&piece, 1, MSG_NOSIGNAL);
}

// Another stream of the process, between two honest ends: no lie is any business of its.
struct Bystander {
  QuietHost host;
  std::pair<int, int> fds = tcp_pair();
  AgentStreamPtr a = make_stream(host, fds.first, Role::kConnect);
  AgentStreamPtr b = make_stream(host, fds.second, Role::kAccept);

  Bystander() {
    thread_wake_fd();  // once a thread
    Nonce a_nonce;
    Nonce b_nonce;
    a_nonce.fill(1);
    b_nonce.fill(2);
    if (a->promotion_started(a_nonce) != Reason::kNone) std::abort();
    if (b->promotion_started(b_nonce) != Reason::kNone) std::abort();
    auto [ca, cb] = make_shm_pair(kFuzzRing);
    a->channel_up(std::move(ca), b_nonce);
    b->channel_up(std::move(cb), a_nonce);
    for (int i = 0; i < 1000 && !promoted(); ++i) {
      a->service();
      b->service();
    }
  }
  bool promoted() const {
    return a->state() == State::kOnChannel && b->state() == State::kOnChannel;
  }
  bool is_well() const {
    const std::uint8_t text[] = {'w', 'e', 'l', 'l'};
    std::uint8_t got[sizeof text] = {};
    iovec piece{got, sizeof got};
    return promoted() && send_all(*a, text) == sizeof text &&
           b->recv(&piece, 1, 0) == sizeof text &&
           std::memcmp(text, got, sizeof got) == 0;
  }
};

// What the program has read of a ring behind what the stream's RESUME says: it comes again behind the other
// RESUME, and is dropped. Whether it was behind is not known of what a call got in which the stream left.
struct Early {
  std::size_t least = 0;
  std::size_t most = 0;
};

// A place in the hostile end's TCP bytes, behind so many passages that were given back to it.
struct Place {
  std::size_t at = 0;
  std::size_t given_back = 0;
  bool operator==(const Place&) const = default;
};

class Trial {
 public:
  Trial(HostileMemory& hostile, Role role) : hostile_(hostile) {
    const auto [a, b] = tcp_pair();
    fd_ = role == Role::kConnect ? a : b;
    peer_ = role == Role::kConnect ? b : a;
    side_ = role == Role::kConnect ? ShmSideIndex::kConnector : ShmSideIndex::kListener;
    stream_ = make_stream(host_, fd_, role);
  }
  ~Trial() {
    stream_.reset();
    if (fd_ >= 0) close(fd_);
    if (peer_ >= 0) close(peer_);
  }

  std::string run(Reader reader) {
    while (!reader.empty()) {
      step(reader);
      if (!complaint_.empty()) return complaint_;
    }
    // What is left of it comes to rest.
    for (int i = 0; i < 4; ++i) {
      stream_->service();
      if (!closed_) receive(64);
    }
    return complaint_;
  }

 private:
  void step(Reader& reader) {
    const unsigned what = reader.byte();
    switch (what % 18) {
      case 0:
        promote();
        break;
      case 1:
        stream_->service();
        break;
      case 2:
        if (!closed_) receive(1 + reader.byte());
        break;
      case 3:
        send(1 + reader.byte());
        break;
      case 4: {
        std::vector<std::uint8_t> bytes;
        for (const std::uint8_t b : reader.take_bytes(1 + reader.byte() % 64)) {
          bytes.push_back(static_cast<std::uint8_t>(0x30 + b % 0x50));
        }
        write(bytes);
        break;
      }
      case 5:
      case 6: {  // a frame, whole or in part, or with a byte of it altered
        std::uint8_t frame[kResumeBytes];
        std::size_t size = kTokenBytes;
        if (what % 18 == 5) {
          encode_token(nonce_, frame);
        } else {
          ResumeFrame resume;
          resume.consumed = reader.take<std::uint16_t>() & 0x7f7fU;
          resume.reason = static_cast<Reason>(reader.byte() & 0x7f);
          resume.answer = reader.byte() % 2 != 0;
          encode_resume(nonce_, resume, frame);
          size = kResumeBytes;
        }
        const unsigned how = reader.byte();
        if (how % 4 == 1) size = how / 4 % size;
        if (how % 4 == 2) frame[how / 4 % size] ^= 0x01;
        write({frame, size});
        if (how % 4 != 1 && how % 4 != 2 && what % 18 == 5) token_[promotion_] = true;
        break;
      }
      case 7: {  // SWITCH, by an end that tells the truth about S, or nearly
        control(ControlType::kSwitch, written_.size() + static_cast<std::uint64_t>(
                                                            reader.take<std::int8_t>()));
        break;
      }
      case 8:  // the answer to the last message
        if (channel_up_) control(ControlType::kSwitchAck, hostile_.last_control().value);
        break;
      case 9: {
        const ControlType type = reader.byte() % 2 == 0 ? ControlType::kFin : ControlType::kGiveUp;
        control(type, static_cast<std::uint64_t>(reader.take<std::int16_t>()));
        break;
      }
      case 10: {
        const auto message = reader.take<ControlMessage>();
        if (channel_up_) hostile_.put_control(message);
        break;
      }
      case 11:  // data, where an honest end would put it
        if (channel_up_) hostile_.mine().tail.fetch_add(reader.byte());
        break;
      case 12:
        if (channel_up_) hostile_.scribble(reader);
        break;
      case 13:
        drain();
        break;
      case 14:
        if (!closed_) stream_->shutdown(reader.byte() % 3);
        break;
      case 15:
        stream_->leave_channel(Reason::kOperator);
        break;
      case 16:
        if (reader.byte() % 4 == 0) {
          while (drain()) {
          }
          if (peer_ >= 0) close(std::exchange(peer_, -1));
        } else if (peer_ >= 0) {
          ::shutdown(peer_, SHUT_WR);
        }
        break;
      default:
        if (closed_) break;
        if (reader.byte() % 8 != 0) {
          stream_->plan_poll(static_cast<short>(0x0005), Stream::Arm::kIfIdle);  // POLLIN | POLLOUT
          break;
        }
        closed_ = true;
        stream_->close_by_program(false);
        close(std::exchange(fd_, -1));
        break;
    }
  }

  void promote() {
    if (closed_ || promotions_ == kPromotions) return;
    Nonce nonce;
    for (std::size_t i = 0; i < nonce.size(); ++i) {
      nonce[i] = static_cast<std::uint8_t>(i == 0 ? 0x10 + promotions_ : 0x20 + i);
    }
    if (stream_->promotion_started(nonce) != Reason::kNone) return;
    promotion_ = promotions_++;
    nonce_ = nonce;
    hostile_.begin(side_, static_cast<std::uint8_t>(0x80 | promotion_ << 4));
    ShmWake wakes[2];
    Reason why = Reason::kNone;
    if (!ShmWake::make_pair(ShmWakeKind::kEvents, wakes[0], wakes[1], why)) std::abort();
    channel_up_ = true;
    stream_->channel_up(std::make_unique<ShmChannel>(hostile_.memory, side_, std::move(wakes[0])),
                        kTheirs);
  }

  void control(ControlType type, std::uint64_t value) {
    if (!channel_up_) return;
    ControlMessage message;
    message.type = static_cast<std::uint8_t>(type);
    message.value = value;
    hostile_.put_control(message);
  }

  void write(Bytes bytes) {
    if (peer_ < 0) return;
    const ssize_t n = ::send(peer_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0) written_.insert(written_.end(), bytes.begin(), bytes.begin() + n);
  }

  // False: nothing is left to read, or the end.
  bool drain() {
    std::uint8_t bytes[4096];
    if (peer_ < 0) return false;
    const ssize_t n = ::recv(peer_, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n > 0) heard_.insert(heard_.end(), bytes, bytes + n);
    return n > 0;
  }

  // How many bytes each RESUME of the stream gives back, whether the hostile end has read it or
  // not.
  std::vector<std::size_t> given_back() const {
    static std::vector<std::uint8_t> waiting(1U << 20);
    const ssize_t n =
        peer_ < 0 ? 0 : ::recv(peer_, waiting.data(), waiting.size(), MSG_PEEK | MSG_DONTWAIT);
    std::vector<std::uint8_t> all = heard_;
    if (n > 0) all.insert(all.end(), waiting.begin(), waiting.begin() + n);
    std::vector<std::size_t> counts;
    for (auto at = all.begin();;) {
      at = std::search(at, all.end(), kTheirs.begin(), kTheirs.end());
      const auto left = static_cast<std::size_t>(all.end() - at);
      if (left < kTokenBytes) return counts;
      ResumeFrame resume;
      const bool is_resume = match_frame(kTheirs, &*at, left, resume) == FrameMatch::kResume;
      if (is_resume && resume.given_back > 0) counts.push_back(resume.given_back);
      at += is_resume ? kResumeBytes : kTokenBytes;
    }
  }

  void send(std::size_t n) {
    // A send that does not wait outlasts a switch, which nobody else here brings to its end.
    if (closed_ || stream_->tx_is_held()) return;
    std::uint8_t bytes[256];
    std::memset(bytes, 'p', sizeof bytes);
    send_all(*stream_, {bytes, n});
  }

  void receive(std::size_t n) {
    std::uint8_t bytes[256];
    iovec piece{bytes, n};
    const bool had_left = has_left();
    const ssize_t got = stream_->recv(&piece, 1, 0);
    const std::vector<std::size_t> given = got > 0 ? given_back() : std::vector<std::size_t>();
    for (ssize_t i = 0; i < got; ++i) {
      if ((bytes[i] & 0x80) != 0) {
        Early& early = early_[bytes[i] >> 4 & 7];
        early.least += had_left ? 1U : 0U;
        early.most += has_left() ? 1U : 0U;
      }
      delivered(bytes[i], given);
    }
  }

  bool has_left() const {
    return stream_->state() != State::kOnChannel && stream_->state() != State::kSwitching;
  }

  // Each byte that the program gets is the next one on TCP, frames apart and what was given back to
  // the hostile end, or, behind the token of its promotion, one of the ring.
  void delivered(std::uint8_t byte, const std::vector<std::size_t>& given) {
    if ((byte & 0x80) != 0) {
      if (!token_[byte >> 4 & 7]) complaint_ = "ring bytes are delivered, and no token was written";
      return;
    }
    // It may be known only later which of two equal bytes it was.
    std::vector<Place> next;
    const auto also = [this](Place place) {
      if (place.at > written_.size()) return;
      if (std::find(places_.begin(), places_.end(), place) == places_.end()) {
        places_.push_back(place);
      }
    };
    for (std::size_t i = 0; i < places_.size(); ++i) {
      const Place place = places_[i];
      if (const std::size_t frame = frame_at(place.at); frame > 0) {
        also({place.at + frame, place.given_back});
        const Early& early = early_[static_cast<std::size_t>(written_[place.at] - 0x10)];
        for (std::size_t again = early.least; again <= early.most && frame > kTokenBytes; ++again) {
          also({place.at + frame + again, place.given_back});
        }
      }
      if (place.given_back < given.size()) {
        // What stands before a frame.
        const std::size_t behind = place.at + given[place.given_back];
        if (behind < written_.size() && frame_at(behind) > 0) {
          also({behind, place.given_back + 1});
        }
      }
      if (place.at < written_.size() && written_[place.at] == byte) {
        next.push_back({place.at + 1, place.given_back});
      }
    }
    places_ = std::move(next);
    if (places_.empty()) complaint_ = "a byte is delivered that is not the next one on TCP";
  }

  std::size_t frame_at(std::size_t at) const {
    const std::size_t left = written_.size() - at;
    if (left < kTokenBytes) return 0;
    Nonce nonce;
    std::copy_n(written_.begin() + static_cast<std::ptrdiff_t>(at), nonce.size(), nonce.begin());
    if (nonce[0] < 0x10 || nonce[0] >= 0x10 + promotions_ || nonce[1] != 0x21) return 0;
    ResumeFrame resume;
    switch (match_frame(nonce, written_.data() + at, left, resume)) {
      case FrameMatch::kToken:
        return kTokenBytes;
      case FrameMatch::kResume:
        return kResumeBytes + resume.given_back;  // the stream's own, to be written again
      default:
        return 0;
    }
  }

  HostileMemory& hostile_;
  QuietHost host_;
  int fd_ = -1;
  int peer_ = -1;
  ShmSideIndex side_ = ShmSideIndex::kConnector;
  AgentStreamPtr stream_;
  Nonce nonce_{};
  unsigned promotion_ = 0;   // the last one
  unsigned promotions_ = 0;  // so far
  bool channel_up_ = false;
  bool closed_ = false;
  bool token_[kPromotions] = {};
  Early early_[kPromotions];
  std::vector<std::uint8_t> written_;      // the hostile end's TCP bytes
  std::vector<Place> places_ = {Place()};  // where in them the program may be
  std::vector<std::uint8_t> heard_;        // what the hostile end has read
  std::string complaint_;
};

}  // namespace

std::string try_stream(Bytes input) {
  static HostileMemory hostile;
  static const Bystander bystander;
  const DescriptorWatch descriptors;
  Reader reader(input.first(std::min<std::size_t>(input.size(), 2048)));
  const Role role = reader.byte() % 2 == 0 ? Role::kConnect : Role::kAccept;
  std::string complaint = Trial(hostile, role).run(reader);
  if (complaint.empty() && !bystander.is_well()) complaint = "another stream suffers";
  return complaint.empty() ? descriptors.complaint() : complaint;
}

}  // namespace ringroad::fuzz
