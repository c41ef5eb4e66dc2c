// How much of a thread's stack a function needs, beyond what libc's own does. Measured by a thread on painted
// memory: how deep the paint is gone after the call.
#pragma once

#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "tests/preload/drivers/actor.h"

namespace ringroad::test {

// docs/compatibility.md, "Stack".
#if defined(RINGROAD_CHECKS) || !defined(__OPTIMIZE__)  // frames are larger
inline constexpr std::ptrdiff_t kBound = 8 * 1024;
#else
inline constexpr std::ptrdiff_t kBound = 1536;
#endif
// Of the call by which the library starts: it reads the policy.
inline constexpr std::ptrdiff_t kBoundOfTheFirst = 8 * kBound;

// Over RDMA the device's library has frames of its own.
inline std::ptrdiff_t bound_of_a_call() {
  const char* const via = std::getenv("RINGROAD_TEST_VIA");
  return via == nullptr || std::string_view(via) == "shm" ? kBound : 8 * kBound;
}

inline constexpr std::size_t kStackBytes = std::size_t{512} * 1024;
inline constexpr std::size_t kSlack = 160;  // for the frame that looks; a call needs more in any case
inline constexpr unsigned char kPaint = 0xa7;

struct Call {
  const char* name = nullptr;
  void* function = nullptr;  // the library's, or libc's own
  int fd = -1;
  int other = -1;  // whatever a call wants besides
  void (*make)(Call&) = nullptr;
  std::ptrdiff_t depth = -1;
  long value = 0;

  template <typename F>
  F* as() const {
    return reinterpret_cast<F*>(function);
  }
};

// Nothing is called in between, and the loops are no memset().
__attribute__((noinline)) inline void* measure(void* data) {
  auto& call = *static_cast<Call*>(data);
  auto* const here = static_cast<volatile unsigned char*>(__builtin_frame_address(0));
  constexpr std::size_t kPainted = kStackBytes / 2;
  volatile unsigned char* const low = here - kPainted;
  for (volatile unsigned char* at = here - kSlack; at-- != low;) *at = kPaint;
  call.make(call);
  volatile unsigned char* first = low;
  while (first != here && *first == kPaint) ++first;
  call.depth = here - first;
  return nullptr;
}

// On a thread that has called nothing before.
inline void run_measured(Call& call) {
  void* const stack =
      ::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setstack(&attributes, stack, kStackBytes);
  pthread_t thread;
  if (::pthread_create(&thread, &attributes, measure, &call) == 0) ::pthread_join(thread, nullptr);
  ::pthread_attr_destroy(&attributes);
  ::munmap(stack, kStackBytes);
}

struct Measured {
  const char* name;
  void (*make)(Call&);
};

inline void* libcs(const char* name) {
  static void* const libc = ::dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
  return ::dlsym(libc, name);
}

// Prints the figures, if the environment asks for them.
inline void show(const char* name, std::ptrdiff_t need, std::ptrdiff_t libcs_own) {
  if (std::getenv("RINGROAD_TEST_SHOW_STACK") == nullptr) return;
  std::fprintf(stderr, "%-28s %6td  (libc %td)\n", name, need, libcs_own);
}

// What the function needs on `fd` besides what libc's own does on `plain`: the first time that a thread calls
// it, but not the first that the process does. `before`: what that one is made on, where it is not to be
// `fd`.
inline void expect_bound(Actor& a, const Measured& one, int fd, int plain, int other = -1, int before = -1) {
  Call libc{one.name, libcs(one.name), plain, other, one.make};
  Call ours{one.name, ::dlsym(RTLD_DEFAULT, one.name), fd, other, one.make};
  if (libc.function == nullptr || ours.function == nullptr) return;  // of a newer libc
  Call first = ours;
  if (before >= 0) first.fd = before;
  for (Call* const call : {&libc, &libc, &first, &ours}) run_measured(*call);
  const std::ptrdiff_t need = ours.depth - libc.depth;
  show(one.name, need, libc.depth);
  if (need > bound_of_a_call())
    a.log("%s needs %td bytes of stack besides libc's %td", one.name, need, libc.depth);
}

inline char memory[64];
inline iovec piece{memory, 8};

// A connection of AF_UNIX: no business of the library's.
inline int plain_socket(int (&ends)[2]) {
  ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends);
  const std::string bytes(4096, 'p');
  if (::write(ends[1], bytes.data(), bytes.size()) < 0) return -1;
  return ends[0];
}

inline int file_of_bytes() {
  const int file = ::memfd_create("bytes", MFD_CLOEXEC);
  if (::write(file, memory, sizeof memory) < 0) return -1;
  return file;
}

}  // namespace ringroad::test
