/* One stream with two ends: promotion, switch, resumption, close, crash; README.md, docs/protocol.md.
 *
 *   program 0 -- End 0 (connector) ==TCP, tcp[]==  End 1 (listener) -- program 1
 *                     \\== channel: ctl[], ring ==//
 *
 * Every transition names the function of rsocket-core that it stands for. A transition is atomic
 * where the code holds both locks of the stream (tx_mutex_ and rx_mutex_); everything between two
 * transitions may happen in any order. What the code does in one service() is several transitions
 * here, and what arrives later than it was sent is a transition that is taken later: so each order
 * that the code can see is one of the model's.
 *
 * `table:` names a transition of SwitchProtocol (switch_protocol.cc) where the model makes it;
 * tests/core/switch_protocol_test.cc compares them with the code's. The model's variables are the same states:
 * SECOND is TX_TCP in SWITCHING, GAVE_UP is TX_TCP with `frozen`, and of the receive direction `announced`,
 * `answered`, `token_seen` and `resume_seen` are ANNOUNCED, PROMISED, TOKEN and RESUMED (RESUMED_BARE without
 * `token_seen`). The model leaves LEFT (stream_past.cc) out; those transitions are:
 *   table: SAY_LEFT CHANNEL x TOKEN -> LEFT x = : -
 *   table: SAY_LEFT_AT_ONCE CHANNEL x TOKEN -> LEFT x RESUMED : -
 *   table: LEFT_HEARD CHANNEL,LEFT x TOKEN -> LEFT x RESUMED : -
 *   table: LEFT_HEARD_AT_ONCE CHANNEL x TOKEN -> REPLAY x RESUMED : -
 *
 * Units: one byte of a program, one TOKEN and one RESUME are one unit of TCP each. A program's bytes
 * are numbered 1, 2, ... so that what is lost, repeated, swapped, a frame or the other program's is seen
 * at once.
 *
 * Sizes of a run (-D): N bytes of each program, PROMOTIONS attempts, LEAVES (hand-backs: pin(),
 * leave_channel(), the 10 ms of outlast_switch()), FAILS of the channel, CRASHES of a process, HANDS
 * (somebody without the library reads on: a child, another program), MINUTES for which a program that has
 * closed waits to be read, but no longer.
 * What programs do (-D): CLOSE_0, CLOSE_1 close(2); SHUT_0, SHUT_1 shutdown(SHUT_WR).
 * SHM: the shared-memory channel (nothing is in flight, what is in it outlives its process); without
 * it the verbs channel. IMPOSTOR: another process asks the listener for the connection.
 * Mutations (-D): see run_model.
 */
#ifndef N
#define N 2
#endif
#ifndef PROMOTIONS
#define PROMOTIONS 1
#endif
#ifndef LEAVES
#define LEAVES 0
#endif
#ifndef FAILS
#define FAILS 0
#endif
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef HANDS
#define HANDS 0
#endif
#ifndef MINUTES
#define MINUTES 0
#endif
#if N > 3
#error a unit of TCP has no room for more
#endif
#ifdef CLOSE_0
#define CLOSES_0 1
#else
#define CLOSES_0 0
#endif
#ifdef CLOSE_1
#define CLOSES_1 1
#else
#define CLOSES_1 0
#endif
#ifdef SHUT_0
#define SHUTS_0 1
#else
#define SHUTS_0 0
#endif
#ifdef SHUT_1
#define SHUTS_1 1
#else
#define SHUTS_1 0
#endif
#define MAY_CLOSE ((e == 0 -> CLOSES_0 : CLOSES_1) && !quiet)
#define MAY_SHUT  ((e == 0 -> SHUTS_0 : SHUTS_1) && !quiet)
#ifdef SHM
#define IS_SHM true
#else
#define IS_SHM false
#endif

/* TCP units of one direction: the program's, and of each promotion at most a TOKEN, a RESUME, and what
 * is given back or comes again after that. */
#define SPAN (N + (N + 2) * PROMOTIONS)
#define NONE 31

/* State (state.h) */
#define ON_TCP 0
#define CONNECTING 1
#define SWITCHING 2
#define ON_CHANNEL 3
#define RESUMING 4
#define RESET 5
#define CLOSED 6
/* SendState (switch_protocol.h) */
#define TX_TCP 0
#define TX_FROZEN 1
#define TX_TOKEN 2
#define TX_CHANNEL 3
#define TX_REPLAY 4
#define TX_DEAD 5
/* A channel object: not built yet, there, destroyed */
#define UNBUILT 0
#define UP 1
#define GONE 2
/* ControlType (wire.h) */
#define SWITCH 1
#define SWITCH_ACK 2
#define GIVE_UP 3
#define FIN 4
/* The request for a channel (transport.h) */
#define NO_REQUEST 0
#define ASKED 1
#define ACCEPTED 2

/* Units of TCP. The nonce of a frame is the number of the promotion that it was drawn for. */
#define TOKEN(nonce) (32 + (nonce))
#define RESUME(nonce, answer, back, consumed) \
  (128 + 32 * (nonce) + 16 * (answer) + 4 * (back) + (consumed))
#ifdef ANY_NONCE
#define IS_TOKEN(u, nonce) (((u) & 240) == TOKEN(0))
#else
#define IS_TOKEN(u, nonce) ((u) == TOKEN(nonce))
#endif
#define IS_RESUME(u, nonce) (((u) & 224) == RESUME(nonce, 0, 0, 0))
/* The bytes of program 0 or 1; the last of them are a TOKEN with a nonce that nobody has drawn. */
#define BYTES(who, number) ((number) + 8 * (who) + ((number) == N) * (TOKEN(0) - N))

