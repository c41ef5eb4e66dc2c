// Since glibc 2.18: destructors of thread_local objects, the last constructed first. For programs, and
// libraries that are never unloaded.
#include <pthread.h>
#include <stdlib.h>

struct Destructor {
  void (*call)(void*);
  void* object;
  struct Destructor* next;
};

static pthread_key_t of_thread;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void run(void* first) {
  struct Destructor* next = first;
  while (next != NULL) {
    // A destructor may construct others, which end before the rest.
    struct Destructor* const destructor = next;
    pthread_setspecific(of_thread, destructor->next);
    destructor->call(destructor->object);
    free(destructor);
    next = pthread_getspecific(of_thread);
  }
}

// The main thread ends by exit(), where keys have no destructors.
static void run_at_exit(void) { run(pthread_getspecific(of_thread)); }

static void begin(void) {
  if (pthread_key_create(&of_thread, run) != 0 || atexit(run_at_exit) != 0) abort();
}

int __cxa_thread_atexit_impl(void (*call)(void*), void* object, void* library);
int __cxa_thread_atexit_impl(void (*call)(void*), void* object, void* library) {
  (void)library;
  pthread_once(&once, begin);
  struct Destructor* const destructor = malloc(sizeof *destructor);
  if (destructor == NULL) return -1;
  *destructor = (struct Destructor){call, object, pthread_getspecific(of_thread)};
  return pthread_setspecific(of_thread, destructor);
}
