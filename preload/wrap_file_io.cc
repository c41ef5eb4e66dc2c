// Bytes that do not pass through the caller's memory: sendfile and splice; and those that libc moves later,
// in threads of its own.
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "preload/arguments.h"
#include "preload/cancellation.h"
#include "preload/fd_table.h"
#include "preload/real.h"
#include "preload/stream_target.h"
#include "rsocket-core/base/faults.h"
#include "rsocket-core/base/sys.h"

using namespace ringroad;
using namespace ringroad::preload;

namespace {

// What a sendfile reads from: at an offset without waiting for somebody; by the kernel alone; not at all, as
// the kernel says before it looks at the stream.
enum class Origin : std::uint8_t { kPlainFile, kKernels, kRefused };
Origin origin_of(int fd, const off_t* offset) noexcept {
  struct stat status;
  off_t at = 0;
  if ((offset != nullptr && !faults::load(at, offset)) || at < 0 ||
      sys::call(SYS_fstat, fd, &status) != 0) {
    return Origin::kRefused;
  }
  return S_ISREG(status.st_mode) ? Origin::kPlainFile : Origin::kKernels;
}

// As sendfile(2). By way of a buffer: reading a file may sleep, which nobody may do over the ring,
// behind the stream's lock.
ssize_t send_file(Stream& stream, int in, off_t* offset, size_t n) {
  // A thread of the program's may have a small stack.
  constexpr std::size_t kPiece = 64 * 1024;
  struct Buffer {
    explicit Buffer(std::size_t n) noexcept {
      if (n <= sizeof few) return;
      void* const pages =
          mmap(nullptr, kPiece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (pages == MAP_FAILED) return;
      data = static_cast<char*>(pages);
      size = kPiece;
    }
    ~Buffer() {
      if (data != few) munmap(data, size);
    }
    char few[512];
    char* data = few;
    std::size_t size = sizeof few;
  } buffer(n);
  off_t at = offset != nullptr ? *offset : sys::call(SYS_lseek, in, 0, SEEK_CUR);
  // As the kernel judges it: where it would end, and then what one call moves.
  if (n > static_cast<std::size_t>(std::numeric_limits<off_t>::max() - at)) {
    errno = EINVAL;
    return -1;
  }
  n = std::min(n, arguments::kMostBytes);
  std::size_t done = 0;
  while (done < n) {
    const long got = sys::call(SYS_pread64, in, buffer.data, std::min(buffer.size, n - done), at);
    if (got < 0 && done == 0) return -1;
    if (got <= 0) break;
    const iovec piece{buffer.data, static_cast<std::size_t>(got)};
    const ssize_t sent = stream.send(&piece, 1, 0, Stream::Sleep::kUncancellable);
    if (sent < 0 && (done == 0 || errno == ECANCELED)) return -1;
    if (sent <= 0) break;
    done += static_cast<std::size_t>(sent);
    at += sent;
    if (sent < got) break;
  }
  if (offset == nullptr) {
    sys::call(SYS_lseek, in, at, SEEK_SET);
  } else if (!faults::store(offset, at)) {
    errno = EFAULT;  // as the kernel has it, the bytes are gone
    return -1;
  }
  return static_cast<ssize_t>(done);
}

RR_NOINLINE ssize_t sendfile_once(int out, int in, off_t* offset, size_t n) {
  StreamTarget target(out);
  const Origin origin = target.ours() ? origin_of(in, offset) : Origin::kKernels;
  if (origin == Origin::kPlainFile) return send_file(*target.stream, in, offset, n);
  if (origin == Origin::kKernels) target.to_kernel(Reason::kDescriptorUse);
  return cancellation::caught(real().sendfile, out, in, offset, n);
}

ssize_t stream_sendfile(int out, int in, off_t* offset, size_t n) {
  return made_anew([&] { return sendfile_once(out, in, offset, n); });
}

}  // namespace

ssize_t rr_sendfile(int out, int in, off_t* offset, size_t n) {
  if (!fd_table::managed(out)) {
    hand_back(in);  // to a pipe this is splice()
    return real().sendfile(out, in, offset, n);
  }
  return cancellation::no_point<stream_sendfile>(out, in, offset, n);
}

ssize_t rr_sendfile64(int out, int in, off64_t* offset, size_t n) {
  static_assert(sizeof(off_t) == sizeof(off64_t));
  return rr_sendfile(out, in, offset, n);
}

ssize_t rr_splice(int in, off64_t* in_offset, int out, off64_t* out_offset, size_t n,
                  unsigned flags) {
  hand_back(in);
  hand_back(out);
  return real().splice(in, in_offset, out, out_offset, n, flags);
}

// ---- Requests that threads of libc's carry out later, by calls that nobody can interpose.

int rr_aio_read(aiocb* request) {
  if (request != nullptr) hand_back(request->aio_fildes);
  return real().aio_read(request);
}

int rr_aio_write(aiocb* request) {
  if (request != nullptr) hand_back(request->aio_fildes);
  return real().aio_write(request);
}

int rr_lio_listio(int mode, aiocb* const requests[], int count, sigevent* event) {
  for (int i = 0; requests != nullptr && i < count; ++i) {
    const aiocb* request = requests[i];
    if (request != nullptr && request->aio_lio_opcode != LIO_NOP) hand_back(request->aio_fildes);
  }
  return real().lio_listio(mode, requests, count, event);
}
