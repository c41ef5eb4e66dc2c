#include "preload/binding.h"

#include <dlfcn.h>

#include <cerrno>

#include "preload/absent.h"

namespace ringroad::preload {

void bind(Real& to, LookUp* look_up) noexcept {
#define RINGROAD_FUNCTION(ret, name, params)                                             \
  {                                                                                      \
    const auto function = reinterpret_cast<ret(*) params>(look_up(#name));               \
    to.name = function != nullptr ? function : absent::instead<&Real::name>();           \
  }
#define RINGROAD_ALIAS(ret, name, target, params, args)
#include "preload/functions.def"
#undef RINGROAD_FUNCTION
#undef RINGROAD_ALIAS
}

void bind_real() noexcept {
  const int saved = errno;
  // Idempotent, so two threads may do it at once.
  bind(real_functions, [](const char* name) { return dlsym(RTLD_NEXT, name); });
  __atomic_store_n(&real_bound, true, __ATOMIC_RELEASE);
  errno = saved;
}

}  // namespace ringroad::preload
