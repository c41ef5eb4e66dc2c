// The agent thread, with a transport that does what the test says.
#include "rsocket-core/agent/agent.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/eventfd.h>
#include <sys/un.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "rsocket-core/base/sys.h"
#include "rsocket-core/channel/shm/shm_channel.h"
#include "tests/core/stream_pair.h"

namespace ringroad::test {
namespace {

using namespace std::chrono_literals;

// Stands for the verbs transport. What the agent asks of it is kept for the test; what it tells the
// agent is told on the agent's thread.
class ToldTransport final : public Transport {
 public:
  explicit ToldTransport(TransportEvents& to) noexcept
      : events(to), event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  Carrier carrier() const noexcept override { return Carrier::kRdma; }
  int event_fd() const noexcept override { return event_; }
  void dispatch() noexcept override {
    sys::drain_eventfd(event_);
    std::deque<std::function<void()>> now;
    {
      const std::lock_guard lock(mutex_);
      now.swap(to_do_);
    }
    for (const auto& action : now) action();
  }
  Reason listen(const Endpoint& local) noexcept override {
    change([&] { answers_for_.insert(local); });
    return Reason::kNone;
  }
  void unlisten(const Endpoint& local) noexcept override {
    change([&] { answers_for_.erase(local); });
  }
  Reason listen_alone(Rendezvous&, int&) noexcept override { return Reason::kBusy; }
  void connect(PromotionId id, const ConnectParams& params) noexcept override {
    change([&] {
      asked_.push_back(id);
      ports_[id] = params.tuple.local.port;
    });
  }
  void accept(PromotionId id, const AcceptParams&) noexcept override {
    change([&] { accepted_.push_back(id); });
  }
  void refuse(PromotionId id, Reason reason) noexcept override {
    change([&] { refused_.emplace_back(id, reason); });
  }
  void redirect(PromotionId, const Rendezvous&) noexcept override {}
  void cancel(PromotionId id) noexcept override {
    change([&] { cancelled_.push_back(id); });
  }

  // ---- The test's side
  void tell(std::function<void()> action) {
    {
      const std::lock_guard lock(mutex_);
      to_do_.push_back(std::move(action));
    }
    sys::signal_eventfd(event_);
  }
  template <typename Condition>
  bool wait_for(Condition condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, 10s, condition);
  }
  // Whether anything at all is asked of it meanwhile.
  bool is_left_alone_for(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, time) == std::cv_status::timeout;
  }
  std::vector<PromotionId> asked() { return copy(asked_); }
  std::vector<PromotionId> accepted() { return copy(accepted_); }
  std::vector<PromotionId> cancelled() { return copy(cancelled_); }
  std::vector<std::pair<PromotionId, Reason>> refused() { return copy(refused_); }
  bool answers_for(const Endpoint& local) { return copy(answers_for_).count(local) != 0; }
  bool wait_no_answers_for(const Endpoint& local) {
    return wait_for([&] { return answers_for_.count(local) == 0; });
  }
  bool wait_asked(std::size_t n) {
    return wait_for([&] { return asked_.size() >= n; });
  }

  TransportEvents& events;

 private:
  template <typename Change>
  void change(Change what) {
    const std::lock_guard lock(mutex_);
    what();
    changed_.notify_all();
  }
  template <typename T>
  T copy(const T& what) {
    const std::lock_guard lock(mutex_);
    return what;
  }

  int event_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> to_do_;
  std::set<Endpoint> answers_for_;
  std::vector<PromotionId> asked_;
  std::map<PromotionId, std::uint16_t> ports_;
  std::vector<PromotionId> accepted_;
  std::vector<PromotionId> cancelled_;
  std::vector<std::pair<PromotionId, Reason>> refused_;
};

// A process without a policy, whose verbs transport is the test's.
class TestHost final : public AgentHost {
 public:
  Transport* load_verbs(TransportEvents& events, Reason&) noexcept override {
    made = new ToldTransport(events);
    return made;
  }
  stats::Segment* segment() noexcept override { return statistics; }
  SharedKey key_for(const FourTuple&) noexcept override { return SharedKey::of("one", 3); }

