// Listeners that the process did not listen() on: the program before it in this process did, or another one passed
// them over a Unix socket.
#pragma once

namespace ringroad::preload {

// The program shows that it is about to accept on `fd`, which is not managed. If it is a listener that the policy
// has a rule for, the library answers for it from now on, or from soon after.
[[gnu::cold]] void consider_unknown_listener(int fd) noexcept;

}  // namespace ringroad::preload
