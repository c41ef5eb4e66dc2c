// Whether another process may have this one's memory, with descriptors of its own: a child of vfork(2), or of
// clone(2) with CLONE_VM and without CLONE_THREAD. Libc's posix_spawn, system and popen make such children,
// too, but let them call nothing that is interposed.
#pragma once

#include <atomic>

#include "rsocket-core/base/hints.h"

// Set before the first is made, and never taken back.
extern "C" RR_HIDDEN std::atomic<bool> rr_memory_was_lent;
