#include "rsocket-core/protocol/wire.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <vector>

namespace ringroad {
namespace {

Nonce counting_nonce() {
  Nonce nonce;
  for (std::size_t i = 0; i < nonce.size(); ++i) nonce[i] = static_cast<std::uint8_t>(0x10 + i);
  return nonce;
}

TEST(NonceTest, IsDifferentEachTime) {
  std::set<Nonce> seen;
  for (int i = 0; i < 1000; ++i) {
    Nonce nonce{};
    ASSERT_TRUE(make_nonce(nonce));
    EXPECT_TRUE(seen.insert(nonce).second);
  }
}

TEST(NonceTest, UsesAllItsBytes) {
  Nonce any{};
  for (int i = 0; i < 100; ++i) {
    Nonce nonce{};
    ASSERT_TRUE(make_nonce(nonce));
    for (std::size_t b = 0; b < nonce.size(); ++b) {
      any[b] = static_cast<std::uint8_t>(any[b] | nonce[b]);
    }
  }
  EXPECT_EQ(std::count(any.begin(), any.end(), 0), 0);
}

// The bytes are the protocol: what stands where is spelled out here once more.
TEST(FrameTest, TokenIsTheNonceAndItsKind) {
  std::uint8_t bytes[kTokenBytes];
  encode_token(counting_nonce(), bytes);
  const std::uint8_t expected[] = {0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17,
                                   0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 1};
  EXPECT_EQ(std::memcmp(bytes, expected, sizeof expected), 0);
}

TEST(FrameTest, ResumeIsTheNonceItsKindTheOffsetTheReasonAndWhetherItWantsAnAnswer) {
  std::uint8_t bytes[kResumeBytes];
  std::memset(bytes, 0xff, sizeof bytes);
  encode_resume(counting_nonce(), {0x0102030405060708, Reason::kOperator, true}, bytes);
  const std::uint8_t expected[] = {0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a,
                                   0x1b, 0x1c, 0x1d, 0x1e, 2,    8,    7,    6,    5,    4,    3,
                                   2,    1,    30,   1,    0,    0,    0,    0,    0,    0};
  EXPECT_EQ(std::memcmp(bytes, expected, sizeof expected), 0);
}

TEST(FrameTest, MatchesATokenFromItsFirstByteOn) {
  std::uint8_t bytes[64] = {};
  encode_token(counting_nonce(), bytes);
  ResumeFrame resume;
  for (std::size_t n = 0; n < kTokenBytes; ++n) {
    EXPECT_EQ(match_frame(counting_nonce(), bytes, n, resume), FrameMatch::kPartial) << n;
  }
  for (std::size_t n = kTokenBytes; n < sizeof bytes; ++n) {
    EXPECT_EQ(match_frame(counting_nonce(), bytes, n, resume), FrameMatch::kToken) << n;
  }
}

TEST(FrameTest, MatchesAResumeOnlyWhenItIsComplete) {
  std::uint8_t bytes[64] = {};
  encode_resume(counting_nonce(), {1234567, Reason::kQpError, true}, bytes);
  ResumeFrame resume;
  for (std::size_t n = 0; n < kResumeBytes; ++n) {
    EXPECT_EQ(match_frame(counting_nonce(), bytes, n, resume), FrameMatch::kPartial) << n;
  }
  ASSERT_EQ(match_frame(counting_nonce(), bytes, kResumeBytes, resume), FrameMatch::kResume);
  EXPECT_EQ(resume.consumed, 1234567u);
  EXPECT_EQ(resume.reason, Reason::kQpError);
  EXPECT_TRUE(resume.answer);
}

TEST(FrameTest, TakesAnythingElseForApplicationBytesAsSoonAsItDiffers) {
  std::uint8_t good[kResumeBytes];
  encode_resume(counting_nonce(), {7, Reason::kExit}, good);
  ResumeFrame resume;
  for (std::size_t i = 0; i < kResumeBytes; ++i) {
    if (i >= 16 && i < 25) continue;  // any offset and any reason may stand there
    std::uint8_t bytes[kResumeBytes];
    std::memcpy(bytes, good, sizeof bytes);
    bytes[i] ^= 0x80;
    EXPECT_EQ(match_frame(counting_nonce(), bytes, kResumeBytes, resume), FrameMatch::kOther) << i;
    if (i <= kNonceBytes) {
      EXPECT_EQ(match_frame(counting_nonce(), bytes, i + 1, resume), FrameMatch::kOther) << i;
    }
  }
}

TEST(FrameTest, SaysHowMuchIsGivenBackToThePeerThatItWaitsFor) {
  std::uint8_t bytes[kResumeBytes];
  encode_resume(counting_nonce(), {7, Reason::kFork, true, 0x12345678}, bytes);
  ResumeFrame resume;
  ASSERT_EQ(match_frame(counting_nonce(), bytes, sizeof bytes, resume), FrameMatch::kResume);
  EXPECT_EQ(resume.given_back, 0x12345678U);
  encode_resume(counting_nonce(), {7, Reason::kFork, false, 1}, bytes);
  EXPECT_EQ(match_frame(counting_nonce(), bytes, sizeof bytes, resume), FrameMatch::kOther);
}

TEST(FrameTest, KnowsOnlyTwoKinds) {
  std::uint8_t bytes[kResumeBytes] = {};
  encode_token(counting_nonce(), bytes);
  ResumeFrame resume;
  for (unsigned kind = 0; kind < 256; ++kind) {
    bytes[kNonceBytes] = static_cast<std::uint8_t>(kind);
    const FrameMatch match = match_frame(counting_nonce(), bytes, sizeof bytes, resume);
    EXPECT_EQ(match == FrameMatch::kOther, kind != 1 && kind != 2) << kind;
  }
}

TEST(FrameTest, ReadsAnUnknownReasonAsABadRequest) {
  std::uint8_t bytes[kResumeBytes];
  encode_resume(counting_nonce(), {7, static_cast<Reason>(200)}, bytes);
  ResumeFrame resume;
  ASSERT_EQ(match_frame(counting_nonce(), bytes, sizeof bytes, resume), FrameMatch::kResume);
  EXPECT_EQ(resume.reason, Reason::kBadRequest);
}

TEST(FrameTest, TheNonceOfAnotherPromotionIsApplicationBytes) {
  Nonce other = counting_nonce();
  other[14] ^= 1;
  std::uint8_t bytes[kTokenBytes];
  encode_token(other, bytes);
  ResumeFrame resume;
  EXPECT_EQ(match_frame(counting_nonce(), bytes, sizeof bytes, resume), FrameMatch::kOther);
}

// ---- Hello and Refusal

std::vector<std::uint8_t> bytes_of(const Hello& hello) {
  std::vector<std::uint8_t> bytes(sizeof hello);
  std::memcpy(bytes.data(), &hello, sizeof hello);
  return bytes;
}

Hello good_hello() {
  Hello hello;
  hello.tcp_port = 0x1234;
  hello.ring_addr = 0x1122334455667788;
  hello.rkey = 0xa1a2a3a4;
  hello.ring_bytes = 65536;
  hello.credits = 0x0102;
  hello.nonce = counting_nonce();
  return hello;
}

TEST(HelloTest, StandsWhereTheDrawingSays) {
  const std::vector<std::uint8_t> bytes = bytes_of(good_hello());
  const std::uint8_t expected[48] = {
      'R',  'R',  'R',  '1',  1,    0,    0x34, 0x12, 0x88, 0x77, 0x66, 0x55,
      0x44, 0x33, 0x22, 0x11, 0xa4, 0xa3, 0xa2, 0xa1, 0,    0,    1,    0,
      0x02, 0x01, 0,    0,    31,   0,    0,    0,    0x10, 0x11, 0x12, 0x13,
      0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 1};
  ASSERT_EQ(bytes.size(), sizeof expected);
  EXPECT_EQ(std::memcmp(bytes.data(), expected, sizeof expected), 0);
}

TEST(HelloTest, ReadsWhatWasWritten) {
  std::vector<std::uint8_t> bytes = bytes_of(good_hello());
  bytes.resize(56, 0xcc);  // CM pads private data
  Hello out;
  ASSERT_EQ(parse_hello(bytes.data(), bytes.size(), out), Reason::kNone);
  EXPECT_EQ(bytes_of(out), bytes_of(good_hello()));
}

TEST(HelloTest, RefusesWhatItDoesNotUnderstandAndLeavesTheOutputAlone) {
  const auto verdict = [](const Hello& hello, std::size_t size = sizeof(Hello)) {
    Hello out;
    out.rkey = 77;
    const std::vector<std::uint8_t> bytes = bytes_of(hello);
    const Reason reason = parse_hello(bytes.data(), size, out);
    EXPECT_EQ(out.rkey, 77u);
    return reason;
  };
  Hello hello = good_hello();
  EXPECT_EQ(verdict(hello, sizeof hello - 1), Reason::kBadRequest);
  EXPECT_EQ(verdict(hello, 0), Reason::kBadRequest);
  hello.magic ^= 0x100;
  EXPECT_EQ(verdict(hello), Reason::kBadRequest);
  hello = good_hello();
  hello.tcp_port = 0;
  EXPECT_EQ(verdict(hello), Reason::kBadRequest);
  for (const std::uint32_t ring : {0u, 4095u, 5000u, 0x80000000u, 0xffffffffu}) {
    hello = good_hello();
    hello.ring_bytes = ring;
    EXPECT_EQ(verdict(hello), Reason::kBadRequest) << ring;
  }
}

Hello of_versions(std::uint16_t lowest, std::uint8_t highest) {
  Hello hello = good_hello();
  hello.version = lowest;
  hello.highest = highest;
  return hello;
}

Reason verdict_of(const Hello& hello) {
  Hello out;
  return parse_hello(&hello, sizeof hello, out);
}

TEST(HelloTest, IsTakenFromAPeerThatSpeaksAVersionThatThisEndSpeaksToo) {
  EXPECT_EQ(verdict_of(of_versions(1, 1)), Reason::kNone);
  EXPECT_EQ(verdict_of(of_versions(1, 255)), Reason::kNone) << "the common one is used";
  EXPECT_EQ(verdict_of(of_versions(1, 0)), Reason::kNone) << "a build from before the range";
  EXPECT_EQ(verdict_of(of_versions(kHighestVersion, 9)), Reason::kNone);
  EXPECT_EQ(verdict_of(of_versions(kHighestVersion + 1, 9)), Reason::kVersion);
  EXPECT_EQ(verdict_of(of_versions(kHighestVersion + 1, 0)), Reason::kVersion);
}

TEST(HelloTest, ARangeThatIsNoneIsMalformed) {
  EXPECT_EQ(verdict_of(of_versions(0, 1)), Reason::kBadRequest);
  EXPECT_EQ(verdict_of(of_versions(0, 0)), Reason::kBadRequest);
  EXPECT_EQ(verdict_of(of_versions(2, 1)), Reason::kBadRequest);
  EXPECT_EQ(verdict_of(of_versions(65535, 255)), Reason::kBadRequest);
}

TEST(HelloTest, BothEndsUseTheHighestCommonVersionAndWhatBothKnow) {
  const Agreement same = agreement_with(Hello{});
  EXPECT_EQ(same.version, kHighestVersion);
  EXPECT_EQ(same.features, kFeatures);
  EXPECT_TRUE(same.has(Feature::kGivenBack));
  Hello newer = of_versions(1, 255);
  newer.features = 0xffffffff;
  EXPECT_EQ(agreement_with(newer).version, kHighestVersion);
  EXPECT_EQ(agreement_with(newer).features, kFeatures) << "what only the peer knows is nothing";
  Hello older = of_versions(1, 0);
  older.features = 0;
  EXPECT_EQ(agreement_with(older).version, 1);
  EXPECT_FALSE(agreement_with(older).has(Feature::kGivenBack)) << "a silent peer may not know it";
}

TEST(HelloTest, SurvivesRandomBytes) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 100'000; ++round) {
    std::vector<std::uint8_t> bytes = bytes_of(good_hello());
    for (std::uint64_t i = random() % 4; i > 0; --i) {
      bytes[random() % bytes.size()] = static_cast<std::uint8_t>(random());
    }
    bytes.resize(random() % 64);
    Hello out;
    if (parse_hello(bytes.data(), bytes.size(), out) == Reason::kNone) {
      ASSERT_GE(bytes.size(), sizeof out);
      ASSERT_NE(out.tcp_port, 0);
      ASSERT_TRUE(std::has_single_bit(out.ring_bytes));
    }
  }
}