typedef Side {
  /* the program */
  byte sent;         /* bytes that its send() took */
  byte got;          /* bytes that its recv() gave */
  bit eof;           /* recv() said 0 */
  bit told;          /* a call told an error: it does nothing more */
  /* the kernel's socket */
  byte ttx;          /* tcp_tx_: units written */
  byte trx;          /* tcp_rx_: units read */
  bit fin;           /* its FIN is behind ttx */
  bit rst;           /* the peer's kernel has sent it a reset */
  bit shut;          /* closed for good: what comes is answered by a reset */
  /* the channel: rings and what is known of them here */
  unsigned link : 2; /* UNBUILT, UP, GONE */
  byte base;         /* bytes of the program's before the switch: ring offset 0 */
  byte head;         /* tx_head() */
  byte arr;          /* rx_head(): the peer's bytes in this end's memory */
  byte cons;         /* rx_consumed() */
  bit broken;        /* the queue pair of this end is in error */
  bit lost;          /* what was in flight to this end never arrives */
  bit safe;          /* everything sent to this end is in its memory: Channel::delivered() */
  /* Stream */
  unsigned st : 3;
  unsigned tx : 3;
  unsigned nonce : 2;
  unsigned boundary : 5;
  unsigned verified : 2;
  unsigned frozen_at : 5;
  unsigned peer_s : 5;
  unsigned peer_consumed : 4;
  unsigned fin_at : 5;
  unsigned left_fin_at : 5; /* fin_at_ when it left the channel */
  bit announced;     /* peer_announced_ */
  bit answered;
  bit frozen;
  bit token_sent;
  bit token_seen;
  bit resume_sent;
  bit resume_seen;
  bit gave_up;
  bit wrote;         /* wrote_since_freeze_ */
  bit fin_sent;
  bit peer_closed;
  bit pending_shut;
  bit shut_wr;
  bit closed;        /* app_closed_ */
  bit crashed;
  unsigned back : 2; /* come_back_: units that are still to come */
  unsigned kept : 2; /* given_back_: what the program may have from there */
  bit gave_back;
  bit peer_closing;
  bit handed;        /* the process that reads on has not the library */
  bit raw;           /* ... and does now */
  bit left_unread;   /* when it left the channel, bytes stood before the boundary */
  bit unread;        /* it closed, and the minute went by before all was read */
};
Side E[2];

byte tcp[2 * SPAN];               /* by writer and offset; 0 once it was read */
chan ctl[2] = [4] of { byte, byte };  /* by receiver */
chan frames[2] = [3 + N] of { byte };  /* frames_, given_back_: on their way into the kernel */
chan come[2] = [N] of { byte };        /* come_back_ */
bit quiet;         /* nothing more is asked for and nothing goes wrong: all that is begun must end */
byte promotions, request, leaves = LEAVES, fails = FAILS, crashes = CRASHES;
byte hands = HANDS, minutes = MINUTES;
#ifdef IMPOSTOR
bit impostor;      /* the far end of the listener's channel is not the connector */
byte lies = 4;     /* what it does before it goes */
#else
#define impostor false
#endif

#ifdef FIN_WITHOUT_ALL
#define FIN_IS_ALL
#else
#define FIN_IS_ALL && ME.arr == ME.fin_at
#endif
/* Behind the peer's RESUME what was unread in the ring has come again over TCP. */
#ifdef COUNTS_OLD_RING
#define COUNTS_RING true
#else
#define COUNTS_RING (!ME.resume_seen)
#endif
#define ME E[e]
#define PEER E[p]
#define UNIT(writer, at) tcp[(writer) * SPAN + (at)]

/* kernel_takes_bytes() */
#define KERNEL_TAKES (ME.tx == TX_TCP && len(frames[e]) == 0)
/* Stream::source() */
#define FROM_TCP (ME.boundary == NONE || ME.trx < ME.boundary)
#define FROM_RING (ME.boundary != NONE && ME.trx >= ME.boundary && \
                   ((ME.link == UP && ME.token_seen && !ME.resume_sent) || ME.st == RESET))

/* scan_frames() looks for a frame */
#define SCANS (ME.boundary != NONE && ME.trx <= ME.boundary && !ME.resume_seen && \
               ME.st != RESET && ME.st != CLOSED)
/* take_come_back() has not all of what the peer gives back */
#define AWAITS_BACK (ME.boundary != NONE && ME.trx == ME.boundary && ME.verified == 0 && \
                     ME.resume_seen && ME.back > 0 && ME.st != RESET && ME.st != CLOSED)
#define CHANGES_CARRIER(s) (E[s].st == CONNECTING || E[s].st == SWITCHING || E[s].st == ON_CHANNEL)

/* When an end may be told an error though its program did nothing wrong: as with plain TCP. A
 * process died, or a program closed with bytes to it unread or yet to come. And where the kernel alone
 * would do better: a process without the library reads on, and none is left that could write again
 * what has not been read. */
#define EXCUSED (E[0].crashed || E[1].crashed || (E[0].closed && E[1].sent != E[0].got) || \
                 (E[1].closed && E[0].sent != E[1].got) || \
                 (E[0].handed && E[1].closed && (E[0].left_unread || E[1].unread)) || \
                 (E[1].handed && E[0].closed && (E[1].left_unread || E[0].unread)))
/* The program's calls come to the library, or its successor's to the kernel. */
#define CALLS (!ME.crashed && !ME.closed && !ME.told && (!ME.handed || ME.raw))
/* Stream::ring_is_next(), once the connection is broken */
#ifdef LOSES_GIVEN_BACK
#define RING_IS_NEXT (ME.link == UP && ME.token_seen && !ME.resume_seen && !ME.gave_back)
#else
#define RING_IS_NEXT (ME.link == UP && ME.token_seen && !ME.resume_seen)
#endif
/* Stream::settled(), Stream::kernel_can_serve() */
#define SETTLED (ME.st == RESET || ME.st == CLOSED || \
                 (ME.st == ON_TCP && ME.boundary == NONE && !ME.gave_up && len(frames[e]) == 0))
#ifdef SERVES_THE_BROKEN
#define SERVES (ME.st != RESET || (ME.link == UP && ME.fin_at != NONE && ME.cons >= ME.fin_at))
#else
#define SERVES (ME.st != RESET || \
                (RING_IS_NEXT && ME.fin_at != NONE && ME.cons >= ME.fin_at && ME.kept == 0 && \
                 ME.trx == PEER.ttx))
#endif
/* Stream::waits_to_be_read() */
#ifdef CLOSES_UNREAD
#define WAITS_TO_BE_READ false
#else
#define WAITS_TO_BE_READ (PEER.link == UP && !ME.broken && PEER.cons != ME.head && \
                          ME.arr == ME.cons && !(ME.fin_at != NONE && ME.peer_closing))
#endif
/* Channel::delivered() */
#define DELIVERED (IS_SHM || (!ME.broken && !PEER.broken && PEER.link == UP && \
                              PEER.arr == ME.head && !PEER.lost))

/* epoll tells the end of a connection once: EPOLLET */
#ifdef HEARS_THE_END_AGAIN
#define HEARS_ONCE false
#else
#define HEARS_ONCE true
#endif
/* The end that was asked goes second. */
#ifdef LISTENER_TOKENS_FIRST
#define IN_ANY_ORDER true
#else
#define IN_ANY_ORDER false
#endif
/* ---- The kernel */

