// Calls that reach the kernel past the library: system calls that are no calls of libc's, libc's own by a
// handle of it (a plug-in with RTLD_DEEPBIND, ctypes, JNA), and io_uring(7).
#include <dlfcn.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "rsocket-core/base/sys.h"
#include "tests/preload/drivers/actor.h"
#include "tests/preload/scenarios/settling.h"

namespace ringroad::test {
namespace {

using sys::raw;
using sys::word;

void raw_send(Actor& a, int fd, const char* text) {
  a.log("sent past libc: %ld",
        raw(SYS_sendto, fd, word(text), static_cast<long>(std::strlen(text)), MSG_NOSIGNAL));
}

void raw_recv(Actor& a, int fd) {
  char buffer[64] = {};
  const long n = raw(SYS_recvfrom, fd, word(buffer), sizeof buffer - 1);
  a.log("received past libc: %ld \"%s\"", n, n > 0 ? buffer : "");
}

// One round trip by libc's calls, started by the client.
void converse(Actor& a, int fd, int times) {
  for (int i = 0; i < times; ++i) {
    a.client([&] { a.send(fd, "ping"); });
    a.server([&] { a.recv(fd, 10); a.send(fd, "pong"); });
    a.client([&] { a.recv(fd, 10); });
  }
}

void goes_past_after_a_while(Actor& a, bool here) {
  const int fd = a.stream();
  settle_by_libc(a, fd);
  converse(a, fd, 6);
  const auto turn = [&](bool of_this_end, auto what) {
    if (of_this_end) what();
    a.sync();
  };
  turn(here, [&] { raw_send(a, fd, "past"); });
  turn(!here, [&] { a.recv(fd, 10); a.send(fd, "answer"); });
  turn(here, [&] { raw_recv(a, fd); });
  converse(a, fd, 3);
}

void receives_past_after_a_while(Actor& a, bool here) {
  const int fd = a.stream();
  settle_by_libc(a, fd);
  converse(a, fd, 6);
  for (int i = 0; i < 3; ++i) {
    if (here) {
      a.send(fd, "ping");
      raw_recv(a, fd);
    } else {
      a.recv(fd, 10);
      a.send(fd, "pong");
    }
    a.sync();
  }
  converse(a, fd, 3);
}

// A ring of a few entries, without a thread of the kernel's. Without io_uring nothing is done with it.
class Ring {
 public:
  // What io_uring_setup(2) has returned.
  Ring(long fd, const io_uring_params& params) : fd_(static_cast<int>(fd)), params_(params) {
    if (fd_ < 0) return;
    const std::size_t size = params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe);
    sq_ = map(size + params.sq_off.array + params.sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING);
    cq_ = map(size, IORING_OFF_CQ_RING);
    sqes_ = reinterpret_cast<io_uring_sqe*>(
        map(params.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES));
  }
  ~Ring() {
    if (fd_ >= 0) raw(SYS_close, fd_);
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  bool ok() const { return fd_ >= 0; }

  // Its result.
  int call(const io_uring_sqe& request) {
    auto* tail = reinterpret_cast<std::atomic<unsigned>*>(sq_ + params_.sq_off.tail);
    const unsigned at = tail->load() & (params_.sq_entries - 1);
    sqes_[at] = request;
    reinterpret_cast<unsigned*>(sq_ + params_.sq_off.array)[at] = at;
    tail->fetch_add(1);
    raw(SYS_io_uring_enter, fd_, 1, 1, IORING_ENTER_GETEVENTS);
    auto* head = reinterpret_cast<std::atomic<unsigned>*>(cq_ + params_.cq_off.head);
    const auto* cqes = reinterpret_cast<const io_uring_cqe*>(cq_ + params_.cq_off.cqes);
    const int result = cqes[head->load() & (params_.cq_entries - 1)].res;
    head->fetch_add(1);
    return result;
  }

 private:
  char* map(std::size_t size, off_t what) {
    return static_cast<char*>(
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_, what));
  }
  const int fd_;
  const io_uring_params params_;
  char* sq_ = nullptr;
  char* cq_ = nullptr;
  io_uring_sqe* sqes_ = nullptr;
};

io_uring_sqe request(io_uring_op op, int fd, const void* at, std::size_t n) {
  io_uring_sqe sqe{};
  sqe.opcode = static_cast<std::uint8_t>(op);
  sqe.fd = fd;
  sqe.addr = static_cast<__u64>(word(at));
  sqe.len = static_cast<std::uint32_t>(n);
  return sqe;
}

}  // namespace

