#include "rsocket-core/protocol/reason.h"

namespace ringroad {
namespace {

struct Entry {
  const char* name;
  const char* text;
};

constexpr Entry kEntries[] = {
#define RINGROAD_REASON_ENTRY(id, name, text) {name, text},
    RINGROAD_REASONS(RINGROAD_REASON_ENTRY)
#undef RINGROAD_REASON_ENTRY
};
static_assert(sizeof(kEntries) / sizeof(kEntries[0]) == static_cast<unsigned>(Reason::kCount));

}  // namespace

const char* reason_name(Reason reason) noexcept {
  return reason < Reason::kCount ? kEntries[static_cast<unsigned>(reason)].name : "invalid";
}

const char* reason_text(Reason reason) noexcept {
  return reason < Reason::kCount ? kEntries[static_cast<unsigned>(reason)].text : "invalid";
}

Reason reason_from_wire(std::uint8_t value) noexcept {
  return value < static_cast<unsigned>(Reason::kCount) ? static_cast<Reason>(value)
                                                       : Reason::kBadRequest;
}

}  // namespace ringroad
