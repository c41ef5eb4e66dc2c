// What C++ asks of threads.
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

// Since glibc 2.32: whether the process has one thread, so that std::shared_ptr can count without
// atomic instructions. False at all times is right at all times.
char __libc_single_threaded = 0;

// Since glibc 2.30. By the clock of the condition variable, which is CLOCK_REALTIME: when somebody sets it
// meanwhile the wait is too short or too long, as with std::condition_variable and an older glibc.
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const struct timespec* until) {
  if (clock == CLOCK_REALTIME) return pthread_cond_timedwait(condition, mutex, until);
  if (clock != CLOCK_MONOTONIC) return EINVAL;
  struct timespec there;
  struct timespec here;
  clock_gettime(CLOCK_MONOTONIC, &there);
  clock_gettime(CLOCK_REALTIME, &here);
  here.tv_sec += until->tv_sec - there.tv_sec;
  here.tv_nsec += until->tv_nsec - there.tv_nsec;
  if (here.tv_nsec < 0) {
    here.tv_nsec += 1000000000;
    --here.tv_sec;
  } else if (here.tv_nsec >= 1000000000) {
    here.tv_nsec -= 1000000000;
    ++here.tv_sec;
  }
  return pthread_cond_timedwait(condition, mutex, &here);
}
