// Half the round trip of small messages through Channel calls, polling: to hold against
// `ib_write_lat -s SIZE`, which measures the same way. Prints the median of each round in
// microseconds and nothing else.
//
//   verbs_pingpong SIZE ITERATIONS ROUNDS     (addresses as integration/softroce/run gives them)
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "rsocket-core/base/sys.h"
#include "tests/verbs/fixture.h"

namespace ringroad::verbs_test {
namespace {

constexpr std::uint32_t kRing = 256 * 1024;

void write_message(Channel& channel, std::size_t n) {
  const Channel::View view = channel.tx_view();
  std::memset(view.data, 'x', n);
  channel.commit(n);
}

// False when the peer has said that it is done, or is gone.
bool read_message(Channel& channel, std::size_t n) {
  while (channel.rx_view().size < n) {
    channel.progress();
    if (channel.failed() || channel.control_pending()) return false;
  }
  channel.consume(n);
  return true;
}

int serve(std::size_t size, int ready) {
  Side side;
  if (!side.loaded() ||
      side.transport().listen(endpoint(server_address(), kPort)) != Reason::kNone) {
    std::fprintf(stderr, "verbs_pingpong: cannot listen: %s\n", reason_name(side.load_failure()));
    return 1;
  }
  if (sys::write(ready, "", 1) != 1) return 1;
  serve_until({&side}, [&] { return side.requests > 0 && side.outcome(side.last_request).ended; });
  const auto channel = std::move(side.outcome(side.last_request).channel);
  if (channel == nullptr) {
    std::fprintf(stderr, "verbs_pingpong: no channel from the client: %s\n",
                 reason_name(side.outcome(side.last_request).reason));
    return 1;
  }
  while (read_message(*channel, size)) write_message(*channel, size);
  return 0;
}

int measure(std::size_t size, int iterations, int rounds) {
  Side side;
  if (!side.loaded()) return 1;
  const PromotionId id = side.connect(connect_params(kRing));
  serve_until({&side}, [&] { return side.outcome(id).ended; });
  const auto channel = std::move(side.outcome(id).channel);
  if (channel == nullptr) {
    std::fprintf(stderr, "verbs_pingpong: no channel: %s\n", reason_name(side.outcome(id).reason));
    return 1;
  }
  std::vector<std::int64_t> times(static_cast<std::size_t>(iterations));
  for (int round = 0; round < rounds; ++round) {
    for (std::int64_t& time : times) {
      const std::int64_t start = sys::now_ns();
      write_message(*channel, size);
      if (!read_message(*channel, size)) {
        std::fprintf(stderr, "verbs_pingpong: the channel failed: %s\n",
                     reason_name(channel->failure()));
        return 1;
      }
      time = sys::now_ns() - start;
    }
    std::nth_element(times.begin(), times.begin() + iterations / 2, times.end());
    std::printf("%.2f\n", static_cast<double>(times[times.size() / 2]) / 2000.0);
  }
  ControlMessage done;
  done.type = static_cast<std::uint8_t>(ControlType::kFin);
  done.value = channel->tx_head();
  channel->send_control(done);
  // The peer may be gone before its device has acknowledged that.
  poll_until({channel.get()}, [&] { return channel->delivered() || channel->failed(); });
  return 0;
}

}  // namespace
}  // namespace ringroad::verbs_test

int main(int argc, char** argv) {
  using namespace ringroad::verbs_test;
  if (argc != 4 || server_address().empty()) {
    std::fprintf(stderr, "usage: verbs_pingpong SIZE ITERATIONS ROUNDS, inside integration/softroce/run\n");
    return 2;
  }
  const std::size_t size = std::strtoul(argv[1], nullptr, 10);
  int ready[2];
  if (pipe(ready) != 0) return 1;
  // Before anything of verbs exists in this process.
  const pid_t server = fork();
  if (server == 0) _exit(serve(size, ready[1]));
  char byte;
  close(ready[1]);
  const bool listening = read(ready[0], &byte, 1) == 1;
  const int result = listening ? measure(size, std::atoi(argv[2]), std::atoi(argv[3])) : 1;
  waitpid(server, nullptr, 0);
  return result;
}
