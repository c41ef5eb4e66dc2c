// While the device's libraries may make a call of libc's that is a cancellation point: read(2) of a
// completion event, write(2) of a command. The thread may be the program's, which another cancels, and no
// frame here can be unwound. What is requested meanwhile is found at the program's next cancellation point.
#pragma once

#include <pthread.h>

namespace ringroad {

class Uncancellable {
 public:
  Uncancellable() noexcept { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~Uncancellable() { pthread_setcancelstate(before_, nullptr); }
  Uncancellable(const Uncancellable&) = delete;
  Uncancellable& operator=(const Uncancellable&) = delete;

 private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

}  // namespace ringroad
