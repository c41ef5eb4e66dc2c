/* Two threads that wait for bytes of one stream over shared memory, and what wakes them: the peer, and a thread of
 * their own process.  rsocket-core/channel/shm/shm_memory.h, rsocket-core/stream/waiter.h
 *
 *   peer -- tail, waiting, wakes, the eventfd -- thread 0: on the word (futex) -- WaitList -- a third thread
 *                                             \- thread 1: on the word, or on descriptors (MIXED)
 *
 * Each step is one access of memory that others see, or one system call. What a look finds it finds under the
 * stream's lock: it is one step. Thread 0 may go at any time, as after a signal; what it was woken for is then
 * thread 1's. Nothing sleeps for ever: a state in which nobody can go on is an error, unless all bytes are taken
 * and both threads have gone, or heard of the end.
 *
 * Mutations (-D): see run_model.
 */
#define N 2
#define ARRIVALS 1
#define ON_WORD 2
#define ON_DESCRIPTOR 4
#ifdef MIXED
#define SLEEPS_ON_WORD(t) (t == 0)
#else
#define SLEEPS_ON_WORD(t) true
#endif

byte tail;      /* bytes that the peer has sent */
byte taken;     /* bytes that either thread has received */
byte waiting;   /* ShmSide::waiting of this end */
byte wakes;     /* ShmSide::wakes */
bit event;      /* the channel's eventfd is readable */
bit ended;      /* what the third thread changes: a shutdown, say */
bit list_lock;  /* WaitList::mutex_ */

#define DESCRIPTOR 0
#define WORD 1
#define NO_MORE 2
typedef Waiter {
  bit listed;
  byte sleeps;   /* Waiter::sleeps */
  bit own_event; /* the thread's eventfd */
  bit asleep;    /* in futex(2) */
};
Waiter W[2];

#define READY (taken < tail || ended)

inline lock_list() { atomic { !list_lock -> list_lock = 1 } }
inline unlock_list() { list_lock = 0 }

/* sys::futex_ring(). */
inline ring() {
#ifndef RINGS_WITHOUT_COUNTING
  wakes++;
#endif
  d_step {
    W[0].asleep = 0;
#ifndef WAKES_ONE
    W[1].asleep = 0
#endif
  }
}

/* ShmChannel::put(), wake_who_waits() */
proctype Peer() {
  byte old;
  do
  :: tail == N -> break
  :: tail < N ->
     tail++;
     if
     :: (waiting & ARRIVALS) == 0
     :: else ->
        atomic { old = waiting; waiting = 0 };
        if
        :: (old & ON_WORD) != 0 -> ring()
        :: else
        fi;
        if
#ifdef RINGS_EITHER
        :: (old & (ON_WORD | ON_DESCRIPTOR)) == ON_DESCRIPTOR -> event = 1
#else
        :: (old & ON_DESCRIPTOR) != 0 -> event = 1
#endif
        :: else
        fi;
        old = 0
     fi
  od
}

/* Stream::recv_long(), sleep_until_ready() */
proctype Receiver(byte t) {
  byte value;
  do
  :: atomic { taken < tail -> taken++ }
  :: atomic { taken >= tail && ended -> break }
  :: t == 0 -> break
  :: atomic { !READY -> skip };
     lock_list();
     d_step { W[t].listed = 1; W[t].sleeps = DESCRIPTOR };
     unlock_list();
     /* arm_word() or plan_poll(): a look behind the entry in the list */
     if
     :: READY -> goto leave
     :: else
     fi;
#ifndef COUNTS_LATE
     value = wakes;
#endif
     if
     :: SLEEPS_ON_WORD(t) -> waiting = waiting | ARRIVALS | ON_WORD
     :: else -> waiting = waiting | ARRIVALS | ON_DESCRIPTOR
     fi;
     if
     :: taken < tail -> goto leave
     :: else
     fi;
#ifdef COUNTS_LATE
     value = wakes;
#endif
     if
     :: SLEEPS_ON_WORD(t) ->
        lock_list();
        if
#ifndef FORGETS_THE_TOLD
        :: W[t].sleeps == NO_MORE -> unlock_list(); W[t].own_event = 0; goto leave
#endif
        :: else -> W[t].sleeps = WORD; unlock_list()
        fi;
        /* futex(2) */
        atomic {
          if
          :: wakes == value -> W[t].asleep = 1
          :: else
          fi
        };
        W[t].asleep == 0
     :: else ->
        event || W[t].own_event;
        W[t].own_event = 0;
        event = 0
     fi;
leave:
     lock_list();
     W[t].listed = 0;
     unlock_list()
  od
}

/* Stream::shutdown(), WaitList::wake(): once all is received, so that no wake-up of its stands in for one of the
 * peer's. */
proctype Third() {
  byte t = 0;
  taken == N;
  ended = 1;
  lock_list();
  do
  :: t == 2 -> break
  :: t < 2 ->
     if
     :: !W[t].listed
     :: W[t].listed && W[t].sleeps == WORD -> ring()
     :: else -> W[t].sleeps = NO_MORE; W[t].own_event = 1
     fi;
     t++
  od;
  unlock_list()
}

init {
  atomic { run Peer(); run Receiver(0); run Receiver(1); run Third() }
}
