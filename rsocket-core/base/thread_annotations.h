// The attributes of clang's thread-safety analysis (-Wthread-safety). Other compilers see none of them.
#pragma once

#if defined(__clang__)
#define RR_ANNOTATE(x) __attribute__((x))
#else
#define RR_ANNOTATE(x)
#endif
#define RR_CAPABILITY(x) RR_ANNOTATE(capability(x))
#define RR_SCOPED_CAPABILITY RR_ANNOTATE(scoped_lockable)
#define RR_GUARDED_BY(x) RR_ANNOTATE(guarded_by(x))
#define RR_PT_GUARDED_BY(x) RR_ANNOTATE(pt_guarded_by(x))
#define RR_REQUIRES(...) RR_ANNOTATE(requires_capability(__VA_ARGS__))
#define RR_EXCLUDES(...) RR_ANNOTATE(locks_excluded(__VA_ARGS__))
#define RR_ACQUIRE(...) RR_ANNOTATE(acquire_capability(__VA_ARGS__))
#define RR_TRY_ACQUIRE(...) RR_ANNOTATE(try_acquire_capability(__VA_ARGS__))
#define RR_RELEASE(...) RR_ANNOTATE(release_capability(__VA_ARGS__))
#define RR_ACQUIRED_BEFORE(...) RR_ANNOTATE(acquired_before(__VA_ARGS__))
#define RR_ACQUIRED_AFTER(...) RR_ANNOTATE(acquired_after(__VA_ARGS__))
#define RR_NO_THREAD_SAFETY_ANALYSIS RR_ANNOTATE(no_thread_safety_analysis)
