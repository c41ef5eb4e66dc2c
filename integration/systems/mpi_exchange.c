/* Ranks that send round a ring, to all, and reduce, with every result checked; then each says its
   process id and how many bytes it was sent, and waits until the file that it is told of is there.
 */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { kLargest = 1 << 20, kRounds = 40 };

static void check(int holds, const char* what, int size) {
  if (holds) return;
  fprintf(stderr, "wrong: %s of %d\n", what, size);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static unsigned char byte_of(int rank, int round, int at) {
  return (unsigned char)((rank * 101 + round * 31 + at * 7) % 251);
}

int main(int count, char** words) {
  MPI_Init(&count, &words);
  int rank, ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const int before = (rank + ranks - 1) % ranks, after = (rank + 1) % ranks;
  unsigned char* out = malloc(kLargest);
  unsigned char* in = malloc(kLargest);
  long received = 0;
  for (int round = 0; round < kRounds; ++round) {
    const int size = round < 20 ? 1 << round : kLargest;
    for (int at = 0; at < size; ++at) out[at] = byte_of(rank, round, at);
    MPI_Request requests[2];
    MPI_Irecv(in, size, MPI_BYTE, before, round, MPI_COMM_WORLD, &requests[0]);
    MPI_Isend(out, size, MPI_BYTE, after, round, MPI_COMM_WORLD, &requests[1]);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    for (int at = 0; at < size; ++at) check(in[at] == byte_of(before, round, at), "ring", size);
    received += size;
  }
  for (int size = 1; size <= 1 << 16; size *= 16) {
    long* mine = malloc((size_t)size * sizeof *mine);
    long* sum = malloc((size_t)size * sizeof *sum);
    for (int at = 0; at < size; ++at) mine[at] = (long)at * (rank + 1);
    MPI_Allreduce(mine, sum, size, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    for (int at = 0; at < size; ++at) {
      check(sum[at] == (long)at * ranks * (ranks + 1) / 2, "allreduce", size);
    }
    free(mine);
    free(sum);
  }
  int* to_each = malloc((size_t)ranks * sizeof *to_each);
  int* from_each = malloc((size_t)ranks * sizeof *from_each);
  for (int round = 0; round < 200; ++round) {
    for (int other = 0; other < ranks; ++other) to_each[other] = rank * 1000 + other + round;
    MPI_Alltoall(to_each, 1, MPI_INT, from_each, 1, MPI_INT, MPI_COMM_WORLD);
    for (int other = 0; other < ranks; ++other) {
      check(from_each[other] == other * 1000 + rank + round, "alltoall", round);
    }
    MPI_Barrier(MPI_COMM_WORLD);
  }
  printf("%d %ld\n", (int)getpid(), received);
  fflush(stdout);
  while (access(words[1], F_OK) != 0) usleep(10000);
  MPI_Finalize();
  return 0;
}
