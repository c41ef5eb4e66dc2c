// What a number names changes in two places, the kernel and the library's table. Between the two another
// thread comes here and changes it as well.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "preload/real.h"
#include "preload/socket_lifecycle.h"

namespace ringroad::test {
namespace {

// Numbers that nothing else here is given.
constexpr int kCopy = 110;

// libc's functions under the library's, with something before or after them, once.
class Between {
 public:
  Between() {
    real_dup2 = preload::real().dup2;
    real_close = preload::real().close;
    real_dup = preload::real().dup;
    preload::real_functions.dup2 = [](int from, int to) {
      const int result = real_dup2(from, to);
      call(after_dup2);
      return result;
    };
    preload::real_functions.dup = [](int from) {
      call(before_dup);
      return real_dup(from);
    };
    preload::real_functions.close = [](int fd) {
      if (fd == kCopy) call(before_close);
      return real_close(fd);
    };
  }
  ~Between() {
    preload::real_functions.dup2 = real_dup2;
    preload::real_functions.close = real_close;
    preload::real_functions.dup = real_dup;
  }
  Between(const Between&) = delete;
  Between& operator=(const Between&) = delete;

  static inline std::function<void()> after_dup2, before_close, before_dup;

 private:
  static void call(std::function<void()>& step) {
    if (step) std::exchange(step, nullptr)();
  }
  static inline decltype(preload::Real::dup2) real_dup2;
  static inline decltype(preload::Real::close) real_close;
  static inline decltype(preload::Real::dup) real_dup;
};

// Another thread's work: run() returns when it is done, or asleep because it has to wait for us.
class Other {
 public:
  template <typename Work>
  void run(Work work) {
    thread_ = std::thread([this, work] {
      tid_ = ::gettid();
      work();
      done_ = true;
    });
    while (!done_ && !asleep()) std::this_thread::yield();
  }
  void join() { thread_.join(); }

 private:
  bool asleep() const {
    char path[64];
    std::snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid_.load());
    char text[512] = {};
    std::FILE* file = tid_ == 0 ? nullptr : std::fopen(path, "re");
    if (file == nullptr) return false;
    const bool read = std::fgets(text, sizeof text, file) != nullptr;
    std::fclose(file);
    const char* name_end = read ? std::strrchr(text, ')') : nullptr;
    return name_end != nullptr && name_end[1] == ' ' && name_end[2] == 'S';
  }
  std::thread thread_;
  std::atomic<pid_t> tid_{0};
  std::atomic<bool> done_{false};
};

bool promoted(int fd) {
  const preload::SocketRef socket = preload::socket_lifecycle::find(fd);
  if (socket.stream() == nullptr) return false;
  socket.stream()->wait_promoted(5'000'000'000);
  return socket.stream()->state() == State::kOnChannel;
}

// A connection of this program's with itself, on a channel. Other threads close the numbers.
struct Pair {
  int one = -1;
  int other = -1;

  Pair() {
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* any = reinterpret_cast<sockaddr*>(&address);
    socklen_t length = sizeof address;
    one = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(0, ::bind(listener, any, length));
    EXPECT_EQ(0, ::listen(listener, 1));
    EXPECT_EQ(0, ::getsockname(listener, any, &length));
    EXPECT_EQ(0, ::connect(one, any, length));
    other = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    const timeval patience{5, 0};
    ::setsockopt(other, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    EXPECT_EQ("first", through(one));
    EXPECT_TRUE(promoted(one) && promoted(other));
    ::close(listener);
  }

  // What arrives at `other` of a text that is sent by `fd`.
  std::string through(int fd) const {
    EXPECT_EQ(5, ::send(fd, "first", 5, MSG_NOSIGNAL));
    return arrives();
  }
  std::string arrives() const {
    char text[100];
    const ssize_t n = ::recv(other, text, sizeof text, 0);
    return n < 0 ? strerrorname_np(errno) : std::string(text, static_cast<std::size_t>(n));
  }
};

TEST(NumberChange, ACopyOutlivesItsOriginalThatIsClosedWhileItIsMade) {
  Between between;
  const Pair pair;
  Other closer;
  Between::after_dup2 = [&] { closer.run([&] { EXPECT_EQ(0, ::close(pair.one)); }); };
  ASSERT_EQ(kCopy, ::dup2(pair.one, kCopy));
  closer.join();
  EXPECT_EQ("first", pair.through(kCopy));
  ::close(kCopy);
  EXPECT_EQ("", pair.arrives());
  ::close(pair.other);
}

TEST(NumberChange, ACopyIsClosedByACloseThatBeganBeforeItWasMade) {
  Between between;
  const Pair pair;
  const int plain = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(kCopy, ::dup2(plain, kCopy));
  ::close(plain);
  Other copier;
  Between::before_close = [&] {
    copier.run([&] { EXPECT_EQ(kCopy, ::dup2(pair.one, kCopy)); });
    copier.join();
  };
  ASSERT_EQ(0, ::close(kCopy));
  EXPECT_FALSE(preload::fd_table::managed(kCopy));
  EXPECT_EQ("first", pair.through(pair.one));
  ::close(pair.one);
  EXPECT_EQ("", pair.arrives());
  ::close(pair.other);
}

TEST(NumberChange, ACopyIsOfTheStreamThatTheNumberHasBecomeMeanwhile) {
  Between between;
  const Pair pair;
  const int plain = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(kCopy, ::dup2(plain, kCopy));
  Other copier;
  Between::before_dup = [&] {
    copier.run([&] { EXPECT_EQ(kCopy, ::dup2(pair.one, kCopy)); });
    copier.join();
  };
  const int copy = ::dup(kCopy);
  ASSERT_GE(copy, 0);
  EXPECT_TRUE(preload::fd_table::managed(copy));
  ::close(pair.one);
  ::close(kCopy);
  EXPECT_EQ("first", pair.through(copy));
  ::close(copy);
  EXPECT_EQ("", pair.arrives());
  ::close(pair.other);
  ::close(plain);
}

TEST(NumberChange, ACopyOfAPlainFileIsMadeOnceWhateverElseChanges) {
  Between between;
  const Pair pair;
  const int plain = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  const int next = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ::close(next);
  Other closer;
  Between::before_dup = [&] {
    closer.run([&] { EXPECT_EQ(kCopy, ::dup2(pair.one, kCopy)); });
    closer.join();
  };
  EXPECT_EQ(next, ::dup(plain));
  EXPECT_FALSE(preload::fd_table::managed(next));
  EXPECT_EQ(next + 1, ::dup(plain));
  for (const int fd : {next, next + 1, plain, kCopy, pair.one, pair.other}) ::close(fd);
}

}  // namespace
}  // namespace ringroad::test
