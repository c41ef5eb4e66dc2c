// What the policy may ask about this process.
//
// Thread rule: set_names() and set_labels() once, at the start; read_once() by the thread that loads the
// policy, before it is current; current() by any thread.
#pragma once

#include "policy/process.h"

namespace ringroad::preload::process_facts {

// The executable file's base name, that of argv[0], and the value of RINGROAD_LABELS, which may be null. All
// are kept.
void set_names(const char* program, const char* called) noexcept;
void set_labels(const char* labels) noexcept;

// Reads comm and cgroup from /proc, the first time that a policy asks for them. They hold until an exec, in
// children of a fork, too. A fact that cannot be read is not known. Allocates nothing and keeps errno.
void read_once() noexcept;

const policy::Process& current() noexcept;

}  // namespace ringroad::preload::process_facts
