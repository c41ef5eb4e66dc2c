// Since glibc 2.32: whether the process has one thread, so that std::shared_ptr can count without
// atomic instructions. False at all times is right at all times.
char __libc_single_threaded = 0;
