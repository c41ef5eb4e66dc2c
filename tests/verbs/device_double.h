// A device of plain memory in the place of libibverbs' and librdmacm's, for two channels in one thread: what
// is posted is done at once. A program that is linked with it needs no RDMA, and what is counted of its
// messages holds no provider's code (everything of it is in namespace `provider`, or starts with ibv_ or
// rdma_).
//
// It does what VerbsChannel needs: reliable connections, RDMA writes with immediate, sends, completions.
// It checks no keys and knows no errors: what they do is tested with real devices.
#pragma once

#include <rdma/rdma_cma.h>

#include <memory>
#include <utility>
#include <vector>

#include "rsocket-core/channel/channel.h"

namespace ringroad::test {

// The two ends of a connection: connector and listener. Null, null if there is no memory.
std::pair<std::unique_ptr<Channel>, std::unique_ptr<Channel>> make_verbs_pair(
    std::size_t ring_bytes);

// The device has so many completion vectors. Those of the completion queues that were made since the last
// call, in their order.
inline constexpr int kDoublesVectors = 4;
std::vector<int> taken_vectors();

// With what access memory was registered since the last call, in that order. And whether the device refuses
// access of IBV_ACCESS_OPTIONAL_RANGE.
std::vector<unsigned> taken_accesses();
void refuse_optional_access(bool yes);

}  // namespace ringroad::test
