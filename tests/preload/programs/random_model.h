// What the two processes of random_operations know of the connections between them. Both hold the
// same, and change it by the same rules, so that both draw the same next operation. It says nothing
// of results, which are the kernel's to give: only what must have arrived before an end looks, and
// which call would sleep for ever.
//
// Thread rule: none of it is shared between threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ringroad::test {

// splitmix64: the same numbers on every machine.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15U);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
  }
  int below(int n) { return static_cast<int>(next() % static_cast<std::uint64_t>(n)); }
  bool one_in(int n) { return below(n) == 0; }
  std::uint32_t subset(std::initializer_list<std::uint32_t> bits) {
    std::uint32_t out = 0;
    for (const std::uint32_t bit : bits) out |= one_in(2) ? bit : 0;
    return out;
  }

 private:
  std::uint64_t state_;
};

constexpr int kInstances = 2;

// One number of a socket, and what it is registered for in each epoll instance.
struct Copy {
  int fd = -1;  // of the process whose end it is
  bool in[kInstances] = {};
};

struct End {
  std::vector<Copy> copies;  // none: closed
  bool stale[kInstances] = {};  // registered under a number that is closed by now
  bool nonblocking = false;
  bool shut_rd = false;
  bool shut_wr = false;
  bool fin = false;    // the peer's end of file is here, or on its way
  bool reset = false;  // the connection is gone
  bool held = false;   // a child has a copy of each number that there was at its fork
  bool await_error = false;
  bool dirty = false;  // the other end has done something that must arrive first
  std::size_t unread = 0;

  bool open() const { return !copies.empty(); }
  bool alive() const { return open() || held; }
  // A receive does not sleep.
  bool ready() const { return unread > 0 || ends(); }
  bool ends() const { return fin || shut_rd || reset; }
  void be_reset() {
    reset = await_error = dirty = true;
  }
};

struct Connection {
  End ends[2];
  int made = 0;  // how many there were in this place

  bool free() const { return !ends[0].alive() && !ends[1].alive(); }

  void sent(int side, std::size_t n) {
    if (n == 0) return;
    End& own = ends[side];
    End& peer = ends[1 - side];
    if (peer.alive() && !(peer.shut_rd && peer.shut_wr)) {
      peer.unread += n;
      peer.dirty = true;
    } else if (!own.reset) {
      own.be_reset();
      if (peer.alive() && !peer.reset) peer.be_reset();
    }
  }

  void shut(int side, bool read, bool write) {
    End& own = ends[side];
    if (read) own.shut_rd = true;
    if (!write || own.shut_wr) return;
    own.shut_wr = true;
    ends[1 - side].fin = ends[1 - side].dirty = true;
  }

  // The last number of an end is closed, in every process.
  void closed(int side) {
    End& own = ends[side];
    End& peer = ends[1 - side];
    if (peer.alive() && !own.reset) {
      if (own.unread > 0) {
        if (!(own.fin && own.shut_wr)) peer.be_reset();
      } else if (!own.shut_wr) {
        peer.fin = peer.dirty = true;
      }
    }
    own.unread = 0;
  }
};

}  // namespace ringroad::test
