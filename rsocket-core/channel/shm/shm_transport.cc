#include "rsocket-core/channel/shm/shm_transport.h"

#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include "rsocket-core/base/above_limit.h"
#include "rsocket-core/base/deferred_close.h"
#include "rsocket-core/base/sys.h"

namespace ringroad {
namespace {

constexpr int kEventsPerDispatch = 64;

}  // namespace

// ---- Life

Transport* make_shm_transport(TransportEvents& events, PromotionId (*next_id)() noexcept,
                              Reason& why, OwnerOf owner_of, const char* directory) noexcept {
  int both[] = {
      sys::open_high([&] { return sys::epoll_create1(EPOLL_CLOEXEC); }),
      sys::open_high([&] {
        return sys::call(SYS_timerfd_create, CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
      })};
  move_above_limit(both, 2);
  auto& [epoll_fd, timer_fd] = both;
  epoll_event event{};
  event.events = EPOLLIN;
  if (epoll_fd >= 0 && timer_fd >= 0 &&
      sys::epoll_ctl(epoll_fd, EPOLL_CTL_ADD, timer_fd, &event) == 0) {
    auto* transport =
        new (std::nothrow) ShmTransport(events, next_id, owner_of, directory, epoll_fd, timer_fd);
    if (transport != nullptr) return transport;
    errno = ENOMEM;
  }
  why = shm_reason_of(errno);
  close_own(epoll_fd);
  close_own(timer_fd);
  return nullptr;
}

ShmTransport::ShmTransport(TransportEvents& events, PromotionId (*next_id)() noexcept,
                           OwnerOf owner_of, const char* directory, int epoll_fd,
                           int timer_fd) noexcept
    : events_(events),
      next_id_(next_id),
      owner_of_(owner_of),
      directory_(directory),
      epoll_fd_(epoll_fd),
      timer_fd_(timer_fd) {}

ShmTransport::~ShmTransport() {
  while (!listeners_.empty()) end_listener(listeners_.begin(), false);
  handshakes_.clear();
  sys::close_quietly(timer_fd_);
  sys::close_quietly(epoll_fd_);
}

ShmTransport::Handshake::~Handshake() {
  close_foreign_socket(fd);
  close_own(memfd);
  close_own(own_event);
  close_own(peer_event);
}

bool ShmTransport::watch(int op, int fd, Key key, std::uint32_t events) noexcept {
  epoll_event event{};
  event.events = events;
  event.data.u64 = key;
  return sys::epoll_ctl(epoll_fd_, op, fd, &event) == 0;
}

// Closing would do, were it not for a forked child that may hold a copy.
void ShmTransport::unwatch(int fd) noexcept {
  epoll_event event{};
  sys::epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, fd, &event);
}

// Takes `fd` over; null (with errno) closes it.
ShmTransport::Handshake* ShmTransport::add(Stage stage, int fd) noexcept {
  const Key key = ++last_key_;
  Handshake* handshake = nullptr;
  try {
    handshake = &handshakes_[key];
  } catch (const std::bad_alloc&) {
    close_foreign_socket(fd);
    errno = ENOMEM;
    return nullptr;
  }
  handshake->stage = stage;
  handshake->fd = fd;
  if (receive_credentials(fd) && watch(EPOLL_CTL_ADD, fd, key, EPOLLIN)) return handshake;
  const int error = errno;
  handshakes_.erase(key);
  errno = error;
  return nullptr;
}

ShmTransport::Handshakes::iterator ShmTransport::find(PromotionId id) noexcept {
  return std::find_if(handshakes_.begin(), handshakes_.end(), [&](const auto& entry) {
    return entry.second.stage != Stage::kSilent && entry.second.id == id;
  });
}

void ShmTransport::drop(Handshakes::iterator it) noexcept {
  if (it->second.fd >= 0) unwatch(it->second.fd);
  handshakes_.erase(it);
}

void ShmTransport::drop_and_report(Handshakes::iterator it, Reason reason,
                                   Reason peer_reason) noexcept {
  const PromotionId id = it->second.id;
  drop(it);
  events_.on_refused(*this, id, reason, peer_reason);
}

unsigned ShmTransport::count(Stage stage, Key listener) const noexcept {
  return static_cast<unsigned>(
      std::count_if(handshakes_.begin(), handshakes_.end(), [&](const auto& entry) {
        return entry.second.stage == stage && entry.second.listener == listener;
      }));
}

// ---- Dispatch

void ShmTransport::dispatch() noexcept {
  // One at a time: what one event leads to may end the subject of the next.
  for (int i = 0; i < kEventsPerDispatch; ++i) {
    epoll_event event;
    if (sys::epoll_wait(epoll_fd_, &event, 1, 0) != 1) break;
    const Key key = event.data.u64;
    if (key == 0) {
      sys::drain_eventfd(timer_fd_);
      timer_ns_ = 0;
      expire(sys::now_ns());
    } else if (listeners_.count(key) != 0) {
      accept_some(key);
    } else if (const auto it = handshakes_.find(key); it != handshakes_.end()) {
      switch (it->second.stage) {
        case Stage::kSilent:
        case Stage::kRequested:
          on_listener_side(it);
          break;
        case Stage::kConnecting:
          on_answer(it);
          break;
        case Stage::kHeld:
          drop(it);
          break;
        case Stage::kAnswered:
          break;
      }
    }
  }
  set_timer();
}

void ShmTransport::expire(std::int64_t now_ns) noexcept {
  for (;;) {
    const auto it = std::find_if(handshakes_.begin(), handshakes_.end(), [&](const auto& entry) {
      return entry.second.deadline_ns != 0 && entry.second.deadline_ns <= now_ns;
    });
    if (it == handshakes_.end()) break;
    switch (it->second.stage) {
      case Stage::kConnecting:
        take_back_hello(it->second);
        drop_and_report(it, Reason::kTimeout, Reason::kNone);
        break;
      case Stage::kAnswered:
        hand_over(it);
        break;
      case Stage::kSilent:
      case Stage::kRequested:
      case Stage::kHeld:
        drop(it);
        break;
    }
  }
  if (resume_ns_ == 0 || resume_ns_ > now_ns) return;
  resume_ns_ = 0;
  for (auto& [key, listener] : listeners_) {
    if (!listener.paused) continue;
    listener.paused = false;
    watch(EPOLL_CTL_MOD, listener.fd, key, EPOLLIN);
  }
}

void ShmTransport::set_timer() noexcept {
  std::int64_t next = resume_ns_;
  for (const auto& [key, handshake] : handshakes_) {
    if (handshake.deadline_ns == 0) continue;
    if (next == 0 || handshake.deadline_ns < next) next = handshake.deadline_ns;
  }
  if (next == timer_ns_) return;
  timer_ns_ = next;
  itimerspec when{};
  when.it_value.tv_sec = next / 1'000'000'000;
  when.it_value.tv_nsec = next % 1'000'000'000;
  sys::call(SYS_timerfd_settime, timer_fd_, TFD_TIMER_ABSTIME, &when, nullptr);
}

void ShmTransport::cancel(PromotionId id) noexcept {
  const auto it = find(id);
  if (it == handshakes_.end()) return;
  if (it->second.stage == Stage::kConnecting) take_back_hello(it->second);
  drop(it);
}

// ---- Both sides

Proof ShmTransport::answer_proof(const Handshake& handshake, const SharedKey& key, const Hello& answer,
                                 std::uint32_t socket) noexcept {
  const FourTuple as_connector_sees =
      handshake.stage == Stage::kConnecting ? handshake.tuple : handshake.tuple.reversed();
  const ProofOf what = handshake.by_path ? ProofOf::kAnswerByPath : ProofOf::kAnswer;
  return make_proof(key, what, handshake.connector, answer, as_connector_sees, socket);
}

// Takes the socket out of `handshake` when the channel needs it.
Reason ShmTransport::build(Handshake& handshake, ShmSideIndex side) noexcept {
  Reason why = Reason::kNoMemory;
  unwatch(handshake.fd);
  ShmWake wake;
  const bool is_listener = side == ShmSideIndex::kListener;
  const Hello& peer = is_listener ? handshake.connector : handshake.answer;
  const bool one = agreement_with(peer).has(Feature::kOneEvent);
  if (handshake.peer_event >= 0 && one) {
    int& event = is_listener ? handshake.own_event : handshake.peer_event;
    wake = ShmWake::over_one_event(std::exchange(event, -1), is_listener);
  } else if (handshake.peer_event >= 0) {
    wake = ShmWake::over_events(std::exchange(handshake.own_event, -1),
                                std::exchange(handshake.peer_event, -1));
  } else {
    wake = ShmWake::over_socket(std::exchange(handshake.fd, -1), why);
    if (!wake) return why;
  }
  handshake.channel.reset(new (std::nothrow)
                              ShmChannel(std::move(handshake.memory), side, std::move(wake)));
  return handshake.channel != nullptr ? Reason::kNone : Reason::kNoMemory;
}

bool ShmTransport::hold(Key key, Handshake& handshake) noexcept {
  if (!handshake.by_path || handshake.stage != Stage::kAnswered || handshake.fd < 0) return false;
  if (count(Stage::kHeld, handshake.listener) >= kMaxRequests) return false;
  if (!watch(EPOLL_CTL_ADD, handshake.fd, key, EPOLLIN)) return false;
  handshake.stage = Stage::kHeld;
  handshake.id = 0;
  handshake.deadline_ns = sys::now_ns() + kAnswerNs;
  handshake.memory.reset();
  return true;
}

void ShmTransport::hand_over(Handshakes::iterator it) noexcept {
  const PromotionId id = it->second.id;
  const Nonce nonce = it->second.peer_nonce;
  std::unique_ptr<Channel> channel = std::move(it->second.channel);
  if (!hold(it->first, it->second)) drop(it);
  events_.on_channel(*this, id, nonce, std::move(channel));
}

}  // namespace ringroad
