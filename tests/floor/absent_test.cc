// What stands for the functions that an old libc lacks: bound with a look-up that knows glibc 2.17 only.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <fstream>
#include <map>
#include <string>

#include "preload/absent.h"
#include "preload/binding.h"
#include "rsocket-core/base/sys.h"

namespace ringroad::preload {
namespace {

// The library of glibc 2.17 that has it, by name; RINGROAD_FLOOR_SYMBOLS is of make_stubs.
const std::map<std::string, std::string>& symbols_of_the_floor() {
  static const auto symbols = [] {
    std::map<std::string, std::string> result;
    std::ifstream file(RINGROAD_FLOOR_SYMBOLS);
    for (std::string library, name, version; file >> library >> name >> version;) {
      result[name] = library;
    }
    return result;
  }();
  return symbols;
}

// librt is not in every process.
void* of_the_floor(const char* name) {
  const auto found = symbols_of_the_floor().find(name);
  if (found == symbols_of_the_floor().end() || found->second == "librt.so.1") return nullptr;
  return dlsym(RTLD_NEXT, name);
}

template <typename Function>
bool answers_enosys_only(Function function) {
  return function == &absent::NoSuch<Function>::call;
}
bool answers_enosys_only(void (*)(int)) { return false; }  // it could not
bool answers_enosys_only(void (*)(__jmp_buf_tag*, int)) { return false; }

class AbsentTest : public testing::Test {
 protected:
  AbsentTest() {
    bind(old, of_the_floor);
    bind(none, [](const char*) -> void* { return nullptr; });
  }
  void SetUp() override { ASSERT_GT(symbols_of_the_floor().size(), 1000U) << "no list of symbols"; }

