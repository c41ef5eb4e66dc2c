#include <dirent.h>
#include <sched.h>

#include "rsocket-core/base/deferred_close.h"
#include "tests/fuzz/target.h"

namespace ringroad::fuzz {

int count_descriptors() {
  // Strange ones are closed on threads of their own.
  while (foreign_closes_under_way() > 0) sched_yield();
  DIR* const listing = opendir("/proc/self/fd");
  if (listing == nullptr) return -1;
  int count = 0;
  while (readdir(listing) != nullptr) ++count;
  closedir(listing);
  return count;
}

}  // namespace ringroad::fuzz