TEST(RefusalTest, CarriesAReason) {
  Refusal refusal;
  refusal.reason = static_cast<std::uint8_t>(Reason::kUntrackedIo);
  EXPECT_EQ(parse_refusal(&refusal, sizeof refusal), Reason::kUntrackedIo);
  refusal.reason = 255;
  EXPECT_EQ(parse_refusal(&refusal, sizeof refusal), Reason::kBadRequest);
}

TEST(RefusalTest, IsJustARefusalWhenItIsNotOurs) {
  Refusal refusal;
  EXPECT_EQ(parse_refusal(nullptr, 8), Reason::kPeerRefused);
  EXPECT_EQ(parse_refusal(&refusal, sizeof refusal - 1), Reason::kPeerRefused);
  refusal.magic = 0;
  EXPECT_EQ(parse_refusal(&refusal, sizeof refusal), Reason::kPeerRefused);
}

TEST(RedirectTest, SaysWhereToAsk) {
  Rendezvous where;
  for (std::size_t i = 0; i < where.token.size(); ++i) where.token[i] = static_cast<std::uint8_t>(i);
  where.rdma_port = 0x1234;
  const Redirect redirect = make_redirect(where);
  std::uint8_t bytes[sizeof redirect];
  std::memcpy(bytes, &redirect, sizeof redirect);
  EXPECT_EQ(bytes[6], static_cast<std::uint8_t>(Reason::kRedirect));
  EXPECT_EQ(bytes[8], 0x34);
  EXPECT_EQ(bytes[9], 0x12);
  for (std::size_t i = 10; i < 16; ++i) EXPECT_EQ(bytes[i], 0) << i;
  EXPECT_EQ(std::memcmp(bytes + 16, where.token.data(), where.token.size()), 0);
  Rendezvous read;
  ASSERT_TRUE(parse_redirect(bytes, sizeof bytes, read));
  EXPECT_EQ(read.token, where.token);
  EXPECT_EQ(read.rdma_port, where.rdma_port);
  EXPECT_EQ(parse_refusal(bytes, sizeof bytes), Reason::kRedirect) << "for a reader that reads no further";
}

TEST(RedirectTest, IsNoneIfItIsShortOrForeignOrLeadsNowhere) {
  Rendezvous where;
  where.rdma_port = 1;
  const Redirect good = make_redirect(where);
  const auto read = [](const Redirect& redirect, std::size_t n) {
    Rendezvous out;
    return parse_redirect(&redirect, n, out);
  };
  EXPECT_TRUE(read(good, sizeof good));
  EXPECT_FALSE(read(good, sizeof good - 1));
  EXPECT_FALSE(read(good, sizeof(Refusal)));
  Redirect bad = good;
  bad.refusal.magic ^= 1;
  EXPECT_FALSE(read(bad, sizeof bad));
  bad = good;
  ++bad.refusal.version;
  EXPECT_TRUE(read(bad, sizeof bad)) << "it is the same in every version";
  bad = good;
  bad.refusal.reason = static_cast<std::uint8_t>(Reason::kBusy);
  EXPECT_FALSE(read(bad, sizeof bad));
  EXPECT_FALSE(read(make_redirect(Rendezvous{}), sizeof(Redirect)));
  Rendezvous out;
  EXPECT_FALSE(parse_redirect(nullptr, 0, out));
}

}  // namespace
}  // namespace ringroad
