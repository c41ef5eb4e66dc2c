// What an operator does about a reason: beside its text in reason.h, which the library's log has too.
#pragma once

#include "rsocket-core/protocol/reason.h"

namespace ringroad::cli {

struct ReasonHelp {
  Reason reason;
  const char* more;  // what its text does not say: whole sentences, or empty
  const char* remedy;
};

// REQUIRES: reason < Reason::kCount.
const ReasonHelp& help_of(Reason reason) noexcept;

}  // namespace ringroad::cli