/* sys::send() of one unit. */
inline write_tcp(unit) {
  assert(!ME.fin); /* nothing may be written behind the end */
  if
  :: PEER.shut || ME.rst -> ME.rst = 1
  :: else -> UNIT(e, ME.ttx) = unit; ME.ttx++
  fi
}

/* sys::shutdown(fd, SHUT_WR) */
inline end_output() { ME.fin = 1 }

/* sys::close() of the last descriptor, or the end of the process. Bytes that nobody has read make it
 * a reset, bytes that are on their way still are answered by one. */
inline close_socket() {
  ME.shut = 1;
  if
  :: ME.trx < PEER.ttx && !PEER.shut ->
     PEER.rst = 1;
     if
     :: ME.fin = 1
     :: skip
     fi
  :: else -> ME.fin = 1
  fi
}

/* SO_LINGER{1, 0}, then sys::close() */
inline cut_socket() { ME.shut = 1; PEER.rst = 1 }

/* ---- The channel */

inline drop_controls() {
  do
  :: len(ctl[e]) > 0 -> ctl[e]?_, _
  :: len(ctl[e]) == 0 -> break
  od
}

/* Channel::send_control() */
inline send_control(type, value) {
  if
  :: PEER.link == GONE || PEER.lost || impostor
  :: else -> assert(len(ctl[p]) < 4); ctl[p]!type, value
  fi
}

/* channel_.reset() */
inline reset_channel() {
  if
  :: ME.link == UP -> ME.link = GONE; drop_controls()
  :: else
  fi
}

/* ---- stream_frames.cc, stream_switch.cc, stream_agent.cc. The state must have been looked at. */

/* Stream::queue_frame(); push_frames() is a transition of its own, as the socket may be full. */
inline queue_frame() {
  assert(len(frames[e]) < 3 + N);
  frames[e]!f;
  f = 0
}

inline tell_error() {
  if
  :: ME.closed || ME.told
  :: else -> assert(EXCUSED); ME.told = 1
  fi
}

/* Stream::break_connection(), with sys::shutdown(fd, SHUT_RDWR) */
/* table: BROKEN TCP,SECOND,GAVE_UP,FROZEN x * -> DEAD x = : - */
/* table: BROKEN TOKEN,CHANNEL x * -> DEAD_COMMITTED x = : - */
/* table: BROKEN REPLAY,LEFT x * -> DEAD_RETURNING x = : - */
/* table: BROKEN DEAD,DEAD_COMMITTED,DEAD_RETURNING x * -> = x = : - */
inline break_connection() {
  ME.st = RESET;
  ME.tx = TX_DEAD;
  ME.broken = 1;
  ME.kept = 0;
  end_output();
  tell_error()
}

/* The same for the reason kPeerGone, with Stream::keep_what_is_here() */
inline lose_connection() {
#ifndef BREAKS_AT_ONCE
  /* take_in_channel() */
  do
  :: ME.st == RESUMING && ME.link == UP && ME.safe && len(ctl[e]) > 0 ->
     ctl[e]?u, v;
     if
     :: u == FIN && ME.fin_at == NONE && ME.token_sent -> ME.fin_at = v & 15; ME.peer_closing = v >> 4
     :: else
     fi;
     u = 0;
     v = 0
  :: ME.st == RESUMING && ME.link == UP && ME.safe && len(ctl[e]) == 0 && ME.arr < PEER.head ->
     ME.arr = PEER.head
  :: else -> break
  od;
#endif
  if
#ifndef FORGETS_FIN
  :: ME.st == RESUMING && RING_IS_NEXT &&
     ((ME.fin_at != NONE && ME.arr == ME.fin_at) ||
      (ME.fin_at == NONE && ME.left_fin_at != NONE && ME.arr == ME.left_fin_at)) ->
     /* It had closed when we left, and does not read our RESUME: what it sent is here. */
     if
     :: ME.fin_at == NONE -> ME.fin_at = ME.left_fin_at
     :: else
     fi;
     ME.st = RESET;
     ME.tx = TX_DEAD;
     ME.broken = 1;
     end_output()
#endif
  :: else -> break_connection()
  fi
}

/* Stream::send_fin() */
inline send_fin() {
  if
  :: !ME.fin_sent && ME.tx == TX_CHANNEL && ME.link == UP ->
     send_control(FIN, ME.head + 16 * ME.closed);
     ME.fin_sent = 1;
     ME.pending_shut = 0
  :: else
  fi
}

/* Stream::give_up(). REQUIRES: SWITCHING, no token sent. */
/* table: GIVE_UP SECOND x TCP,ANNOUNCED -> TCP x TCP : forget_boundary */
/* table: GIVE_UP SECOND x * -> TCP x = : - */
/* table: GIVE_UP FROZEN x TCP,ANNOUNCED -> GAVE_UP x TCP : forget_boundary */
/* table: GIVE_UP FROZEN x * -> GAVE_UP x = : - */
inline give_up() {
  send_control(GIVE_UP, 0);
  ME.st = ON_TCP;
  ME.tx = TX_TCP;
  ME.wrote = 0;
  ME.gave_up = ME.answered && !ME.resume_seen;
  if
#ifdef FORGETS_BOUNDARY
  :: true -> ME.boundary = NONE; ME.gave_up = 0
#else
  :: !ME.answered -> ME.boundary = NONE
  :: else
#endif
  fi;
  reset_channel();
  if
  :: ME.pending_shut -> ME.pending_shut = 0; end_output()
  :: else
  fi
}

/* Stream::take_back(): into the queue behind RESUME. */
inline take_back() {
  do
  :: ME.kept < back ->
     ME.kept++;
     assert(UNIT(p, ME.trx) == BYTES(p, ME.got + ME.kept));
     frames[e]!UNIT(p, ME.trx);
     UNIT(p, ME.trx) = 0;
     ME.trx++
  :: else -> break
  od;
  if
  :: back > 0 -> ME.gave_back = 1; skip_verified()
  :: else
  fi
}

