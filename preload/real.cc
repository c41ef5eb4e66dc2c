#include "preload/real.h"

#include <dlfcn.h>

#include <cerrno>

namespace ringroad::preload {

constinit Real real_functions;
bool real_bound = false;

void bind_real() noexcept {
  const int saved = errno;
  // Idempotent, so two threads may do it at once.
#define RINGROAD_FUNCTION(ret, name, params) \
  real_functions.name = reinterpret_cast<ret(*) params>(dlsym(RTLD_NEXT, #name));
#define RINGROAD_ALIAS(ret, name, target, params, args)
#include "preload/functions.def"
#undef RINGROAD_FUNCTION
#undef RINGROAD_ALIAS
  __atomic_store_n(&real_bound, true, __ATOMIC_RELEASE);
  errno = saved;
}

}  // namespace ringroad::preload

#define RINGROAD_FUNCTION(ret, name, params)
#define RINGROAD_ALIAS(ret, name, target, params, args) \
  ret rr_##name params { return rr_##target args; }
#include "preload/functions.def"
#undef RINGROAD_FUNCTION
#undef RINGROAD_ALIAS
