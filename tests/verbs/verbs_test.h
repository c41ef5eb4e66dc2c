// A client's and a server's transport in one process, and the channel between them.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>

#include "tests/verbs/fixture.h"

namespace ringroad::verbs_test {

inline constexpr std::uint32_t kRing = 64 * 1024;

class VerbsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (server_address().empty() || client_address().empty()) {
      GTEST_SKIP() << "no RDMA device: start this with integration/softroce/run";
    }
    client_ = std::make_unique<Side>();
    server_ = std::make_unique<Side>();
    ASSERT_TRUE(client_->loaded()) << reason_name(client_->load_failure());
    ASSERT_TRUE(server_->loaded()) << reason_name(server_->load_failure());
    server_->accept_params.nonce = nonce_of(100);
  }

  void listen() {
    ASSERT_EQ(server_->transport().listen(endpoint(server_address(), kPort)), Reason::kNone);
  }

  // The promotion's outcome at the client.
  Side::Outcome& promote(const ConnectParams& params,
                         std::chrono::milliseconds limit = std::chrono::seconds(15)) {
    id_ = client_->connect(params);
    EXPECT_TRUE(serve_until({client_.get(), server_.get()},
                            [&] { return client_->outcome(id_).ended; }, limit));
    return client_->outcome(id_);
  }

  void make_channels(std::uint32_t ring = kRing) {
    ASSERT_NO_FATAL_FAILURE(listen());
    // An emulated machine that is kept waiting by its host can miss a promotion's deadline.
    for (int attempt = 1; promote(connect_params(ring)).reason == Reason::kTimeout && attempt < 3;
         ++attempt) {
      std::printf("promotion %d timed out, asking again\n", attempt);
    }
    Side::Outcome& outcome = client_->outcome(id_);
    ASSERT_EQ(outcome.reason, Reason::kNone) << reason_name(outcome.reason);
    ASSERT_TRUE(serve_until({client_.get(), server_.get()},
                            [&] { return server_->outcome(server_->last_request).ended; }));
    a_ = std::move(outcome.channel);
    b_ = std::move(server_->outcome(server_->last_request).channel);
    ASSERT_NE(a_, nullptr);
    ASSERT_NE(b_, nullptr);
  }

  std::unique_ptr<Side> client_;
  std::unique_ptr<Side> server_;
  std::unique_ptr<Channel> a_;  // the client's
  std::unique_ptr<Channel> b_;
  PromotionId id_ = 0;
};

}  // namespace ringroad::verbs_test
