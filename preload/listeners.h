// Listeners that the policy has a rule for: the agent answers promotion requests for them.
//
// Thread rule: any thread, and not in a handler of a signal.
#pragma once

namespace ringroad::preload::listeners {

// listen(2) is called. True if the library answers promotion requests for it from now on. `waits`: the
// first of them is answered when this returns. Changes errno.
bool consider(int fd, bool waits) noexcept;
// The program shows that it is about to accept on `fd`, which is not managed, and which the process did not
// listen() on: the program before it in this process did, or another one passed it over a Unix socket. If
// it is a listener that the policy has a rule for, the library answers for it from now on, or from soon
// after. Keeps errno.
[[gnu::cold]] void consider_unknown(int fd) noexcept;

}  // namespace ringroad::preload::listeners
