// The policy that the process follows, and the edits of its files.
//
// Thread rule: load() once, before anything else; watch() and reload() on the agent thread (in a
// child of a fork on its own); current() by any thread at any time.
#pragma once

#include <cstddef>
#include <string>

#include "policy/policy.h"

namespace ringroad::preload::policy_file {

struct Outcome {
  enum class What { kSame, kAnother, kRefused } what = What::kSame;
  std::string detail;  // kRefused: the first error. kAnother: the files that were read.
};

// `named`: the value of RINGROAD_POLICY; kept. kRefused: there is no policy, and everything stays
// on TCP. May throw std::bad_alloc.
Outcome load(const char* named);

// Null: load() has found none. A policy that was once current lives as long as the process.
const policy::Policy* current() noexcept;

// A descriptor that is readable after whatever may be an edit (inotify(7)); -1: none can be had.
int watch() noexcept;
// It is not readable any more, until the next edit.
void take_events(int watch_fd) noexcept;
// What is there now, after an event or to be sure. kRefused: the policy that there was holds. May
// throw std::bad_alloc.
Outcome reload(int watch_fd);

}  // namespace ringroad::preload::policy_file
