// What a channel asks of a device, of one that is a double.
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "tests/verbs/device_double.h"

namespace ringroad::test {
namespace {

TEST(DeviceUse, QueuePairsTakeTheCompletionVectorsInTurns) {
  taken_vectors();
  std::set<int> of_queue_pairs;
  for (int pairs = 0; pairs < kDoublesVectors / 2; ++pairs) {
    auto [a, b] = make_verbs_pair(64 * 1024);
    ASSERT_NE(a, nullptr);
    const std::vector<int> vectors = taken_vectors();
    ASSERT_EQ(vectors.size(), 4U) << "two queue pairs with two completion queues each";
    EXPECT_EQ(vectors[0], vectors[1]) << "one completion channel, one processor";
    EXPECT_EQ(vectors[2], vectors[3]);
    of_queue_pairs.insert({vectors[0], vectors[2]});
  }
  EXPECT_EQ(of_queue_pairs, (std::set<int>{0, 1, 2, 3}));
}

TEST(DeviceUse, TheReceiveRingAloneMayBeWrittenInAnyOrder) {
  constexpr unsigned kWritten = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  for (const bool refused : {false, true}) {
    refuse_optional_access(refused);
    taken_accesses();
    auto [a, b] = make_verbs_pair(64 * 1024);
    refuse_optional_access(false);
    ASSERT_NE(a, nullptr);
    const unsigned ring = refused ? kWritten : kWritten | IBV_ACCESS_RELAXED_ORDERING;
    const std::vector<unsigned> each{0, ring, IBV_ACCESS_LOCAL_WRITE};  // transmit, receive, control
    std::vector<unsigned> both = each;
    both.insert(both.end(), each.begin(), each.end());
    EXPECT_EQ(taken_accesses(), both) << refused;
  }
}

}  // namespace
}  // namespace ringroad::test