/* Stream::leave() for an end that has written its token. push_replay() is push_frames()'s. */
/* table: RETURN TOKEN,CHANNEL x TCP,ANNOUNCED -> REPLAY x RESUMED_BARE : forget_boundary */
/* table: RETURN TOKEN,CHANNEL x * -> REPLAY x = : - */
inline leave() {
  if
  :: !ME.resume_sent ->
     ME.st = RESUMING;
     ME.tx = TX_REPLAY;
     ME.resume_sent = 1;
     ME.left_fin_at = ME.fin_at;
     ME.fin_at = NONE;
     if
     :: !ME.answered && !ME.resume_seen ->
        ME.boundary = NONE;
        ME.resume_seen = 1;
        ME.peer_consumed = 0
     :: else
     fi;
     f = 0;
     if
     :: ME.token_seen ->
#ifdef WRONG_BASE
        f = ME.got
#else
        f = ME.cons
#endif
     :: else
     fi;
     if
#ifndef KEEPS_UNREAD
     :: ME.boundary != NONE && ME.token_seen && ME.trx < ME.boundary && !ME.peer_closed ->
        back = ME.boundary - ME.trx
#endif
     :: else
     fi;
     ME.left_unread = back > 0 || (ME.boundary != NONE && ME.trx < ME.boundary &&
                                   (!ME.token_seen || ME.peer_closed));
#ifdef GIVES_BACK_SILENTLY
     f = RESUME(ME.nonce, ME.answered, 0, f);
#else
     f = RESUME(ME.nonce, ME.answered, back, f);
#endif
     queue_frame();
     take_back();
     back = 0
  :: else
  fi
}

/* Stream::leave_or_give_up() */
/* table: LEAVE SECOND,FROZEN x * -> = x = : give_up */
/* table: LEAVE TOKEN,CHANNEL x * -> = x = : return */
inline leave_or_give_up() {
  if
  :: ME.st == CONNECTING -> ME.st = ON_TCP
  :: ME.st == SWITCHING && !ME.token_sent -> give_up()
  :: (ME.st == SWITCHING && ME.token_sent) || ME.st == ON_CHANNEL -> leave()
  :: else
  fi
}

/* Stream::freeze() */
/* table: ANNOUNCE TCP x TCP -> FROZEN x = : - */
/* table: ANNOUNCE SECOND x TOKEN -> FROZEN x = : - */
inline freeze() {
  ME.frozen = 1;
  ME.tx = TX_FROZEN;
  ME.frozen_at = ME.ttx;
  ME.wrote = 0;
  send_control(SWITCH, ME.ttx)
}

/* Stream::maybe_switched() */
/* table: ENTER TOKEN x TOKEN -> CHANNEL x = : - */
inline maybe_switched() {
  if
  :: ME.st == SWITCHING && ME.token_sent && ME.token_seen && len(frames[e]) == 0 ->
     ME.tx = TX_CHANNEL;
     ME.st = ON_CHANNEL;
     ME.base = ME.sent;
     if
     :: ME.pending_shut -> send_fin()
     :: else
     fi
  :: else
  fi
}

/* Stream::skip_verified() */
inline skip_verified() {
  do
  :: ME.verified > 0 && ME.trx == ME.boundary ->
     UNIT(p, ME.trx) = 0;
     ME.trx++;
     ME.boundary++;
     ME.verified--
  :: else -> break
  od;
  if
  :: ME.verified == 0 && ME.trx == ME.boundary && ME.resume_seen && ME.back == 0 ->
     ME.boundary = NONE
  :: else
  fi
}

/* Stream::frame_token() */
/* table: TOKEN_READ SECOND x PROMISED -> = x TOKEN : announce */
/* table: TOKEN_READ TOKEN x PROMISED -> = x TOKEN : enter */
/* table: TOKEN_READ TCP,GAVE_UP,REPLAY x PROMISED -> = x TOKEN : - */
inline frame_token() {
  ME.token_seen = 1;
  skip_verified();
  if
  :: ME.st == SWITCHING ->
     if
     :: !ME.frozen -> freeze()
     :: else
     fi;
     maybe_switched()
  :: else
  fi
}

/* Stream::answer_resume() */
/* table: ANSWERED GAVE_UP x * -> TCP x = : - */
inline answer_resume() {
#ifdef SILENT_AFTER_GIVE_UP
  skip
#else
  if
  :: !ME.frozen || ME.wrote || ME.resume_sent || (ME.shut_wr && !ME.pending_shut)
  :: else ->
     ME.resume_sent = 1;
     f = RESUME(ME.nonce, 0, 0, 0);
     queue_frame()
  fi
#endif
}

/* Stream::frame_resume() */
/* table: RESUME_READ TCP,GAVE_UP x PROMISED -> = x RESUMED_BARE : answer_resume */
/* table: RESUME_READ TCP,GAVE_UP x TOKEN -> = x RESUMED : answer_resume */
/* table: RESUME_READ SECOND,FROZEN x PROMISED -> = x RESUMED_BARE : give_up,answer_resume */
/* table: RESUME_READ SECOND,FROZEN x TOKEN -> = x RESUMED : give_up,answer_resume */
/* table: RESUME_READ TOKEN,CHANNEL x PROMISED -> = x RESUMED_BARE : return */
/* table: RESUME_READ TOKEN,CHANNEL x TOKEN -> = x RESUMED : return */
/* table: RESUME_READ REPLAY x PROMISED -> = x RESUMED_BARE : replay */
/* table: RESUME_READ REPLAY x TOKEN -> = x RESUMED : replay */
inline frame_resume(what) {
  ME.back = (what >> 2) & 3;
  assert(ME.back == 0 || ME.token_sent); /* else expect_back() says that it is a lie */
  ME.resume_seen = 1;
  ME.peer_consumed = what & 3;
  skip_verified();
  if
  :: ME.st == ON_TCP ->
     if
     :: what & 16 -> answer_resume()
     :: else
     fi;
     ME.gave_up = 0
  :: (ME.st == SWITCHING || ME.st == ON_CHANNEL) && !ME.token_sent ->
     give_up();
     if
     :: what & 16 -> answer_resume()
     :: else
     fi;
     ME.gave_up = 0
  :: (ME.st == SWITCHING || ME.st == ON_CHANNEL) && ME.token_sent -> leave()
  :: else
  fi
}

/* Stream::frame_other(): a program's bytes, or the end, where a frame could have been. */
/* table: NO_FRAME TCP,GAVE_UP x * -> = x TCP : forget_boundary */
/* table: NO_FRAME REPLAY x PROMISED,RESUMED_BARE -> = x RESUMED_BARE : forget_boundary,replay */
inline frame_other() {
  if
  :: ME.token_seen && !ME.resume_seen -> break_connection()
  :: else ->
     ME.boundary = NONE;
     if
     :: ME.st == ON_TCP -> ME.gave_up = 0
     :: ME.st == SWITCHING || ME.st == RESUMING ->
        leave_or_give_up();
        ME.boundary = NONE;
        ME.gave_up = 0;
        if
        :: ME.st == RESUMING -> ME.resume_seen = 1; ME.peer_consumed = 0
        :: else
        fi
     :: else
     fi
  fi
}

