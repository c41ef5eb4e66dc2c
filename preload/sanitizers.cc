// What the runtime of ThreadSanitizer is told, in a program that is built with it.
//
// It watches the copies of all libraries, but what orders them only in those that are built with it. So it
// would take each copy into and out of a ring for a race. This is its weak function for such a case. A
// program's own comes before it. Source: compiler-rt, tsan_interface.h and the suppression `called_from_lib`.
#include "preload/real.h"

extern "C" RR_EXPORT const char* __tsan_default_suppressions() {
  return "called_from_lib:libringroad.so\ncalled_from_lib:libringroad-verbs.so\n";
}
