// As tests/core/message_cost, over a queue pair of the device's double. Without the provider:
//
//   valgrind --tool=callgrind --toggle-collect='ringroad::Stream::send(*'
//       --toggle-collect='ringroad::Stream::recv(*' --toggle-collect='provider::*'
//       build/bin/verbs_message_cost
#include "tests/core/message_loop.h"
#include "tests/verbs/device_double.h"

int main(int argc, char** argv) {
  return ringroad::test::send_messages(argc, argv, ringroad::test::make_verbs_pair);
}