/* Channel::fail(kBadRequest): but in an end that has left no honest peer causes it. */
inline bad_request() {
  if
  :: ME.st == RESUMING
  :: else -> assert(impostor); ME.broken = 1
  fi
}

/* Stream::peer_left() */
inline peer_left() {
  ME.peer_closed = 1;
  if
  :: !ME.shut_wr && IS_SHM && PEER.cons != ME.head -> tell_error()
  :: else
  fi
}

/* Stream::tcp_ended() */
inline tcp_ended() {
  if
  :: ME.st == ON_CHANNEL && ME.fin_at == NONE && !ME.rst && IS_SHM && PEER.cons == ME.head ->
     ME.fin_at = ME.arr
  :: else
  fi;
  if
  :: ME.st == ON_CHANNEL && ME.fin_at != NONE && (!ME.rst || ME.shut_wr) FIN_IS_ALL -> peer_left()
  :: ME.st == ON_TCP ->
     ME.boundary = NONE;
     ME.verified = 0;
     ME.gave_up = 0;
     if
     :: ME.rst -> tell_error()
     :: else
     fi
  :: ME.st == SWITCHING && !ME.token_sent && !ME.rst ->
     ME.boundary = NONE;
     give_up();
     ME.boundary = NONE;
     ME.gave_up = 0
  :: ((ME.st == SWITCHING && ME.token_sent) || ME.st == RESUMING) && !ME.token_seen &&
     !ME.resume_seen && !ME.rst -> frame_other()
  :: else -> lose_connection()
  fi
}

/* What service() does when Channel::failed(). `orderly`: for the reason kPeerGone. */
inline channel_failed(orderly) {
  drop_controls();
  if
  :: ME.fin_at != NONE && (orderly) FIN_IS_ALL -> peer_left()
  :: else -> leave_or_give_up()
  fi
}

/* push_passage(come_back_) */
inline write_come_back() {
  do
  :: len(come[e]) > 0 -> come[e]?v; write_tcp(v)
  :: len(come[e]) == 0 -> break
  od;
  v = 0
}

/* ---- Promotion */

/* Stream::may_promote() */
#define MAY_PROMOTE (!ME.closed && !ME.shut_wr && ME.st == ON_TCP && !ME.gave_up && \
                     ME.boundary == NONE && KERNEL_TAKES && !ME.told && !ME.eof && !ME.handed)

/* Stream::promotion_started() */
/* table: START TCP,GAVE_UP x * -> TCP x TCP : - */
inline promotion_started() {
  ME.st = CONNECTING;
  ME.nonce = promotions;
  ME.announced = 0; ME.answered = 0; ME.frozen = 0; ME.token_sent = 0; ME.token_seen = 0;
  ME.resume_sent = 0; ME.resume_seen = 0; ME.wrote = 0; ME.pending_shut = 0; ME.peer_s = 0;
  ME.peer_consumed = 0; ME.verified = 0; ME.fin_sent = 0; ME.fin_at = NONE;
  ME.left_fin_at = NONE; ME.frozen_at = 0; ME.peer_closing = 0; ME.left_unread = 0;
  assert(ME.back == 0 && !ME.gave_back && len(come[e]) == 0)
}

/* A channel without history at one end. */
inline clear_channel(s) {
  E[s].link = UNBUILT; E[s].base = 0; E[s].head = 0; E[s].arr = 0; E[s].cons = 0;
  E[s].broken = 0; E[s].lost = 0; E[s].safe = IS_SHM
}

/* ---- One end: its program's threads and its agent */