  Real old;
  Real none;
};

TEST_F(AbsentTest, EveryFunctionOfTheTableHasSomethingToCallWhereLibcLacksAll) {
  const Real unbound;
#define RINGROAD_FUNCTION(ret, name, params) \
  EXPECT_TRUE(none.name != nullptr) << #name; \
  EXPECT_TRUE(none.name != unbound.name) << #name << " would look for itself for ever";
#define RINGROAD_ALIAS(ret, name, target, params, args)
#include "preload/functions.def"
#undef RINGROAD_FUNCTION
#undef RINGROAD_ALIAS
}

TEST_F(AbsentTest, WhatTheFloorLacksHasAFunctionOfItsOwn) {
  int lacking = 0;
#define RINGROAD_FUNCTION(ret, name, params)                                                  \
  if (of_the_floor(#name) == nullptr) {                                                       \
    ++lacking;                                                                                \
    EXPECT_FALSE(answers_enosys_only(old.name)) << #name;                                     \
  }
#define RINGROAD_ALIAS(ret, name, target, params, args)
#include "preload/functions.def"
#undef RINGROAD_FUNCTION
#undef RINGROAD_ALIAS
  EXPECT_GE(lacking, 11);
}

TEST_F(AbsentTest, WhatNobodyHasAnswersThatThereIsNoSuchFunction) {
  errno = 0;
  EXPECT_EQ(none.socket(AF_INET, SOCK_STREAM, 0), -1);
  EXPECT_EQ(errno, ENOSYS);
  EXPECT_EQ(none.popen("true", "r"), nullptr);
  EXPECT_EQ(none.signal(SIGUSR1, SIG_IGN), SIG_ERR);
}

struct PipeEnds {
  int in = -1;
  int out = -1;
};
PipeEnds open_pipe() {
  int ends[2];
  EXPECT_EQ(sys::call(SYS_pipe2, ends, O_CLOEXEC), 0);
  return {ends[0], ends[1]};
}
bool is_open(int fd) { return sys::fcntl(fd, F_GETFD) >= 0; }

TEST_F(AbsentTest, CloseRangeClosesAndRefusesAsTheKernelDoes) {
  const PipeEnds ends = open_pipe();
  const int fd = sys::fcntl(ends.in, F_DUPFD, 900);
  EXPECT_EQ(old.close_range(static_cast<unsigned>(fd), static_cast<unsigned>(fd), 0), 0);
  EXPECT_FALSE(is_open(fd));
  EXPECT_EQ(old.close_range(2, 1, 0), -1);
  EXPECT_EQ(errno, EINVAL);
  sys::close(ends.in);
  sys::close(ends.out);
}

TEST_F(AbsentTest, ClosefromClosesToTheEndAndKeepsErrno) {
  const PipeEnds ends = open_pipe();
  const int first = sys::fcntl(ends.in, F_DUPFD, 900);
  const int second = sys::fcntl(ends.in, F_DUPFD, 950);
  errno = EDOM;
  old.closefrom(900);
  EXPECT_EQ(errno, EDOM);
  EXPECT_FALSE(is_open(first) || is_open(second));
  EXPECT_TRUE(is_open(ends.in));
  sys::close(ends.in);
  sys::close(ends.out);
}

TEST_F(AbsentTest, OneByOneTheSameAreClosed) {
  const PipeEnds ends = open_pipe();
  int fds[300];
  for (int& fd : fds) fd = sys::fcntl(ends.in, F_DUPFD, 400);
  const auto first = static_cast<unsigned>(fds[0]);
  absent::close_each(first + 1, first + 298);
  EXPECT_TRUE(is_open(fds[0]));
  EXPECT_TRUE(is_open(fds[299]));
  for (int i = 1; i < 299; ++i) EXPECT_FALSE(is_open(fds[i])) << fds[i];
  sys::close(fds[0]);
  sys::close(fds[299]);
  sys::close(ends.in);
  sys::close(ends.out);
}

TEST_F(AbsentTest, ReadsAndWritesWithFlagsMoveBytes) {
  const PipeEnds ends = open_pipe();
  char text[] = "abc";
  iovec piece{text, 3};
  EXPECT_EQ(old.pwritev2(ends.out, &piece, 1, -1, 0), 3);
  char got[8] = {};
  iovec room{got, sizeof got};
  EXPECT_EQ(old.preadv2(ends.in, &room, 1, -1, 0), 3);
  EXPECT_STREQ(got, "abc");
  EXPECT_EQ(old.preadv2(ends.in, &room, 1, -1, 1 << 30), -1);
  EXPECT_EQ(errno, EOPNOTSUPP);
  sys::close(ends.in);
  sys::close(ends.out);
}

TEST_F(AbsentTest, EpollPwait2Waits) {
  const PipeEnds ends = open_pipe();
  const int instance = static_cast<int>(sys::call(SYS_epoll_create1, EPOLL_CLOEXEC));
  epoll_event event{EPOLLIN, {}};
  sys::call(SYS_epoll_ctl, instance, EPOLL_CTL_ADD, ends.in, &event);
  const timespec brief{0, 1000};
  sigset_t mask;
  sigemptyset(&mask);
  EXPECT_EQ(old.epoll_pwait2(instance, &event, 1, &brief, &mask), 0);
  sys::write(ends.out, "x", 1);
  EXPECT_EQ(old.epoll_pwait2(instance, &event, 1, nullptr, &mask), 1);
  sys::close(instance);
  sys::close(ends.in);
  sys::close(ends.out);
}

TEST_F(AbsentTest, AThreadThatWaitsInOneCanBeCancelled) {
  static Real table;
  table = old;
  pthread_t thread;
  ASSERT_EQ(pthread_create(&thread, nullptr, [](void*) -> void* {
    const int instance = static_cast<int>(sys::call(SYS_epoll_create1, EPOLL_CLOEXEC));
    epoll_event event;
    table.epoll_pwait2(instance, &event, 1, nullptr, nullptr);
    return nullptr;
  }, nullptr), 0);
  ASSERT_EQ(pthread_cancel(thread), 0);
  void* result = nullptr;
  ASSERT_EQ(pthread_join(thread, &result), 0);
  EXPECT_EQ(result, PTHREAD_CANCELED);
}

TEST_F(AbsentTest, MemfdCreateMakesAFile) {
  const int fd = old.memfd_create("file", MFD_CLOEXEC);
  ASSERT_GE(fd, 0);
  EXPECT_EQ(sys::write(fd, "bytes", 5), 5);
  sys::close(fd);
  EXPECT_EQ(old.memfd_create(nullptr, 0), -1);
  EXPECT_EQ(errno, EFAULT);
}

TEST_F(AbsentTest, Fcntl64IsFcntl) { EXPECT_EQ(old.fcntl64(0, F_GETFD, 0), sys::fcntl(0, F_GETFD)); }

TEST_F(AbsentTest, PidfdGetfdAnswersAsTheKernelDoes) {
  EXPECT_EQ(old.pidfd_getfd(-1, 0, 0), -1);
  EXPECT_TRUE(errno == EBADF || errno == ENOSYS) << errno;
}

TEST_F(AbsentTest, ExecveatExecutes) {
  const pid_t child = fork();
  if (child == 0) {
    char name[] = "false";
    char* argv[] = {name, nullptr};
    char* envp[] = {nullptr};
    old.execveat(AT_FDCWD, "/bin/false", argv, envp, 0);
    old._exit(99);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
}

TEST_F(AbsentTest, AsynchronousReadsAreThoseOfLibrt) {
  const PipeEnds ends = open_pipe();
  sys::write(ends.out, "abc", 3);
  char got[8] = {};
  aiocb request{};
  request.aio_fildes = ends.in;
  request.aio_buf = got;
  request.aio_nbytes = sizeof got;
  request.aio_sigevent.sigev_notify = SIGEV_NONE;
  ASSERT_EQ(old.aio_read(&request), 0);
  const aiocb* const requests[] = {&request};
  while (aio_error(&request) == EINPROGRESS) aio_suspend(requests, 1, nullptr);
  EXPECT_EQ(aio_return(&request), 3);
  sys::close(ends.in);
  sys::close(ends.out);
}

}  // namespace
}  // namespace ringroad::preload
