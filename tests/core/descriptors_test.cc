// The library's own descriptors among the program's.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <thread>
#include <vector>

#include "rsocket-core/base/sys.h"

namespace ringroad {
namespace {

int open_event() { return sys::eventfd(0, EFD_CLOEXEC); }

// Every number is taken, but for one low one.
class AllButOne {
 public:
  AllButOne() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit few{sys::kPrivateDescriptorBase + 32, before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &few);
    for (int fd; (fd = ::dup(0)) >= 0;) taken_.push_back(fd);
    last = taken_.front();
    ::close(last);
    taken_.erase(taken_.begin());
  }
  ~AllButOne() {
    for (const int fd : taken_) ::close(fd);
    setrlimit(RLIMIT_NOFILE, &before_);
  }
  AllButOne(const AllButOne&) = delete;
  AllButOne& operator=(const AllButOne&) = delete;
  int last = -1;

 private:
  rlimit before_{};
  std::vector<int> taken_;
};

TEST(Descriptors, OfTheLibrarysOwnAreHighMarkedAndCloseOnExec) {
  const int fd = sys::open_high(open_event);
  EXPECT_GE(fd, sys::kPrivateDescriptorBase);
  EXPECT_TRUE(reserved_fds::is_marked(fd));
  EXPECT_EQ(FD_CLOEXEC, ::fcntl(fd, F_GETFD));
  sys::close(fd);
  EXPECT_FALSE(reserved_fds::is_marked(fd));
}

// A server keeps one, to accept and close connections when all others are taken.
TEST(Descriptors, TheLastLowNumberIsLeftToTheProgram) {
  const AllButOne numbers;
  errno = 0;
  EXPECT_EQ(-1, sys::open_high(open_event));
  EXPECT_EQ(EMFILE, errno);
  EXPECT_EQ(numbers.last, ::dup(0));
  ::close(numbers.last);
  EXPECT_EQ(numbers.last, sys::open_high_or_low(open_event)) << "what a call cannot do without";
  sys::close(numbers.last);
}

TEST(Descriptors, AThreadThatKeepsTheTurnKeepsNoOtherWaitingForLong) {
  const sys::DescriptorTurn kept;
  std::thread([] { sys::close(sys::open_high(open_event)); }).join();
}

}  // namespace
}  // namespace ringroad