proctype End(byte e) {
  byte p = 1 - e;
  byte u, v, f, back;
end:
  do
  /* ---- the program */

  /* Stream::send() to the kernel */
  :: atomic { CALLS && !ME.shut_wr && ME.sent < N && KERNEL_TAKES && !ME.rst ->
     printf("end %d: send() to the kernel\n", e);
     ME.sent++;
     write_tcp(BYTES(e, ME.sent));
     ME.wrote = 1 }
  /* Stream::send() into the ring: Channel::commit() */
  :: atomic { CALLS && !ME.shut_wr && ME.sent < N && ME.tx == TX_CHANNEL ->
     printf("end %d: send() into the ring\n", e);
     ME.sent++;
     if
     :: ME.peer_closed || (ME.peer_closing && ME.fin_at != NONE) ->
        tell_error() /* sent_after_peer_closed_ */
     :: else ->
        ME.head++;
        if
        :: IS_SHM && !PEER.lost -> PEER.arr = ME.head
        :: else
        fi
     fi }

  /* Stream::recv() from the kernel */
  :: atomic { CALLS && (FROM_TCP || ME.raw) && ME.trx < PEER.ttx ->
     printf("end %d: recv() from the kernel\n", e);
     u = UNIT(p, ME.trx);
     assert(u == BYTES(p, ME.got + 1)); /* the next byte, not another and not a frame */
     ME.got++;
     UNIT(p, ME.trx) = 0;
     u = 0;
     ME.trx++;
     skip_verified() }
  /* ... and from the ring */
  :: atomic { CALLS && !ME.raw && FROM_RING && ME.kept == 0 && ME.cons < ME.arr ->
     printf("end %d: recv() from the ring\n", e);
     ME.cons++;
     assert(!impostor); /* another process' bytes */
     assert(PEER.base + ME.cons == ME.got + 1);
     ME.got++ }
  /* ... what was given back to nobody */
  :: atomic { CALLS && !ME.raw && ME.st == RESET && ME.kept > 0 ->
     printf("end %d: recv() of what was given back\n", e);
     ME.kept--;
     ME.got++ }
  /* ... end of file: the kernel's */
  :: atomic { CALLS && !ME.eof && ME.trx == PEER.ttx &&
              ((FROM_TCP && ME.boundary == NONE && PEER.fin) || (ME.raw && ME.st == RESET)) ->
     printf("end %d: recv() says end of file: the kernel's\n", e);
     assert(ME.got == PEER.sent);
     assert(PEER.shut_wr || PEER.closed || PEER.crashed);
     ME.eof = 1 }
  /* ... the channel's */
  :: atomic { CALLS && !ME.raw && !ME.eof && FROM_RING && ME.kept == 0 && ME.cons == ME.arr &&
              ((ME.fin_at != NONE && ME.cons >= ME.fin_at) || ME.peer_closed) ->
     printf("end %d: recv() says end of file: the channel's\n", e);
     assert(ME.got == PEER.sent);
     assert(PEER.shut_wr || PEER.closed || PEER.crashed);
     ME.eof = 1 }
  /* ... or an error, which the kernel tells once what arrived before is read */
  :: atomic { CALLS && ME.rst && FROM_TCP && ME.st != RESET && ME.trx == PEER.ttx ->
     printf("end %d: recv() tells the kernel's error\n", e);
     tell_error() }

  /* Agent::leave_all() is through: the process that has been handed the descriptor reads on, or it is cut off */
  :: atomic { ME.handed && !ME.raw && !ME.told && !ME.crashed && SETTLED ->
     printf("end %d: a process without the library begins to read\n", e);
     if
     :: SERVES -> ME.raw = 1
     :: else -> tell_error(); cut_socket() /* cut_unless_served() */
     fi }

  /* Stream::shutdown(SHUT_WR) */
  :: atomic { MAY_SHUT && CALLS && !ME.handed && !ME.shut_wr ->
     printf("end %d: shutdown()\n", e);
     if
     :: ME.st == SWITCHING && !ME.frozen -> give_up()
     :: else
     fi;
     ME.shut_wr = 1;
     if
     :: KERNEL_TAKES -> end_output()
     :: else -> ME.pending_shut = 1; send_fin()
     fi }

  /* Stream::close_by_program() */
  :: atomic { MAY_CLOSE && !ME.crashed && !ME.closed && !ME.handed ->
     printf("end %d: close()\n", e);
     ME.closed = 1;
     if
     :: ME.st == SWITCHING && !ME.token_sent -> give_up()
     :: else
     fi;
     if
     :: (ME.link != UP && !ME.gave_up && KERNEL_TAKES) || ME.peer_closed || ME.st == RESET ->
        ME.st = CLOSED; /* close_now */
        reset_channel();
        close_socket()
     :: else ->
        if
        :: !(ME.shut_wr && ME.fin_at != NONE) &&
           ((FROM_TCP && ME.trx < PEER.ttx) ||
            (ME.link == UP && ME.token_seen && COUNTS_RING && ME.arr != ME.cons)) ->
           /* unread: a reset. Bytes of TCP may be on their way still; then it comes later. */
           ME.st = CLOSED;
           ME.tx = TX_DEAD;
           reset_channel();
           cut_socket()
        :: else ->
           /* discard_unread() */
           do
           :: ME.boundary != NONE && ME.trx < ME.boundary && ME.trx < PEER.ttx ->
              UNIT(p, ME.trx) = 0;
              ME.trx++
           :: else -> break
           od;
           skip_verified();
           if
           :: !ME.shut_wr ->
              ME.shut_wr = 1;
              if
              :: KERNEL_TAKES -> end_output()
              :: else -> ME.pending_shut = 1
              fi
           :: else
           fi;
           if
           :: ME.pending_shut -> send_fin()
           :: else
           fi
        fi
     fi }

  /* ---- promotion: promotion_broker.cc, pending_requests.cc */

  /* PromotionBroker::start() */
  :: atomic { !quiet && e == 0 && !ME.crashed && promotions < PROMOTIONS &&
              MAY_PROMOTE && request == NO_REQUEST ->
     printf("end %d: asks for a channel\n", e);
     promotions++;
     promotion_started();
     request = ASKED }
  /* PromotionBroker::decide() */
  :: atomic { e == 1 && !ME.crashed && request == ASKED ->
     printf("end %d: decides about the request\n", e);
     if
     :: MAY_PROMOTE ->
        request = ACCEPTED;
        promotion_started();
        clear_channel(0);
        clear_channel(1);
#ifdef IMPOSTOR
        impostor = 0;
#endif
        if
        :: PEER.st != CONNECTING -> PEER.link = GONE
        :: else -> PEER.nonce = ME.nonce
        fi
     :: else -> /* PromotionBroker::on_refused() */
        request = NO_REQUEST;
        if
        :: PEER.st == CONNECTING -> PEER.st = ON_TCP
        :: else
        fi
     fi }
  /* Stream::channel_up() */
  :: atomic { !ME.crashed && request == ACCEPTED && ME.link == UNBUILT &&
              (ME.st == CONNECTING || e == 0) ->
     printf("end %d: channel_up()\n", e);
     if
     :: ME.st != CONNECTING -> ME.link = GONE; drop_controls() /* cancelled meanwhile */
     :: ME.st == CONNECTING && (ME.closed || ME.shut_wr) ->
        ME.link = GONE;
        drop_controls();
        ME.st = ON_TCP
     /* table: WAIT_FOR_TOKEN TCP x TCP -> SECOND x = : - */
     :: else ->
        ME.link = UP;
        ME.st = SWITCHING;
        if
        :: e == 0 || IN_ANY_ORDER -> freeze()
        :: else
        fi
     fi;
     if
     :: PEER.link != UNBUILT -> request = NO_REQUEST
     :: else
     fi }

  /* PromotionBroker::on_refused(), expire(): nobody is there to build a channel with */
  :: atomic { !ME.crashed && ME.st == CONNECTING && PEER.crashed && ME.link != UP ->
     printf("end %d: promotion refused\n", e);
     ME.st = ON_TCP }

  /* ---- the agent: Stream::service() */

  /* push_frames(), with what waits for it */
  :: atomic { !ME.crashed && len(frames[e]) > 0 && ME.st != RESET && ME.st != CLOSED ->
     printf("end %d: push_frames()\n", e);
     frames[e]?u;
     if
     :: ME.rst -> u = 0; lose_connection()
     :: else ->
        write_tcp(u);
        u = 0;
        maybe_switched();
        if
        :: ME.st == ON_TCP && ME.pending_shut && KERNEL_TAKES -> ME.pending_shut = 0; end_output()
        :: else
        fi
     fi }

  /* push_replay() and back_on_tcp() */
  :: atomic { !ME.crashed && ME.st == RESUMING && ME.resume_sent && ME.resume_seen &&
#ifndef DOES_NOT_AWAIT_BACK
              ME.back == 0 &&
#endif
              len(frames[e]) == 0 ->
/* table: REPLAYED REPLAY,LEFT x RESUMED,RESUMED_BARE -> TCP x = : - */
     printf("end %d: push_replay(), back_on_tcp()\n", e);
#ifndef REPLAY_FIRST
     write_come_back();
#endif
     assert(ME.peer_consumed <= ME.head);
#ifdef RESUME_FROM_SENT
     u = ME.head;
#else
     u = ME.peer_consumed;
#endif
     do
     :: u < ME.head -> u++; write_tcp(BYTES(e, ME.base + u))
     :: else -> break
     od;
#ifdef REPLAY_FIRST
     write_come_back();
#endif
     u = 0;
     ME.gave_back = 0;
     ME.kept = 0;
     ME.st = ON_TCP;
     ME.tx = TX_TCP;
     reset_channel();
     if
     :: ME.fin_sent || ME.pending_shut ->
        ME.fin_sent = 0;
        ME.pending_shut = 0;
        end_output()
     :: else
     fi }

  /* Channel::progress(): bytes arrive */
  :: atomic { !ME.crashed && ME.link == UP && ME.arr < PEER.head && !ME.lost && !ME.broken ->
     printf("end %d: bytes arrive in the ring\n", e); ME.arr = PEER.head }
  /* ... or never will */
  :: atomic { !ME.crashed && ME.link == UP && !ME.lost && !ME.safe &&
              (ME.broken || PEER.broken || PEER.link == GONE) ->
     printf("end %d: what was in flight is lost\n", e);
     ME.lost = 1;
     drop_controls() }

  /* take_control() and on_control() */
  :: atomic { !ME.crashed && ME.link == UP && ME.st != RESET && len(ctl[e]) > 0 ->
     printf("end %d: take_control()\n", e);
     ctl[e]?u, v;
     if
     :: u == SWITCH ->
        if
/* table: SWITCH_HEARD SECOND,TOKEN x TCP -> = x ANNOUNCED : promise */
        :: ME.st == SWITCHING && !ME.announced && (e == 1 || ME.token_sent || IN_ANY_ORDER) ->
           ME.announced = 1;
           ME.peer_s = v;
           /* answer_switch(), its first half */
           if
#ifndef BELIEVE_OVERTAKEN
           :: ME.trx > v -> leave_or_give_up()
#endif
           :: else -> ME.boundary = v
           fi
        :: else -> bad_request()
        fi
     :: u == SWITCH_ACK ->
        if
/* table: ACK_HEARD FROZEN x TCP,TOKEN -> TOKEN x = : write_token */
        :: ME.st == SWITCHING && ME.tx == TX_FROZEN && v == ME.frozen_at ->
           ME.tx = TX_TOKEN;
           ME.token_sent = 1;
           f = TOKEN(ME.nonce);
           queue_frame()
        :: else -> bad_request()
        fi
     :: u == GIVE_UP ->
        if
        :: ME.st == SWITCHING ->
           leave_or_give_up();
           if
           :: ME.gave_up && !ME.token_seen -> ME.boundary = NONE; ME.verified = 0; ME.gave_up = 0
           :: else
           fi
        :: else
        fi
     :: u == FIN ->
        if
#ifdef FIN_WITHOUT_TOKEN
        :: ME.fin_at == NONE -> ME.fin_at = v & 15; ME.peer_closing = v >> 4
#else
        :: ME.fin_at == NONE && ME.token_sent -> ME.fin_at = v & 15; ME.peer_closing = v >> 4
#endif
        :: else -> bad_request()
        fi
     fi;
     u = 0;
     v = 0 }

  /* answer_switch(), its second half: the listener's program has read everything before S; the
   * connector has room to peek over what is unread, and all of it has arrived */
  :: atomic { !ME.crashed && ME.st == SWITCHING && ME.announced && !ME.answered &&
#ifdef ANSWER_UNREAD
              true ->
     printf("end %d: answer_switch() answers\n", e);
#else
              (e == 0 || ME.trx >= ME.peer_s) ->
#endif
/* table: PROMISE SECOND,TOKEN x ANNOUNCED -> = x PROMISED : - */
     ME.answered = 1;
     send_control(SWITCH_ACK, ME.peer_s) }

  /* scan_frames() */
  :: atomic { !ME.crashed && SCANS &&
              PEER.ttx > ME.boundary + ME.verified ->
     printf("end %d: scan_frames()\n", e);
     u = UNIT(p, ME.boundary + ME.verified);
     if
#ifdef NO_TOKEN_CHECK
     :: !ME.token_seen -> u = 0; ME.verified++; frame_token()
     :: ME.token_seen && IS_TOKEN(u, ME.nonce) -> break_connection()
#else
     :: IS_TOKEN(u, ME.nonce) ->
        assert(e == 0 || ME.trx == ME.boundary); /* a server's frames stand behind nothing unread */
        u = 0;
        if
        :: ME.token_seen -> break_connection()
        :: else -> ME.verified++; frame_token()
        fi
#endif
     :: IS_RESUME(u, ME.nonce) -> ME.verified++; v = u; u = 0; frame_resume(v); v = 0
     :: else -> u = 0; frame_other()
     fi }
  /* ... the end where a frame may stand, or more was to come back. What is in this end's memory already
   * is taken in first. */
  :: atomic { !ME.crashed && (SCANS || AWAITS_BACK) &&
              (ME.rst -> PEER.ttx <= ME.boundary + ME.verified && /* what stands before it is found */
                         !(ME.peer_closed && ME.st == ON_CHANNEL && ME.shut_wr)
                       : PEER.ttx == ME.boundary + ME.verified && PEER.fin &&
                         !(ME.peer_closed && ME.st == ON_CHANNEL && HEARS_ONCE)) &&
              !(ME.link == UP && ME.safe && (len(ctl[e]) > 0 || ME.arr < PEER.head)) ->
     printf("end %d: tcp_ended()\n", e);
     tcp_ended() }

  /* take_come_back() */
  :: atomic { !ME.crashed && AWAITS_BACK && PEER.ttx > ME.trx ->
     printf("end %d: take_come_back()\n", e);
     come[e]!UNIT(p, ME.trx);
     UNIT(p, ME.trx) = 0;
     ME.trx++;
     ME.boundary++;
     ME.back--;
     skip_verified() }

  /* Channel::failed(): the queue pair's own error, or the peer's object is gone */
  :: atomic { !ME.crashed && ME.link == UP && !ME.peer_closed &&
              (ME.st == SWITCHING || ME.st == ON_CHANNEL) &&
              (ME.broken || PEER.link == GONE) &&
              !(ME.safe && (len(ctl[e]) > 0 || ME.arr < PEER.head)) ->
     printf("end %d: channel failed\n", e);
     channel_failed(PEER.link == GONE) }

  /* deadline_passed() of a switch */
  :: atomic { !ME.crashed && ME.st == SWITCHING ->
     printf("end %d: deadline_passed()\n", e); leave_or_give_up() }

  /* finish_linger() */
  :: atomic { !ME.crashed && ME.closed && ME.st == ON_TCP && len(frames[e]) == 0 && !ME.gave_up ->
     ME.st = CLOSED;
     close_socket() }
  :: atomic { !ME.crashed && ME.closed && ME.st == ON_CHANNEL && !ME.fin_sent &&
              !ME.peer_closed -> send_fin() }
  :: atomic { !ME.crashed && ME.closed && ME.st == ON_CHANNEL &&
              (ME.peer_closed ||
               (ME.fin_sent && !WAITS_TO_BE_READ && DELIVERED)) ->
     PEER.safe = 1;
     ME.st = CLOSED;
     reset_channel();
     close_socket() }
  /* ... at the end of the minute; a program that was told an error reads no more */
  :: atomic { !ME.crashed && ME.closed && ME.st == ON_CHANNEL && ME.fin_sent && WAITS_TO_BE_READ &&
              DELIVERED && (PEER.told || (minutes > 0 && !quiet)) ->
     printf("end %d: has waited for a minute to be read\n", e);
     PEER.safe = 1;
     if
     :: PEER.told
     :: else -> minutes--
     fi;
     ME.unread = 1;
     ME.st = CLOSED;
     reset_channel();
     close_socket() }
  :: atomic { !ME.crashed && ME.closed && ME.st == RESET ->
     ME.st = CLOSED;
     reset_channel();
     close_socket() }
  od
}