  stats::Segment* statistics = nullptr;
  std::atomic<ToldTransport*> made{nullptr};  // on the agent's thread
};

// One agent for all tests: it lives as long as the process, and so does its segment.
struct Process {
  ToldTransport* transport = nullptr;
  Agent* agent = nullptr;
  stats::Segment* segment = nullptr;

  static Process& the() {
    static Process* process = new Process;
    return *process;
  }

  // As `ringroad set`.
  void set(control::Mode mode) {
    static std::uint64_t serial = 0;
    control::Request request;
    request.mode = static_cast<std::uint16_t>(mode);
    request.serial = ++serial;
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    std::strcpy(to.sun_path, (std::string(segment->path()) + control::kSuffix).c_str());
    const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ASSERT_EQ(
        ::sendto(fd, &request, sizeof request, 0, reinterpret_cast<sockaddr*>(&to), sizeof to),
        static_cast<ssize_t>(sizeof request))
        << strerrorname_np(errno);
    ::close(fd);
    for (int i = 0; i < 10'000 && segment->header().operator_serial.load() != serial; ++i) {
      poll(nullptr, 0, 1);
    }
    ASSERT_EQ(segment->header().operator_serial.load(), serial);
    ASSERT_EQ(segment->header().operator_mode.load(), static_cast<std::uint32_t>(mode));
  }

 private:
  Process() {
    char name[] = "/tmp/ringroad-agent-XXXXXX";
    directory_ = mkdtemp(name);
    std::atexit([] { std::filesystem::remove_all(the().directory_); });
    segment = stats::Segment::create(directory_.c_str(), "agent_test");
    static constinit TestHost host;
    host.statistics = segment;
    agent = new Agent(host);
    // The first listener makes the agent load its transport, and returns when that is done.
    Endpoint local;
    local.port = 1;
    agent->listen(local, false, true);
    transport = host.made;
  }

  std::string directory_;
};

class AgentTest : public testing::Test {
 protected:
  struct Connection {
    std::pair<int, int> fds = tcp_pair();
    StreamPtr stream;
    Connection() = default;
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;
    ~Connection() {
      if (stream != nullptr) {
        const bool over = stream->close_by_program(false);
        Process::the().agent->stream_closed(*stream, over);
      }
      ::close(fds.first);
      ::close(fds.second);
    }
  };

  void TearDown() override {
    connections_.clear();
    process_.set(control::Mode::kAuto);
  }

  // All have the same peer, as a pool of connections has.
  Stream& open(Role role, bool uses = true) {
    connections_.push_back(std::make_unique<Connection>());
    Connection& made = *connections_.back();
    const bool connects = role == Role::kConnect;
    const int fd = connects ? made.fds.first : made.fds.second;
    FourTuple tuple;
    Endpoint::local_of(fd, tuple.local);
    Endpoint::peer_of(fd, tuple.remote);
    if (connects) tuple.remote.port = 4711;
    StreamConfig config;
    config.via_rdma = true;
    config.promote_messages = 1;
    made.stream = process_.agent->open_stream(fd, role, tuple, config, true);
    if (uses) made.stream->note_use(1, 1);
    return *made.stream;
  }

