// Which peers share a protection domain: what an rkey of one is good for at another.
#include <infiniband/verbs.h>

#include <memory>

#include "rsocket-core/channel/verbs/device.h"
#include "tests/verbs/verbs_test.h"

namespace ringroad::verbs_test {
namespace {

TEST(ProtectionDomainsTest, AreOneAnAddress) {
  int count = 0;
  ibv_device** const devices = ibv_get_device_list(&count);
  if (devices == nullptr || count == 0) {
    if (devices != nullptr) ibv_free_device_list(devices);
    GTEST_SKIP() << "no RDMA device: start this with integration/softroce/run";
  }
  const std::shared_ptr<ibv_context> device(ibv_open_device(devices[0]), [](ibv_context* context) {
    if (context != nullptr) ibv_close_device(context);
  });
  ibv_free_device_list(devices);
  ASSERT_NE(device, nullptr);
  ProtectionDomains domains;
  Address one;
  Address other;
  one.bytes[15] = 1;
  other.bytes[15] = 2;
  const auto first = domains.get(device, one);
  const auto again = domains.get(device, one);
  const auto second = domains.get(device, other);
  ASSERT_NE(first, nullptr);
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(first->get(), again->get());
  EXPECT_NE(first->get(), second->get());
}

}  // namespace
}  // namespace ringroad::verbs_test