/* ---- What happens to them */

#define MAY_HAND(s) (hands > 0 && !E[s].handed && !E[s].closed && !E[s].told && \
                     (CHANGES_CARRIER(s) || E[s].st == RESUMING))

/* Its process wants it on TCP, or somebody without the library is to read on. */
inline leave_channel() {
  if
  :: leaves > 0 && CHANGES_CARRIER(e) -> printf("end %d: leave_channel()\n", e); leaves--
  :: MAY_HAND(e) ->
     printf("end %d: leave_channel(), for somebody without the library\n", e);
     hands--;
     ME.handed = 1
  fi;
  leave_or_give_up()
}

inline crash() {
  printf("end %d: crashes\n", e);
  crashes--;
  ME.crashed = 1;
  was = ME.st;
  ME.st = CLOSED;
  ME.link = GONE;
  drop_controls();
  do
  :: len(frames[e]) > 0 -> frames[e]?_
  :: len(come[e]) > 0 -> come[e]?_
  :: len(frames[e]) == 0 && len(come[e]) == 0 -> break
  od;
  if
#ifndef KILLED_IN_REPLAY
  :: was == RESUMING -> cut_socket() /* reset_if_killed() */
#endif
  :: else -> close_socket()
  fi;
  was = 0
}

/* At the end of everything: no byte missing, nobody stuck. */
inline check_end() {
  if
  :: ME.crashed || ME.told
  :: ME.closed -> /* what cannot know whether a token is on its way waits a minute: kLingerTimeoutNs */
     assert(ME.st == CLOSED || (ME.st == ON_TCP && ME.gave_up))
  :: ME.handed && !ME.raw && !ME.told && !ME.crashed -> /* leave_all() waits for as long as it may; then it is cut off */
     assert(ME.st == ON_TCP && (ME.gave_up || (ME.left_unread && ME.trx < ME.boundary)))
  :: else ->
     if
     :: ME.st == RESET -> assert(ME.eof && (PEER.closed || PEER.crashed))
     :: else ->
        assert(ME.st == ON_TCP || ME.st == ON_CHANNEL);
        assert(ME.sent == N || ME.shut_wr)
     fi;
     if
     :: PEER.closed || PEER.shut_wr || PEER.crashed -> assert(ME.eof)
     :: else -> assert(ME.got == PEER.sent)
     fi
  fi
}