  void refuse(PromotionId id, Reason why) {
    transport().tell(
        [=, this] { transport().events.on_refused(transport(), id, Reason::kPeerRefused, why); });
  }
  // The other end of an accepted connection asks for a channel.
  PromotionId request(const Stream& stream) {
    PromotionRequest request{};
    request.tuple = stream.tuple();
    request.ring_bytes = 65536;
    const PromotionId id = Agent::next_promotion_id();
    transport().tell([=, this] { transport().events.on_request(transport(), id, request); });
    return id;
  }
  // One end of a channel whose other end is gone at once.
  void give_channel(PromotionId id) {
    transport().tell([=, this] {
      Nonce nonce{};
      transport().events.on_channel(transport(), id, nonce, std::move(make_shm_pair(65536).first));
    });
  }
  bool becomes(Stream& stream, State state) {
    for (int i = 0; i < 5000 && stream.state() != state; ++i) poll(nullptr, 0, 1);
    return stream.state() == state;
  }
  // Whatever the agent had to do before this is done.
  void settle() {
    std::atomic<bool> done{false};
    transport().tell([&] { done = true; });
    while (!done) poll(nullptr, 0, 1);
  }
  ToldTransport& transport() { return *process_.transport; }
  // Requests since the test began.
  std::vector<PromotionId> asked() {
    const std::vector<PromotionId> all = transport().asked();
    return {all.begin() + static_cast<std::ptrdiff_t>(asked_before_), all.end()};
  }
  bool wait_asked(std::size_t n) { return transport().wait_asked(asked_before_ + n); }

  Process& process_ = Process::the();
  const std::size_t asked_before_ = transport().asked().size();
  std::vector<std::unique_ptr<Connection>> connections_;
};

TEST_F(AgentTest, ARequestThatIsNotWantedAnyMoreIsCancelledAndItsChannelDropped) {
  Stream& stream = open(Role::kConnect);
  ASSERT_TRUE(wait_asked(1));
  const PromotionId first = asked()[0];
  process_.set(control::Mode::kTcp);
  ASSERT_TRUE(becomes(stream, State::kOnTcp));
  process_.set(control::Mode::kRdma);
  ASSERT_TRUE(wait_asked(2));
  const auto cancelled = transport().cancelled();
  EXPECT_NE(std::find(cancelled.begin(), cancelled.end(), first), cancelled.end());
  ASSERT_TRUE(becomes(stream, State::kConnecting));
  give_channel(first);
  settle();
  EXPECT_EQ(stream.state(), State::kConnecting) << "the second one's channel is to come";
  refuse(first, Reason::kKtls);
  settle();
  EXPECT_EQ(stream.state(), State::kConnecting) << "or its refusal";
}

TEST_F(AgentTest, AClosedListenerIsAnsweredForWhileWhatItAcceptedIsOpen) {
  for (const bool any_address : {false, true}) {
    Stream& stream = open(Role::kAccept);
    Endpoint listener;
    listener.port = stream.tuple().local.port;
    if (!any_address) listener = stream.tuple().local;
    process_.agent->listen(listener, false, true);
    EXPECT_TRUE(transport().answers_for(listener));
    process_.agent->unlisten(listener);
    settle();
    EXPECT_TRUE(transport().answers_for(listener));
    const PromotionId id = request(stream);
    settle();
    EXPECT_EQ(transport().accepted().back(), id);
    connections_.clear();
    EXPECT_TRUE(transport().wait_no_answers_for(listener));
  }
}

TEST_F(AgentTest, AListenerThatIsClosedAndOpenedAgainIsAnsweredForWithoutConnections) {
  const Endpoint listener = open(Role::kAccept).tuple().local;
  process_.agent->listen(listener, false, true);
  process_.agent->unlisten(listener);
  process_.agent->listen(listener, false, true);
  connections_.clear();
  settle();
  EXPECT_TRUE(transport().answers_for(listener));
  process_.agent->unlisten(listener);
  EXPECT_TRUE(transport().wait_no_answers_for(listener));
}

TEST_F(AgentTest, AClosedListenerLeavesItsAddressToTheOneThatListensThereNow) {
  Stream& stream = open(Role::kAccept);
  const Endpoint listener = stream.tuple().local;
  process_.agent->listen(listener, false, true);
  process_.agent->unlisten(listener);
  PromotionRequest for_another{};
  for_another.tuple = stream.tuple();
  ++for_another.tuple.remote.port;
  const PromotionId id = Agent::next_promotion_id();
  transport().tell([&] { transport().events.on_request(transport(), id, for_another); });
  EXPECT_TRUE(transport().wait_no_answers_for(listener));
  ASSERT_FALSE(transport().refused().empty());
  EXPECT_EQ(transport().refused().back(), std::make_pair(id, Reason::kBusy));
}

