// What has to happen before a descriptor number is closed or taken over by dup2().
#pragma once

namespace ringroad::preload {

// If `fd` is managed, its table entry goes and its stream, if this was the last number of it, is
// closed; the caller then makes the real call, which frees the number. True if it was managed.
bool before_number_goes(int fd) noexcept;

}  // namespace ringroad::preload
