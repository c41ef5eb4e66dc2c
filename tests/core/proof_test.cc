// Proofs of a shared key: the hash that they are made of, what they depend on, and what a promotion does
// with them.
#include "rsocket-core/protocol/proof.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "tests/core/stream_pair.h"

namespace ringroad {
namespace {

using test::StreamPair;

std::string hex(const Digest& digest) {
  std::string out;
  for (const std::uint8_t byte : digest) {
    char text[3];
    std::snprintf(text, sizeof text, "%02x", byte);
    out += text;
  }
  return out;
}

std::string hash_of(const std::string& text) { return hex(sha256(text.data(), text.size())); }

// FIPS 180-4's examples (NIST, "SHA-256 examples"), and the million times "a" of FIPS 180-2.
TEST(Sha256Test, GivesTheStandardsExamples) {
  EXPECT_EQ(hash_of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hash_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hash_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hash_of(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256Test, DoesNotDependOnHowTheBytesCome) {
  const std::string text(200, 'x');
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    Sha256 hash;
    hash.add(text.data(), cut);
    hash.add(text.data() + cut, text.size() - cut);
    ASSERT_EQ(hex(hash.finish()), hash_of(text)) << cut;
  }
}

// RFC 4231, cases 1, 2, 3 and 6.
TEST(HmacTest, GivesTheStandardsExamples) {
  const auto hmac = [](const std::string& key, const std::string& text) {
    return hex(hmac_sha256(key.data(), key.size(), text.data(), text.size()));
  };
  EXPECT_EQ(hmac(std::string(20, '\x0b'), "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hmac("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hmac(std::string(20, '\xaa'), std::string(50, '\xdd')),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  EXPECT_EQ(hmac(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

struct Said {
  SharedKey key = SharedKey::of("a secret of some length", 23);
  Hello connector;
  Hello listener;
  FourTuple tuple;

  Said() {
    connector.nonce.fill(1);
    listener.nonce.fill(2);
    tuple.local.port = 40'000;
    tuple.remote.port = 3306;
  }
  Proof proof(ProofOf what) const { return make_proof(key, what, connector, listener, tuple); }
};

TEST(ProofTest, DependsOnEverythingThatTheEndsHaveSaid) {
  std::set<Proof> seen;
  std::size_t made = 0;
  const auto make = [&](const auto& change) {
    Said said;
    change(said);
    for (const ProofOf what : {ProofOf::kAnswer, ProofOf::kSwitch}) {
      seen.insert(said.proof(what));
      ++made;
    }
  };
  make([](Said&) {});
  make([](Said& said) { said.key = SharedKey::of("another secret", 14); });
  make([](Said& said) { said.connector.nonce[14] ^= 1; });
  make([](Said& said) { said.listener.nonce[14] ^= 1; });
  make([](Said& said) { said.connector.rkey ^= 1; });
  make([](Said& said) { said.listener.ring_addr ^= 1; });
  make([](Said& said) { said.tuple.local.port ^= 1; });
  make([](Said& said) { said.tuple.remote.addr.bytes[15] ^= 1; });
  make([](Said& said) { said.tuple = said.tuple.reversed(); });
  make([](Said& said) { std::swap(said.connector, said.listener); });
  EXPECT_EQ(seen.size(), made) << "one of them serves in the place of another";
}

TEST(ProofTest, OfARequestDoesNotServeAsAnAnswer) {
  Said said;
  std::memset(static_cast<void*>(&said.listener), 0, sizeof said.listener);
  EXPECT_NE(said.proof(ProofOf::kRequest), said.proof(ProofOf::kAnswer));
  EXPECT_NE(said.proof(ProofOf::kRequest), said.proof(ProofOf::kSwitch));
}

TEST(ProofTest, OfAnAnswerByPathIsForOneSocket) {
  const Said said;
  const auto by_path = [&](std::uint32_t socket) {
    return make_proof(said.key, ProofOf::kAnswerByPath, said.connector, said.listener, said.tuple, socket);
  };
  EXPECT_EQ(by_path(7), by_path(7));
  EXPECT_NE(by_path(7), by_path(8));
  EXPECT_NE(by_path(0), said.proof(ProofOf::kAnswer));
  EXPECT_EQ(make_proof(said.key, ProofOf::kAnswer, said.connector, said.listener, said.tuple, 7),
            said.proof(ProofOf::kAnswer))
      << "the others have nothing of it";
}

TEST(ProofTest, IsZeroWithoutAKeyAndNeverWithOne) {
  Said said;
  EXPECT_NE(said.proof(ProofOf::kRequest), 0U);
  said.key = SharedKey{};
  EXPECT_EQ(said.proof(ProofOf::kRequest), 0U);
}

// ---- What the ends of a stream do with it

struct Proofs {
  Proof connector;
  Proof listener;
};

void channels_up(StreamPair& p, Proofs proofs) {
  p.start();
  auto [a, b] = make_shm_pair(p.ring_bytes);
  ASSERT_NE(a, nullptr);
  a->set_switch_proof(proofs.connector);
  b->set_switch_proof(proofs.listener);
  p.a->channel_up(std::move(a), p.b_nonce);
  p.b->channel_up(std::move(b), p.a_nonce);
}

TEST(ProofOfSwitch, ThatIsRightLeadsToTheChannel) {
  StreamPair p;
  ASSERT_NO_FATAL_FAILURE(channels_up(p, {5, 5}));
  EXPECT_TRUE(p.pump_until([&] {
    return p.a->state() == State::kOnChannel && p.b->state() == State::kOnChannel;
  }));
}

class WrongProofOfSwitch : public testing::TestWithParam<Proofs> {};

TEST_P(WrongProofOfSwitch, IsDeclinedBeforeTheListenerHasStoppedOrWrittenAnything) {
  StreamPair p;
  ASSERT_NO_FATAL_FAILURE(channels_up(p, GetParam()));
  EXPECT_TRUE(p.pump_until([&] {
    return p.a->state() == State::kOnTcp && p.b->state() == State::kOnTcp;
  }));
  EXPECT_EQ(p.b->reason(), Reason::kWrongKey);
  EXPECT_EQ(p.a->reason(), Reason::kPeerGaveUp);
  // Nothing but the program's bytes is on TCP.
  EXPECT_EQ(test::send_text(*p.b, "from b"), 6);
  EXPECT_EQ(test::send_text(*p.a, "from a"), 6);
  ASSERT_TRUE(test::readable(p.a_fd, 1000));
  ASSERT_TRUE(test::readable(p.b_fd, 1000));
  EXPECT_EQ(test::recv_text(*p.a, 100), "from b");
  EXPECT_EQ(test::recv_text(*p.b, 100), "from a");
}

INSTANTIATE_TEST_SUITE_P(All, WrongProofOfSwitch,
                         testing::Values(Proofs{5, 6}, Proofs{0, 6}, Proofs{5, 0}));

}  // namespace
}  // namespace ringroad
