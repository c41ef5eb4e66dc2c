// Finds libc's own functions.
#pragma once

#include "preload/real.h"

namespace ringroad::preload {

using LookUp = void*(const char* name);
// Fills `to` with what `look_up` finds, and for what it does not find with preload/absent.h: no member is
// null. bind_real() does so with what comes after this library.
void bind(Real& to, LookUp* look_up) noexcept;

}  // namespace ringroad::preload