proctype World() {
  byte e, p, f, back, was;
end:
  do
  :: atomic { !quiet && ((leaves > 0 && CHANGES_CARRIER(0)) || MAY_HAND(0)) ->
     e = 0; p = 1; leave_channel(); p = 0 }
  :: atomic { !quiet && ((leaves > 0 && CHANGES_CARRIER(1)) || MAY_HAND(1)) ->
     e = 1; p = 0; leave_channel(); e = 0 }
  :: atomic { !quiet && fails > 0 && E[0].link == UP && !E[0].broken ->
     printf("end 0: its queue pair fails\n"); fails--; E[0].broken = 1 }
  :: atomic { !quiet && fails > 0 && E[1].link == UP && !E[1].broken ->
     printf("end 1: its queue pair fails\n"); fails--; E[1].broken = 1 }
  :: atomic { !quiet && crashes > 0 && !E[0].crashed && !E[0].shut -> e = 0; p = 1; crash(); p = 0 }
  :: atomic { !quiet && crashes > 0 && !E[1].crashed && !E[1].shut -> e = 1; p = 0; crash(); e = 0 }
#ifdef IMPOSTOR
  /* A process that can reach the listener's rendezvous asks for the connection, and lies. */
  :: atomic { !quiet && lies == 4 && request != ACCEPTED && !E[1].crashed && promotions < PROMOTIONS &&
              (E[0].st == ON_TCP || E[0].st == CONNECTING) ->
     e = 1; p = 0;
     if
     :: MAY_PROMOTE ->
        printf("impostor: asks for the connection\n");
        lies--;
        promotions++;
        promotion_started();
        clear_channel(0);
        clear_channel(1);
        ME.link = UP;
        ME.st = SWITCHING;
        impostor = 1;
        if
        :: IN_ANY_ORDER -> freeze()
        :: else
        fi
     :: else -> lies = 0
     fi;
     e = 0 }
  :: atomic { !quiet && impostor && lies > 0 && E[1].link == UP ->
     lies--;
     if
     :: for (e : 0 .. N) { if :: ctl[1]!SWITCH, e; break :: skip fi }
     :: for (e : 0 .. N) { if :: ctl[1]!SWITCH_ACK, e; break :: skip fi }
     :: ctl[1]!FIN, E[0].head
     :: ctl[1]!GIVE_UP, 0
     :: E[0].head = 1; E[1].arr = 1
     fi;
     e = 0 }
  :: atomic { impostor && E[0].link == UNBUILT -> E[0].link = GONE; lies = 0 }
#endif
  :: atomic { !quiet -> quiet = 1 }
  :: atomic { timeout ->
     e = 0; p = 1;
     check_end();
     e = 1; p = 0;
     check_end();
     e = 0;
     break }
  od
}

init {
  atomic {
    E[0].boundary = NONE; E[1].boundary = NONE;
    E[0].fin_at = NONE; E[1].fin_at = NONE;
    E[0].left_fin_at = NONE; E[1].left_fin_at = NONE;
    E[0].safe = IS_SHM; E[1].safe = IS_SHM;
    run End(0);
    run End(1);
    run World()
  }
}