TEST_F(AgentTest, ARequestByPathThatProvesNoKeyEndsNoListenerAndTakesNoPlace) {
  Stream& stream = open(Role::kAccept);
  const Endpoint listener = stream.tuple().local;
  process_.agent->listen(listener, false, true);
  process_.agent->unlisten(listener);
  PromotionRequest request{};
  request.tuple = stream.tuple();
  ++request.tuple.remote.port;
  request.by_path = true;
  const auto ask = [&](const SharedKey& key) {
    request.proof = make_proof(key, ProofOf::kRequest, request.connector, {}, request.tuple.reversed());
    const PromotionId id = Agent::next_promotion_id();
    transport().tell([&, id] { transport().events.on_request(transport(), id, request); });
    settle();
    return id;
  };
  for (const SharedKey& key : {SharedKey{}, SharedKey::of("two", 3)}) {
    const PromotionId id = ask(key);
    ASSERT_FALSE(transport().refused().empty());
    EXPECT_EQ(transport().refused().back(), std::make_pair(id, Reason::kWrongKey)) << "at once";
    EXPECT_TRUE(transport().answers_for(listener));
  }
  const PromotionId id = ask(SharedKey::of("one", 3));
  EXPECT_EQ(transport().refused().back(), std::make_pair(id, Reason::kBusy));
  EXPECT_TRUE(transport().wait_no_answers_for(listener));
}

TEST_F(AgentTest, AStreamThatIsAskedForTwiceHasOneRequest) {
  Stream& stream = open(Role::kConnect);
  ASSERT_TRUE(wait_asked(1));
  const auto cancelled = transport().cancelled().size();
  // Its program and the operator ask at the same time.
  process_.agent->start_promotion(stream);
  process_.set(control::Mode::kRdma);
  stream.note_use(1000, 1000);
  settle();
  settle();
  EXPECT_EQ(stream.state(), State::kConnecting);
  EXPECT_EQ(asked().size(), 1U);
  EXPECT_EQ(transport().cancelled().size(), cancelled);
}

TEST_F(AgentTest, OneStreamAsksForAllThatThePeerKeeps) {
  constexpr std::size_t kStreams = 5;
  for (std::size_t i = 0; i < kStreams; ++i) open(Role::kConnect);
  ASSERT_TRUE(wait_asked(kStreams));
  for (const PromotionId id : asked()) refuse(id, Reason::kOperator);
  ASSERT_TRUE(wait_asked(kStreams + 1));
  settle();
  EXPECT_EQ(asked().size(), kStreams + 1) << "one";
  for (const auto& connection : connections_) connection->stream->note_use(1000, 1000);
  settle();
  EXPECT_EQ(asked().size(), kStreams + 1) << "whatever is sent";
  give_channel(asked().back());
  ASSERT_TRUE(wait_asked(2 * kStreams)) << "then all others";
}

TEST_F(AgentTest, StreamsThatHaveEndedAreNotKeptInMindForThePeer) {
  open(Role::kConnect);
  ASSERT_TRUE(wait_asked(1));
  refuse(asked().back(), Reason::kOperator);
  ASSERT_TRUE(wait_asked(2)) << "the one that lives goes and asks for all";
  constexpr std::size_t kMany = 1000;
  const std::size_t before = asked().size();
  const std::size_t used = mallinfo2().uordblks;
  for (std::size_t i = 0; i < kMany; ++i) {
    open(Role::kConnect);
    ASSERT_TRUE(wait_asked(before + i + 1));
    refuse(asked().back(), Reason::kOperator);
    settle();
    connections_.pop_back();
  }
  settle();
  // A weak_ptr holds the memory of what std::make_shared() has made.
  EXPECT_LT(mallinfo2().uordblks, used + kMany * sizeof(Stream) / 2);
}