SCENARIO(an_event_loop_that_makes_its_own_system_calls, 0) {
  const int fd = a.stream();
  const int epoll = static_cast<int>(raw(SYS_epoll_create1, EPOLL_CLOEXEC));
  a.server([&] {
    a.set_nonblocking(fd);
    epoll_event event{};
    event.events = EPOLLIN;
    a.log("added: %ld", raw(SYS_epoll_ctl, epoll, EPOLL_CTL_ADD, fd, word(&event)));
  });
  for (int i = 0; i < 8; ++i) {
    a.client([&] { a.send(fd, "ping"); });
    a.server([&] {
      epoll_event event{};
      a.log("told: %ld", raw(SYS_epoll_pwait, epoll, word(&event), 1, 5000));
      a.recv(fd, 10);
      a.send(fd, "pong");
    });
    a.client([&] { a.recv(fd, 10); });
  }
}

SCENARIO(a_registration_past_libc_and_a_wait_by_it, 0) {
  const int fd = a.stream();
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  a.server([&] {
    a.set_nonblocking(fd);
    epoll_event event{};
    event.events = EPOLLIN;
    raw(SYS_epoll_ctl, epoll, EPOLL_CTL_ADD, fd, word(&event));
  });
  for (int i = 0; i < 8; ++i) {
    a.client([&] { a.send(fd, "ping"); });
    a.server([&] {
      epoll_event event{};
      a.log("told: %d", ::epoll_wait(epoll, &event, 1, 5000));
      a.recv(fd, 10);
      a.send(fd, "pong");
    });
    a.client([&] { a.recv(fd, 10); });
  }
}

SCENARIO(a_client_goes_past_libc_after_a_while, 0) { goes_past_after_a_while(a, a.is_client()); }

SCENARIO(a_server_goes_past_libc_after_a_while, 0) { goes_past_after_a_while(a, a.is_server()); }

SCENARIO(what_is_written_past_libc_comes_behind_what_was_written_before, 0) {
  const int fd = a.stream();
  converse(a, fd, 6);
  a.client([&] {
    a.send(fd, "first ");
    raw_send(a, fd, "second");
  });
  a.server([&] { a.recv(fd, 12, MSG_WAITALL); });
  a.client([&] { a.close(fd); });
  a.server([&] { a.recv(fd, 12); });
}

// Sends by libc's calls, as does the other end, and merely receives past them.
SCENARIO(a_client_receives_past_libc_after_a_while, 0) { receives_past_after_a_while(a, a.is_client()); }

SCENARIO(a_server_receives_past_libc_after_a_while, 0) { receives_past_after_a_while(a, a.is_server()); }

SCENARIO(both_ends_receive_past_libc_after_a_while, 0) {
  const int fd = a.stream();
  settle_by_libc(a, fd);
  converse(a, fd, 6);
  a.send(fd, a.is_client() ? "from the client" : "from the server");
  raw_recv(a, fd);
  a.sync();
  converse(a, fd, 3);
}

SCENARIO(a_poll_past_libc_after_a_while, 0) {
  const int fd = a.stream();
  settle_by_libc(a, fd);
  converse(a, fd, 6);
  a.server([&] { a.send(fd, "told?"); });
  a.client([&] {
    pollfd entry{fd, POLLIN, 0};
    timespec timeout{20, 0};
    a.log("polled past libc: %ld", raw(SYS_ppoll, word(&entry), 1, word(&timeout), 0, 0));
    a.recv(fd, 10);
  });
  converse(a, fd, 3);
}

SCENARIO(an_end_for_one_that_receives_past_libc, 0) {
  const int fd = a.stream();
  settle_by_libc(a, fd);
  converse(a, fd, 6);
  a.server([&] { a.shutdown(fd, SHUT_WR); });
  a.client([&] { raw_recv(a, fd); a.send(fd, "still"); });
  a.server([&] { a.recv(fd, 10); });
}

