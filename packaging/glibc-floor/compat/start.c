// The start of executables. crt1.o of glibc 2.34 and later hands no constructors to libc, which finds
// them by itself; an older libc runs only what it is handed. Linked with --wrap=__libc_start_main.
#include <stddef.h>

typedef void Constructor(int, char**, char**);
typedef int Main(int, char**, char**);

// From crti.o and the linker. What is in .preinit_array is run by the loader.
extern void _init(void) __attribute__((visibility("hidden")));
extern Constructor* __init_array_start[] __attribute__((visibility("hidden")));
extern Constructor* __init_array_end[] __attribute__((visibility("hidden")));

static void construct(int argc, char** argv, char** environment) {
  _init();
  for (Constructor** next = __init_array_start; next != __init_array_end; ++next) {
    (*next)(argc, argv, environment);
  }
}

int __real___libc_start_main(Main*, int, char**, Constructor*, void (*)(void), void (*)(void), void*);

int __wrap___libc_start_main(Main* main, int argc, char** argv, Constructor* init,
                             void (*fini)(void), void (*loader_fini)(void), void* stack_end);
int __wrap___libc_start_main(Main* main, int argc, char** argv, Constructor* init,
                             void (*fini)(void), void (*loader_fini)(void), void* stack_end) {
  return __real___libc_start_main(main, argc, argv, init != NULL ? init : construct, fini,
                                  loader_fini, stack_end);
}
