// Since glibc 2.32.
#include <stddef.h>

// As long as these are, they are under the names of before.
extern const char* const _sys_errlist[];
extern int _sys_nerr;

static const char* const names[] = {
    [0] = "0",
#define ERROR_NAME(number, name) [number] = #name,
#include "error_names.inc"
};

const char* strerrordesc_np(int error);
const char* strerrordesc_np(int error) {
  return error >= 0 && error < _sys_nerr ? _sys_errlist[error] : NULL;
}

const char* strerrorname_np(int error);
const char* strerrorname_np(int error) {
  return error >= 0 && (size_t)error < sizeof names / sizeof names[0] ? names[error] : NULL;
}
