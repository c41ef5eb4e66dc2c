#pragma once

#include "integration/bench/net_load/address.h"

namespace net_load {

// Connects so many times, says "connected", and then makes a run for each line of its input; what
// the run took is a line of JSON. Throws what goes wrong.
void ask(const Address& address, std::size_t connections);

}  // namespace net_load