TEST_F(AgentTest, TheStreamThatIsSentForAllIsAnotherOneEachTime) {
  open(Role::kConnect);
  open(Role::kConnect);
  ASSERT_TRUE(wait_asked(2));
  for (const PromotionId id : asked()) refuse(id, Reason::kOperator);
  for (std::size_t round = 3; round < 6; ++round) {
    const std::int64_t began = sys::now_ns();
    ASSERT_TRUE(wait_asked(round));
    // Refused at once: the peer has too many that wait. Not a loop of requests.
    EXPECT_TRUE(round == 3 || sys::now_ns() - began > 100'000'000);
    refuse(asked().back(), Reason::kOperator);
  }
  // The envoy that is on its way may close; the other one goes on.
  ASSERT_TRUE(wait_asked(6));
  const std::size_t on_its_way = connections_[0]->stream->state() == State::kConnecting ? 0 : 1;
  connections_.erase(connections_.begin() + static_cast<std::ptrdiff_t>(on_its_way));
  const std::int64_t began = sys::now_ns();
  ASSERT_TRUE(wait_asked(7));
  EXPECT_LT(sys::now_ns() - began, 2'000'000'000);
}

TEST_F(AgentTest, WhatItsOwnOperatorKeepsIsNotAskedForThoughThePeerLetsItOff) {
  open(Role::kConnect);
  open(Role::kConnect);
  ASSERT_TRUE(wait_asked(2));
  for (const PromotionId id : asked()) refuse(id, Reason::kOperator);
  ASSERT_TRUE(wait_asked(3)) << "one is on its way, the other one is next";
  process_.set(control::Mode::kTcp);
  settle();
  EXPECT_TRUE(transport().is_left_alone_for(400ms));
  EXPECT_EQ(asked().size(), 3U);
  for (const auto& connection : connections_) {
    EXPECT_EQ(connection->stream->operator_hold(), Reason::kOperator);
  }
}

TEST_F(AgentTest, ARequestForAKeptStreamWaitsUntilItIsLetOff) {
  Stream& stream = open(Role::kAccept);
  process_.set(control::Mode::kTcp);
  const auto refused = transport().refused().size();
  const auto accepted = transport().accepted().size();
  const PromotionId id = request(stream);
  settle();
  EXPECT_TRUE(transport().is_left_alone_for(1300ms)) << "longer than for an accept()";
  EXPECT_EQ(transport().refused().size(), refused);
  process_.set(control::Mode::kAuto);
  for (int i = 0; i < 1000 && transport().accepted().size() == accepted; ++i) poll(nullptr, 0, 1);
  ASSERT_EQ(transport().accepted().size(), accepted + 1);
  EXPECT_EQ(transport().accepted().back(), id);
}

TEST_F(AgentTest, ARequestForAKeptStreamIsRefusedInTheEnd) {
  Stream& stream = open(Role::kAccept);
  process_.set(control::Mode::kTcp);
  const auto before = transport().refused().size();
  const PromotionId id = request(stream);
  for (int i = 0; i < 5000 && transport().refused().size() == before; ++i) poll(nullptr, 0, 1);
  ASSERT_EQ(transport().refused().size(), before + 1) << "before the other end's patience is over";
  EXPECT_EQ(transport().refused().back(), std::pair(id, Reason::kOperator));
}

TEST_F(AgentTest, ANewStreamIsKeptAsThoseThatAreThere) {
  process_.set(control::Mode::kTcp);
  Stream& stream = open(Role::kConnect);
  EXPECT_EQ(stream.operator_hold(), Reason::kOperator);
  settle();
  EXPECT_TRUE(asked().empty());
  process_.set(control::Mode::kRdma);
  ASSERT_TRUE(wait_asked(1));
  Stream& eager = open(Role::kConnect, false);
  eager.note_use(0, 0);  // connect() has returned: not a message yet
  ASSERT_TRUE(wait_asked(2));
}

}  // namespace
}  // namespace ringroad::test
