// A short dialogue over a channel that goes wrong at each of its steps in turn: whatever fails, no
// byte is lost, repeated or reordered, and neither end hangs.
#include <functional>

#include "rsocket-core/base/sys.h"
#include "tests/core/fault_channel.h"
#include "tests/core/stream_pair.h"

namespace ringroad::test {
namespace {

struct Outcome {
  bool finished = false;
  std::string a_got;
  std::string b_got;
  std::uint64_t steps_a = 0;
  std::uint64_t steps_b = 0;
  std::string states;
};

const std::string kRequest = "request with some length to it;";
const std::string kReply = "and a reply that is longer than the request was, so that sizes differ;";
constexpr int kRounds = 4;

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

// a asks, b replies, kRounds times; then both end their output and read to the end.
Outcome run_dialogue(std::vector<Fault> faults_a, std::vector<Fault> faults_b) {
  StreamPair p(4096);
  Outcome out;
  p.start();
  auto [ca, cb] = make_shm_pair(p.ring_bytes);
  auto fault_a = std::make_unique<FaultChannel>(std::move(ca), std::move(faults_a));
  auto fault_b = std::make_unique<FaultChannel>(std::move(cb), std::move(faults_b));
  // The channels may be gone with their streams' return to TCP: read the counts as we go.
  FaultChannel* watch_a = fault_a.get();
  FaultChannel* watch_b = fault_b.get();
  p.a->channel_up(std::move(fault_a), p.b_nonce);
  p.b->channel_up(std::move(fault_b), p.a_nonce);

  std::string a_to_send = repeated(kRequest, 1);
  int a_rounds = 1;
  int b_rounds = 0;
  std::string b_to_send;
  bool a_ended = false;
  bool b_ended = false;
  bool a_eof = false;
  bool b_eof = false;
  const auto push = [](AgentStream& s, std::string& text) {
    if (text.empty()) return;
    const ssize_t n = send_text_unless_held(s, text);
    if (n > 0) text.erase(0, static_cast<std::size_t>(n));
  };
  const auto pull = [](AgentStream& s, std::string& got, bool& eof) {
    const std::string piece = recv_text(s, 11);  // so that some stay in the ring
    if (piece.empty()) eof = true;
    if (!piece.empty() && piece[0] != '<') got += piece;
  };
  const bool done = p.pump_until([&] {
    if (p.a->state() == State::kOnChannel) out.steps_a = watch_a->steps();
    if (p.b->state() == State::kOnChannel) out.steps_b = watch_b->steps();
    for (AgentStream* s : {p.a.get(), p.b.get()}) {
      if (s->state() == State::kSwitching && sys::now_ns() > s->interest().deadline_ns) {
        s->deadline_passed();
      }
    }
    push(*p.a, a_to_send);
    push(*p.b, b_to_send);
    if (!b_eof) pull(*p.b, out.b_got, b_eof);
    if (!a_eof) pull(*p.a, out.a_got, a_eof);
    if (b_rounds < kRounds && out.b_got.size() >= kRequest.size() * unsigned(b_rounds + 1)) {
      b_to_send += kReply;
      ++b_rounds;
    }
    if (a_rounds < kRounds && out.a_got.size() >= kReply.size() * unsigned(a_rounds)) {
      a_to_send += kRequest;
      ++a_rounds;
    }
    if (!a_ended && a_rounds == kRounds && a_to_send.empty()) {
      a_ended = p.a->shutdown(SHUT_WR) == 0;
    }
    if (!b_ended && b_rounds == kRounds && b_to_send.empty()) {
      b_ended = p.b->shutdown(SHUT_WR) == 0;
    }
    return a_eof && b_eof;
  });
  out.finished = done;
  out.states = std::string(state_name(p.a->state())) + "/" + reason_name(p.a->reason()) + " " +
               state_name(p.b->state()) + "/" + reason_name(p.b->reason());
  return out;
}

void expect_complete(const Outcome& out, const std::string& what) {
  EXPECT_TRUE(out.finished) << what << ": " << out.states << "; a got " << out.a_got.size()
                            << ", b got " << out.b_got.size();
  EXPECT_EQ(repeated(kRequest, kRounds), out.b_got) << what << ": " << out.states;
  EXPECT_EQ(repeated(kReply, kRounds), out.a_got) << what << ": " << out.states;
}

class EveryStep : public ::testing::TestWithParam<FaultKind> {};

TEST_P(EveryStep, OfTheDialogueMayGoWrong) {
  const Outcome clean = run_dialogue({}, {});
  expect_complete(clean, "no fault");
  ASSERT_GT(clean.steps_a, 20U);
  ASSERT_GT(clean.steps_b, 20U);
  Fault fault;
  fault.kind = GetParam();
  fault.amount = 3;
  for (std::uint64_t step = 1; step <= clean.steps_a + 3; ++step) {
    fault.at = step;
    expect_complete(run_dialogue({fault}, {}), "a at " + std::to_string(step));
    expect_complete(run_dialogue({}, {fault}), "b at " + std::to_string(step));
    expect_complete(run_dialogue({fault}, {fault}), "both at " + std::to_string(step));
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, EveryStep,
                         ::testing::Values(FaultKind::kFail, FaultKind::kDuplicateControl,
                                           FaultKind::kDelay, FaultKind::kLimitCredit),
                         [](const auto& param_info) {
                           switch (param_info.param) {
                             case FaultKind::kFail: return "Fail";
                             case FaultKind::kDuplicateControl: return "DuplicateControl";
                             case FaultKind::kDelay: return "Delay";
                             default: return "LimitCredit";
                           }
                         });

}  // namespace
}  // namespace ringroad::test
