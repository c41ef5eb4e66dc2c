// Numbers that are closed, taken over and used by many threads at once, with the interposed functions linked
// into the program itself, so that they run under the sanitizers too.
//
//   maker    connect, accept; dup2() of both ends over numbers that the others are using
//   others   recv, send, poll, epoll, shutdown, dup, close on those numbers, whatever stands there
//
// By hand for longer: RINGROAD_RACE_SECONDS=60.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "rsocket-core/stats/stats.h"
#include "tests/file_name_here.h"

#ifdef __SANITIZE_THREAD__
// It takes a descriptor that is closed while others use it for a race: here that is the purpose. Those
// reports begin in its own close() and dup2(); what it finds in the memory behind them does not.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions() {
  return "race_top:tsan_interceptors_posix.cpp\n";
}
#endif

namespace ringroad::test {
namespace {

constexpr int kFirst = 100;  // numbers of ends: 100 to 107, pairs side by side
constexpr int kNumbers = 8;

std::string directory;

class Race {
 public:
  Race() {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address_;
    if (::bind(listener_, reinterpret_cast<sockaddr*>(&address_), length) != 0 ||
        ::listen(listener_, 64) != 0 ||
        ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address_), &length) != 0) {
      std::abort();
    }
  }
  ~Race() {
    for (int i = 0; i < kNumbers; ++i) ::close(kFirst + i);
    ::close(listener_);
  }
  Race(const Race&) = delete;
  Race& operator=(const Race&) = delete;

  // Each body again and again, in a thread of its own, with a number to use.
  void run(int seconds, const std::vector<std::function<void(int number, unsigned draw)>>& bodies) {
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < bodies.size(); ++i) {
      threads.emplace_back([&, i] {
        std::mt19937 random(i + 1);
        while (!over_.load(std::memory_order_relaxed)) {
          bodies[i](kFirst + static_cast<int>(random() % kNumbers), static_cast<unsigned>(random()));
        }
      });
    }
    std::this_thread::sleep_for(std::chrono::seconds(seconds));  // the length of the race, no condition
    over_.store(true, std::memory_order_relaxed);
    for (std::thread& thread : threads) thread.join();
  }

  void make_pair(int pair) {
    const int one = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (::connect(one, reinterpret_cast<sockaddr*>(&address_), sizeof address_) != 0) {
      ::close(one);
      return;
    }
    const int other = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    const timeval soon{0, 20'000};
    for (const int fd : {one, other}) {
      ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
      ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &soon, sizeof soon);
    }
    ::dup2(one, kFirst + 2 * pair);
    ::dup2(other, kFirst + 2 * pair + 1);
    ::close(one);
    ::close(other);
    ++made;
  }

  int made = 0;

 private:
  int listener_ = -1;
  sockaddr_in address_{};
  std::atomic<bool> over_{false};
};

std::uint64_t promoted() {
  const std::string path = directory + "/" + file_name_here(::getpid());
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  void* page = ::mmap(nullptr, sizeof(stats::SegmentHeader), PROT_READ, MAP_SHARED, fd, 0);
  ::close(fd);
  if (page == MAP_FAILED) return 0;
  const std::uint64_t count = static_cast<const stats::SegmentHeader*>(page)->streams_promoted.load();
  ::munmap(page, sizeof(stats::SegmentHeader));
  return count;
}

TEST(CloseRace, NumbersMayBeClosedAndTakenOverUnderEveryCall) {
  const char* const wanted = std::getenv("RINGROAD_RACE_SECONDS");
  const int seconds = wanted == nullptr ? 10 : std::atoi(wanted);
  Race race;
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  char sent[512] = {};
  race.run(seconds, {
      [&](int, unsigned draw) {
        race.make_pair(static_cast<int>(draw % (kNumbers / 2)));
        ::usleep(draw % 3000);  // a pair lives for about as long as its promotion takes
      },
      [&](int number, unsigned draw) {
        char got[512];
        ::recv(number, got, 1 + draw % sizeof got, draw % 2 == 0 ? 0 : MSG_DONTWAIT);
      },
      [&](int number, unsigned) {
        char got[512];
        ::recv(number, got, sizeof got, 0);
      },
      [&](int number, unsigned draw) {
        ::send(number, sent, 1 + draw % sizeof sent,
               MSG_NOSIGNAL | (draw % 2 == 0 ? 0 : MSG_DONTWAIT));
      },
      [&](int number, unsigned draw) {
        pollfd two[2] = {{number, POLLIN, 0}, {number ^ 1, POLLOUT | POLLRDHUP, 0}};
        ::poll(two, 2, static_cast<int>(draw % 3));
      },
      [&](int number, unsigned draw) {
        epoll_event event{};
        event.events = EPOLLIN | (draw % 2 == 0 ? 0U : EPOLLET) | (draw % 3 == 0 ? EPOLLOUT : 0U);
        ::epoll_ctl(epoll, draw % 4 == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_ADD, number, &event);
      },
      [&](int, unsigned draw) {
        epoll_event events[4];
        ::epoll_wait(epoll, events, 4, static_cast<int>(draw % 3));
      },
      [&](int number, unsigned draw) {
        int value = 0;
        socklen_t length = sizeof value;
        switch (draw % 40) {
          case 0: ::close(number); break;
          case 1: ::shutdown(number, static_cast<int>(draw / 40 % 3)); break;
          case 2: {
            const int copy = ::dup(number);
            ::send(copy, sent, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
            ::close(copy);
            break;
          }
          case 3: ::dup2(number, kFirst + static_cast<int>(draw / 40 % kNumbers)); break;
          case 4: ::ioctl(number, FIONREAD, &value); break;
          case 5: ::getsockopt(number, SOL_SOCKET, SO_ERROR, &value, &length); break;
          default: ::usleep(50); break;
        }
      },
  });
  ::close(epoll);
  EXPECT_GT(race.made, 20);
  EXPECT_GT(promoted(), 5U) << "of " << race.made << " pairs";
}

}  // namespace
}  // namespace ringroad::test

int main(int argc, char** argv) {
  // The library reads its environment when it is loaded, which for this program is before main().
  if (std::getenv("RINGROAD_RUNTIME_DIR") == nullptr) {
    char made[] = "/tmp/ringroad-race.XXXXXX";
    if (::mkdtemp(made) == nullptr) return 1;
    const std::string policy = std::string(made) + "/policy.toml";
    const int fd = ::open(policy.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    const std::string text =
        "version = 1\n[[rule]]\nname = \"race\"\nsubnet = \"127.0.0.0/8\"\nvia = \"shm\"\n"
        "ring = \"64KiB\"\npromote_after = { messages = 0 }\n";
    const bool written = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    ::close(fd);
    if (!written) return 1;
    ::setenv("RINGROAD_POLICY", policy.c_str(), 1);
    ::setenv("RINGROAD_RUNTIME_DIR", made, 1);
    ::execv("/proc/self/exe", argv);
    return 1;
  }
  ringroad::test::directory = std::getenv("RINGROAD_RUNTIME_DIR");
  ::testing::InitGoogleTest(&argc, argv);
  const int status = RUN_ALL_TESTS();
  const std::string remove = "rm -r '" + ringroad::test::directory + "'";
  if (std::system(remove.c_str()) != 0) return 1;
  return status;
}
