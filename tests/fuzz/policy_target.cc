#include "tests/fuzz/target.h"
#include "tests/policy/fuzz_one.h"

namespace ringroad::fuzz {

std::string try_policy(Bytes input) {
  return policy::complaint_about({reinterpret_cast<const char*>(input.data()), input.size()});
}

}  // namespace ringroad::fuzz
