// What std::random_device is made of: getentropy() since glibc 2.25, arc4random() since 2.36.
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

// Linux before 3.17 has no getrandom(2).
static ssize_t from_device(void* to, size_t length) {
  const int device = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
  if (device < 0) return -1;
  const ssize_t got = read(device, to, length);
  const int error = errno;
  close(device);
  errno = error;
  return got;
}

int getentropy(void* to, size_t length) {
  if (length > 256) {
    errno = EIO;
    return -1;
  }
  char* at = to;
  while (length > 0) {
    ssize_t got = getrandom(at, length, 0);
    if (got < 0 && errno == ENOSYS) got = from_device(at, length);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return -1;
    at += got;
    length -= (size_t)got;
  }
  return 0;
}

// It has no way to tell that there is no random number; glibc ends the process too.
uint32_t arc4random(void) {
  uint32_t value;
  if (getentropy(&value, sizeof value) != 0) abort();
  return value;
}
