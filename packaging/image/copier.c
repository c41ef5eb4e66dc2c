// The entry point of the image: copies a folder with all that is in it into another, and ends.
//
//   copier SOURCE TARGET
//
// A file is written beside its place, and takes it by a rename. A process that has mapped the file of before
// keeps that one, and two pods that copy into one folder of the host end with whole files. What it makes
// can be read by every user, whatever the umask: the database runs as another one.
//
// Built against musl, statically: the image has neither a libc nor a loader.
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { kDescriptors = 16 };

static const char* target;
static size_t source_length;  // of the path's part that is not copied
static int files;

static int fail(const char* what, const char* path) {
  fprintf(stderr, "copier: cannot %s %s: %s\n", what, path, strerror(errno));
  return 1;
}

// One that is there stays as it is: a volume is another user's.
static int make_folder(const char* path) {
  if (mkdir(path, 0755) != 0) return errno == EEXIST ? 0 : fail("make", path);
  return chmod(path, 0755) == 0 ? 0 : fail("change the mode of", path);
}

// 0, or -1 with errno.
static int copy_bytes(int from, int to) {
  static char bytes[1 << 16];
  for (ssize_t n; (n = read(from, bytes, sizeof bytes)) != 0;) {
    if (n < 0) return -1;
    for (ssize_t done = 0; done < n;) {
      const ssize_t written = write(to, bytes + done, (size_t)(n - done));
      if (written < 0) return -1;
      done += written;
    }
  }
  return 0;
}

static int copy_file(const char* from_path, const char* to_path, mode_t mode) {
  char temporary[PATH_MAX];
  const int length = snprintf(temporary, sizeof temporary, "%s.XXXXXX", to_path);
  if (length < 0 || (size_t)length >= sizeof temporary) {
    errno = ENAMETOOLONG;
    return fail("write", to_path);
  }
  const int from = open(from_path, O_RDONLY | O_CLOEXEC);
  if (from < 0) return fail("read", from_path);
  const int to = mkstemp(temporary);
  if (to < 0) {
    fail("make", temporary);
    close(from);
    return 1;
  }
  const mode_t all_read = (mode & S_IXUSR) != 0 ? 0755 : 0644;
  const int copied = copy_bytes(from, to) == 0 && fchmod(to, all_read) == 0;
  const int closed = close(to) == 0;
  close(from);
  if (copied && closed && rename(temporary, to_path) == 0) {
    ++files;
    return 0;
  }
  fail("write", to_path);
  unlink(temporary);
  return 1;
}

static int copy_entry(const char* path, const struct stat* status, int kind, struct FTW* walk) {
  (void)walk;
  char to[PATH_MAX];
  const int length = snprintf(to, sizeof to, "%s%s", target, path + source_length);
  if (length < 0 || (size_t)length >= sizeof to) {
    errno = ENAMETOOLONG;
    return fail("write", path);
  }
  if (kind == FTW_D) return make_folder(to);
  if (kind == FTW_F && S_ISREG(status->st_mode)) return copy_file(path, to, status->st_mode);
  errno = kind == FTW_DNR || kind == FTW_NS ? EACCES : EINVAL;  // nothing else is in the image
  return fail("copy", path);
}

int main(int argc, char** argv) {
  if (argc != 3) {
    fputs("usage: copier SOURCE TARGET\n", stderr);
    return 2;
  }
  target = argv[2];
  source_length = strlen(argv[1]);
  const int result = nftw(argv[1], copy_entry, kDescriptors, FTW_PHYS);
  if (result < 0) return fail("read", argv[1]);
  if (result == 0) printf("copier: %d files in %s\n", files, target);
  return result;
}