SCENARIO(an_end_behind_what_was_written_past_libc, 0) {
  const int fd = a.stream();
  settle_by_libc(a, fd);
  converse(a, fd, 6);
  a.client([&] {
    raw_send(a, fd, "the last");
    a.shutdown(fd, SHUT_WR);
  });
  a.server([&] { a.drain_to_end(fd); a.send(fd, "answer"); });
  a.client([&] { a.recv(fd, 10); });
}

SCENARIO(a_close_behind_what_was_written_past_libc, 0) {
  const int fd = a.stream();
  settle_by_libc(a, fd);
  converse(a, fd, 6);
  a.client([&] {
    a.send(fd, "the first ");
    raw_send(a, fd, "and the last");
    a.close(fd);
  });
  a.server([&] { a.drain_to_end(fd); });
}

// As a plug-in that was opened with RTLD_DEEPBIND, and as Python's ctypes.
SCENARIO(libcs_own_functions_by_a_handle_of_it, 0) {
  const int fd = a.stream();
  settle_by_libc(a, fd);
  converse(a, fd, 6);
  void* const libc = ::dlopen("libc.so.6", RTLD_NOW);
  const auto write = reinterpret_cast<decltype(&::write)>(::dlsym(libc, "write"));
  const auto read = reinterpret_cast<decltype(&::read)>(::dlsym(libc, "read"));
  a.client([&] { a.log("wrote %zd", write(fd, "plugin", 6)); });
  a.server([&] { a.recv(fd, 10); a.send(fd, "answer"); });
  a.client([&] {
    char buffer[16] = {};
    const ssize_t n = read(fd, buffer, sizeof buffer - 1);
    a.log("read %zd \"%s\"", n, buffer);
  });
  converse(a, fd, 3);
}

SCENARIO(a_receive_past_libc_from_the_first_byte_on, 0) {
  const int fd = a.stream();
  for (int i = 0; i < 8; ++i) {
    a.client([&] { a.send(fd, "ping"); });
    a.server([&] { raw_recv(a, fd); raw_send(a, fd, "pong"); });
    a.client([&] { a.recv(fd, 10); });
  }
}

SCENARIO(io_uring_moves_the_bytes, 0) {
  const int fd = a.stream();
  io_uring_params params{};
  Ring ring(raw(SYS_io_uring_setup, 8, word(&params)), params);
  for (int i = 0; i < 6; ++i) {
    a.client([&] { a.send(fd, "ping"); });
    a.server([&] {
      char buffer[16] = {};
      if (!ring.ok()) return (void)(a.recv(fd, 10), a.send(fd, "pong"));
      a.log("received %d", ring.call(request(IORING_OP_RECV, fd, buffer, sizeof buffer)));
      a.log("sent %d", ring.call(request(IORING_OP_SEND, fd, "pong", 4)));
    });
    a.client([&] { a.recv(fd, 10); });
  }
}

SCENARIO(io_uring_waits_and_registers, 0) {
  const int fd = a.stream();
  io_uring_params params{};
  Ring ring(::syscall(SYS_io_uring_setup, 8, &params), params);
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  a.server([&] {
    a.set_nonblocking(fd);
    epoll_event event{};
    event.events = EPOLLIN;
    io_uring_sqe add = request(IORING_OP_EPOLL_CTL, epoll, &event, EPOLL_CTL_ADD);
    add.off = static_cast<__u64>(fd);
    a.log("added %d", ring.ok() ? ring.call(add) : ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
  });
  for (int i = 0; i < 6; ++i) {
    a.client([&] { a.send(fd, "ping"); });
    a.server([&] {
      epoll_event event{};
      a.log("told: %d", ::epoll_wait(epoll, &event, 1, 5000));
      a.recv(fd, 10);
      a.send(fd, "pong");
    });
    a.client([&] {
      io_uring_sqe wait = request(IORING_OP_POLL_ADD, fd, nullptr, 0);
      wait.poll32_events = POLLIN;
      a.log("polled: %d", ring.ok() ? ring.call(wait) & POLLIN : POLLIN);
      a.recv(fd, 10);
    });
  }
}

}  // namespace ringroad::test
