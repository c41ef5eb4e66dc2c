// Functions since glibc 2.33. Until then the headers made calls of __xstat() and its like out of them.
#include <sys/stat.h>

#ifdef __x86_64__
enum { kLayout = 1 };  // of struct stat, which has one layout with and without _FILE_OFFSET_BITS
#else
enum { kLayout = 0 };
#endif

int __xstat(int, const char*, struct stat*);
int __lxstat(int, const char*, struct stat*);
int __fxstat(int, int, struct stat*);
int __fxstatat(int, int, const char*, struct stat*, int);
_Static_assert(sizeof(struct stat) == sizeof(struct stat64), "one layout");

int stat(const char* path, struct stat* out) { return __xstat(kLayout, path, out); }
int lstat(const char* path, struct stat* out) { return __lxstat(kLayout, path, out); }
int fstat(int fd, struct stat* out) { return __fxstat(kLayout, fd, out); }
int fstatat(int fd, const char* path, struct stat* out, int flags) {
  return __fxstatat(kLayout, fd, path, out, flags);
}

int stat64(const char* path, struct stat64* out) { return stat(path, (struct stat*)out); }
int lstat64(const char* path, struct stat64* out) { return lstat(path, (struct stat*)out); }
int fstat64(int fd, struct stat64* out) { return fstat(fd, (struct stat*)out); }
int fstatat64(int fd, const char* path, struct stat64* out, int flags) {
  return fstatat(fd, path, (struct stat*)out, flags);
}
