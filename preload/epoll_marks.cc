#include "preload/epoll_marks.h"

namespace ringroad::preload::epoll_marks {

std::atomic<int> marks[fd_table::kLimit];

}  // namespace ringroad::preload::epoll_marks
