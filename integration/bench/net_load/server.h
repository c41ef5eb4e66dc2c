#pragma once

#include "integration/bench/net_load/address.h"

namespace net_load {

// Says "listening", and then serves one client after the other until SIGTERM. Throws what goes wrong.
void serve(const Address& address);

}  // namespace net_load
