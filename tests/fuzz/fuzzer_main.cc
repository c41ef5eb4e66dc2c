// One libFuzzer program: RINGROAD_FUZZ_TARGET is the function it tries (target.h).

#include <cstdio>
#include <cstdlib>

#include "tests/fuzz/target.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size);

int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  const std::string complaint = ringroad::fuzz::RINGROAD_FUZZ_TARGET({data, size});
  if (!complaint.empty()) {
    std::fprintf(stderr, "what does not hold: %s\n", complaint.c_str());
    std::abort();
  }
  return 0;
}
